#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/sdp4bit/format.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
class Sdp4bit final : public BlockCodec<format::Sdp4bitFormat<Bits>> {
  using Format = format::Sdp4bitFormat<Bits>;

 public:
  explicit Sdp4bit(const Params& params)
      : BlockCodec<Format>{"sdp4bit", Format::of(params), block_of(params), params.is("rounding", "stochastic")} {}

  /// A rotated element moves by at most half a unit, or by less than one unit when it is drawn. A unit is the largest
  /// magnitude of the rotated block / kMax, and that magnitude is at most the norm of 32 elements, which rotation
  /// keeps. So the error's energy in a block is at most `block` times the square of what a unit of the norm allows. An
  /// element is turned back from 32, each off by as much as sqrt(32) times the largest element allows.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const auto& rotation = this->format().rotation;
    const double unit = (this->stochastic() ? 1.0 : 0.5) / static_cast<double>(Format::Element::kMax) * (1.0 + 1e-5);
    return {.nmse = static_cast<double>(std::min(n, this->block())) * unit * unit,
            .of_largest = rotation.on ? rotation.kSize * unit : unit,
            .absolute = rotation.on ? 0x1p-97 : 0x1p-100};
  }

 private:
  static std::size_t block_of(const Params& params) {
    const auto block = static_cast<std::size_t>(params.integer("block"));
    expect_valid(block % format::kPackGroup == 0, "codec sdp4bit: block must be a multiple of 32");
    return block;
  }
};

constexpr ParamInfo kParams[] = {
    choice_param("bits", "4", "4|8", "of an element; the paper sends 8 inside a node and 4 between nodes")
        .searched("4|8"),
    integer_param("block", "128", {32, static_cast<double>(detail::kBlockTile)},
                  "elements that share a scale, a multiple of 32")
        .searched("128|512"),
    choice_param("hadamard", "on", "off|on", "rotate every 32 elements by a Hadamard transform first")
        .searched("off|on"),
    integer_param("seed", "0", {0, 9007199254740992.0},
                  "seed of random signs before the rotation, the same on all ranks; 0 for no signs, as in the paper"),
    choice_param("rounding", "nearest", "nearest|stochastic",
                 "stochastic is unbiased, with two to four times the squared error")};

}  // namespace

extern constinit const CodecDescriptor sdp4bit_codec{
    .name = "sdp4bit",
    .summary = "sends 4- or 8-bit integers in blocks, after a Hadamard rotation of every 32 elements",
    .reference = "Jia et al., SDP4Bit, NeurIPS 2024, arXiv 2410.15526; COCCL",
    .params = kParams,
    .payload = "bits n + 32 ceil(n/block) bits",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      if (p.is("bits", "8")) return std::make_unique<Sdp4bit<8>>(p);
      return std::make_unique<Sdp4bit<4>>(p);
    },
};

}  // namespace gradtool
