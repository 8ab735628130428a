#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/int8/format.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
class FloatScaledCodec final : public BlockCodec<format::FloatScaledInt<Bits>> {
 public:
  explicit FloatScaledCodec(const Params& params)
      : BlockCodec<format::FloatScaledInt<Bits>>{
            "int8", {}, static_cast<std::size_t>(params.integer("block")), params.is("rounding", "stochastic")} {
    // Blocks of whole bytes might be any multiple of 4; one rule for all sizes of elements is easier to say.
    expect_valid(this->block() % format::kPackGroup == 0, "codec int8: block must be a multiple of 32");
  }

  /// An element moves by at most half a unit, or by less than one unit when it is drawn. A unit is max |x| / kMax of
  /// the element's block.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double most = static_cast<double>(format::SymmetricInt<Bits>::kMax);
    const double unit = (this->stochastic() ? 1.0 : 0.5) / most * (1.0 + 1e-5);
    return {.nmse = static_cast<double>(std::min(n, this->block())) * unit * unit,
            .of_largest = unit,
            .absolute = 0x1p-100};
  }
};

template <std::uint32_t Bits>
class HalfScaledCodec final : public BlockCodec<format::HalfScaledInt<Bits>> {
  using Format = format::HalfScaledInt<Bits>;

 public:
  HalfScaledCodec() : BlockCodec<Format>{"int8", {}, Format::kBlock, false} {}

  /// A unit is max |x| / 2^(bits-1), with binary16's rounding. An element as large as the largest, of the other sign,
  /// saturates, one unit below itself; the others move by half a unit. What binary16 cannot represent is lost: a
  /// scale is off by 2^-25 there, and an element by 2^(bits-1) times that.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    const double most = static_cast<double>(Format::Element::kMax);
    return {.of_largest = (1.0 / most) * (1.0 + 1e-3) + 0x1p-10, .absolute = most * 0x1p-24};
  }
};

template <std::uint32_t Bits>
std::unique_ptr<Codec<Space::host>> make(const Params& params) {
  if (params.is("scale", "f32")) return std::make_unique<FloatScaledCodec<Bits>>(params);
  expect_valid(params.is("rounding", "nearest"), "codec int8: scale=f16 rounds to nearest, leave rounding out");
  expect_valid(params.integer("block") == 32, "codec int8: scale=f16 has groups of 32, say block=32");
  return std::make_unique<HalfScaledCodec<Bits>>();
}

constexpr ParamInfo kParams[] = {
    choice_param("bits", "8", "4|6|8", "of an element"),
    integer_param("block", "2048", {32, 1 << 20},
                  "elements that share a scale, a multiple of 32; scale=f16 wants block=32")
        .searched("256|2048|16384"),
    choice_param("scale", "f32", "f32|f16", "float32 of the largest magnitude, or QuickReduce's binary16 with a sign"),
    choice_param("rounding", "nearest", "nearest|stochastic",
                 "stochastic is unbiased, with up to four times the squared error")};

}  // namespace

extern constinit const CodecDescriptor int8_codec{
    .name = "int8",
    .summary = "sends integers of 8, 6 or 4 bits, with a scale for each block",
    .reference =
        "the plain quantised all-reduce that methods are compared with; scale=f16: QuickReduce, as in vLLM, 2025",
    .params = kParams,
    .payload = "bits n + 32 ceil(n/block) bits; scale=f16: bits n + 16 ceil(n/32)",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return p.is("bits", "8") ? make<8>(p) : p.is("bits", "6") ? make<6>(p) : make<4>(p);
    },
};

}  // namespace gradtool
