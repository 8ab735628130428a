#include <algorithm>
#include <array>
#include <cmath>

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/sdp4bit/format.hpp"

namespace gradtool {
namespace {

/// Elements that a thread works on at a time: whole blocks.
constexpr std::size_t kTile = detail::kBlockTile;
static_assert(format::kSdp4bitLargestBlock <= kTile);

/// The factors of a group's elements before the additions and after them.
struct Rotation {
  std::array<float, format::kRotated> before, after;
};

/// Rotates the whole groups of 32 of x[0 .. count); a last group that is short stays as it is. Each step works on
/// neighbours and moves sums to the front and differences to the back, which turns the bits of all numbers by one
/// place: the next step's pairs are neighbours too, and five steps restore the order.
GT_SIMD_CLONES void rotate(const Rotation& rotation, float* x, std::size_t count) {
  constexpr std::size_t kSize = format::kRotated;
  for (; count >= kSize; count -= kSize, x += kSize) {
    alignas(64) float from[kSize];
    alignas(64) float to[kSize];
    for (std::size_t i = 0; i < kSize; ++i) from[i] = x[i] * rotation.before[i];
    const auto step = [](const float* in, float* out) GT_INLINED {
      for (std::size_t i = 0; i < kSize / 2; ++i) {
        out[i] = in[2 * i] + in[2 * i + 1];
        out[i + kSize / 2] = in[2 * i] - in[2 * i + 1];
      }
    };
    step(from, to);
    step(to, from);
    step(from, to);
    step(to, from);
    step(from, to);
    for (std::size_t i = 0; i < kSize; ++i) x[i] = to[i] * rotation.after[i];
  }
}

template <std::uint32_t Bits>
class Sdp4bit final : public Codec<Space::host> {
 public:
  explicit Sdp4bit(const Params& params)
      : block_{static_cast<std::size_t>(params.integer("block"))},
        rotated_{params.is("hadamard", "on")},
        stochastic_{params.is("rounding", "stochastic")} {
    expect_valid(block_ % format::kRotated == 0, "codec sdp4bit: block must be a multiple of 32");
    const format::RotationSigns signs{static_cast<std::uint64_t>(params.integer("seed"))};
    for (std::size_t i = 0; i < format::kRotated; ++i) {
      const float sign = signs.of(static_cast<std::uint32_t>(i));
      forward_.before[i] = sign * format::kRotationNorm;
      forward_.after[i] = 1.0F;
      inverse_.before[i] = format::kRotationNorm;
      inverse_.after[i] = sign;
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    auto* scales = section<float>(payload);
    auto* words = section<std::uint32_t>(payload, layout(gradient.size()).codes_offset());
    each_tile(queue, gradient.size(), [&](std::size_t first, std::size_t count) {
      alignas(64) std::array<float, kTile> values;
      alignas(64) std::array<std::uint32_t, kTile> draws;
      alignas(64) std::array<std::uint8_t, kTile> codes;
      std::array<float, kTile / format::kPackGroup> factors;
      const float* x = gradient.data() + first;
      if (rotated_) {
        std::copy(x, x + count, values.data());
        rotate(forward_, values.data(), count);
        x = values.data();
      }
      detail::block_scales(Format{}, x, count, block_, scales + first / block_, factors.data());
      if (stochastic_) host::draw_tile(context.key, first, count, draws.data());
      detail::encode_blocks<Format>(x, 0, count, block_, factors.data(), stochastic_ ? draws.data() : nullptr,
                                    codes.data());
      host::write_codes<Bits>(codes.data(), count, words + first * Bits / 32);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const format::BlockLayout places = layout(out.size());
    expect_length("sdp4bit", payload.size(), places.bytes());
    const auto* scales = section<float>(payload);
    const auto* words = section<std::uint32_t>(payload, places.codes_offset());
    each_tile(queue, out.size(), [&](std::size_t first, std::size_t count) {
      alignas(64) std::array<float, kTile> values;
      alignas(64) std::array<std::uint8_t, kTile> codes;
      const float* units = scales + first / block_;
      host::read_codes<Bits>(words + first * Bits / 32, count, codes.data());
      if (!rotated_) {
        detail::decode_blocks<Format>(codes.data(), 0, count, block_, units, weight, out.data() + first);
        return;
      }
      detail::block_values<Format>(codes.data(), count, block_, units, values.data());
      rotate(inverse_, values.data(), count);
      detail::add_values(values.data(), count, weight, out.data() + first);
    });
  }

  /// A rotated element moves by at most half a unit, or by less than one unit when it is drawn. A unit is the largest
  /// magnitude of the rotated block / kMax, and that magnitude is at most the norm of 32 elements, which rotation
  /// keeps. So the error's energy in a block is at most `block` times the square of what a unit of the norm allows. An
  /// element is turned back from 32, each off by as much as sqrt(32) times the largest element allows.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double unit = (stochastic_ ? 1.0 : 0.5) / static_cast<double>(Format::Element::kMax) * (1.0 + 1e-5);
    return {.nmse = static_cast<double>(std::min(n, block_)) * unit * unit,
            .of_largest = rotated_ ? static_cast<double>(format::kRotated) * unit : unit,
            .absolute = rotated_ ? 0x1p-97 : 0x1p-100};
  }

 private:
  using Format = format::Sdp4bitFormat<Bits>;

  [[nodiscard]] format::BlockLayout layout(std::size_t n) const { return {n, block_, sizeof(float), Bits}; }

  /// body(first, count) for tiles of whole blocks, on any thread.
  template <class Body>
  void each_tile(Queue<Space::host> queue, std::size_t n, const Body& body) const {
    const std::size_t tile = kTile / block_ * block_;
    parallel_for(queue, n, tile, 1 << 14, [&](std::size_t begin, std::size_t end) {
      for (std::size_t first = begin; first < end; first += tile) body(first, std::min(tile, end - first));
    });
  }

  Rotation forward_, inverse_;
  std::size_t block_;
  bool rotated_;
  bool stochastic_;
};

constexpr ParamInfo kParams[] = {
    choice_param("bits", "4", "4|8", "of an element; the paper sends 8 inside a node and 4 between nodes")
        .searched("4|8"),
    integer_param("block", "128", {32, static_cast<double>(format::kSdp4bitLargestBlock)},
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
