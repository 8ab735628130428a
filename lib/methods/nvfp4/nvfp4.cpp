#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/vector.hpp"
#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/nvfp4/format.hpp"

namespace gradtool {
namespace {

using format::Nvfp4;
using format::Nvfp4Unit;
using format::Rotation16;

/// For the loops of BlockCodec: a block's scale as what its values are multiplied by.
struct Nvfp4Values {
  using Scale = float;
  using Element = Nvfp4::Element;
  static constexpr std::size_t kBlock = Nvfp4::kBlock;
  static float decode_factor(Scale unit) { return unit; }
};

/// Elements that a thread works on at a time.
constexpr std::size_t kTile = detail::kBlockTile;
constexpr std::size_t kTileBlocks = kTile / Nvfp4::kBlock;

/// Scales of the blocks of at most kTile elements, and what their elements are multiplied by.
GT_SIMD_CLONES void scale_blocks(const Nvfp4Unit& unit, const float* x, std::size_t count, std::uint8_t* scales,
                                 float* factors) {
  alignas(64) std::array<float, kTileBlocks> largest;
  detail::each_block<Nvfp4Values>(0, count, Nvfp4::kBlock,
                                  [&](std::size_t b, std::size_t begin, std::size_t end)
                                      GT_INLINED { largest[b] = detail::largest_magnitude(x + begin, end - begin); });
  for (std::size_t b = 0; b < Nvfp4::blocks(count); ++b) {
    const auto scaled = unit.scaled(largest[b]);
    scales[b] = scaled.stored;
    factors[b] = scaled.factor;
  }
}

/// Stores the factor of each block's values; returns the largest code of a scale.
GT_SIMD_CLONES std::uint8_t units_of_blocks(const std::uint8_t* scales, std::size_t blocks, float decode,
                                            float* units) {
  std::uint8_t largest = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    largest = std::max(largest, scales[b]);
    units[b] = Nvfp4Unit::block_unit(scales[b], decode);
  }
  return largest;
}

/// The numbers at one place of as many blocks, so that rotations work on whole vectors.
struct Lanes {
  static constexpr std::size_t kCount = 16;
  alignas(64) float lane[kCount];

  GT_INLINED friend Lanes operator+(const Lanes& a, const Lanes& b) {
    Lanes out;
    for (std::size_t i = 0; i < kCount; ++i) out.lane[i] = a.lane[i] + b.lane[i];
    return out;
  }
  GT_INLINED friend Lanes operator-(const Lanes& a, const Lanes& b) {
    Lanes out;
    for (std::size_t i = 0; i < kCount; ++i) out.lane[i] = a.lane[i] - b.lane[i];
    return out;
  }
  GT_INLINED friend Lanes operator*(const Lanes& a, float factor) {
    Lanes out;
    for (std::size_t i = 0; i < kCount; ++i) out.lane[i] = a.lane[i] * factor;
    return out;
  }
};

enum class Way : bool { forward, inverse };

/// Rotates the whole blocks of x[0 .. count). A last block that is short stays as it is.
template <Way Direction>
GT_SIMD_CLONES void rotate(const Rotation16& rotation, float* x, std::size_t count) {
  const auto turn = [&](auto& block) GT_INLINED {
    if constexpr (Direction == Way::forward)
      rotation.forward(block);
    else
      rotation.inverse(block);
  };
  constexpr std::size_t kSize = Nvfp4::kBlock;
  for (; count >= Lanes::kCount * kSize; count -= Lanes::kCount * kSize, x += Lanes::kCount * kSize) {
    Lanes row[kSize];
    for (std::size_t b = 0; b < Lanes::kCount; ++b) {
      for (std::size_t i = 0; i < kSize; ++i) row[i].lane[b] = x[kSize * b + i];
    }
    turn(row);
    for (std::size_t b = 0; b < Lanes::kCount; ++b) {
      for (std::size_t i = 0; i < kSize; ++i) x[kSize * b + i] = row[i].lane[b];
    }
  }
  for (; count >= kSize; count -= kSize, x += kSize) {
    float block[kSize];
    std::copy(x, x + kSize, block);
    turn(block);
    std::copy(block, block + kSize, x);
  }
}

class Nvfp4Codec final : public Codec<Space::host> {
 public:
  explicit Nvfp4Codec(const Params& params) : stochastic_{params.is("rounding", "stochastic")} {
    if (params.is("hadamard", "on")) rotation_.emplace(static_cast<std::uint64_t>(params.integer("seed")));
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = Nvfp4::bytes(n), .scratch_bytes = Workspace{*this, n, {}}.bytes};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    const float* x = gradient.data();
    if (rotation_) {
      const auto rotated = Workspace{*this, n, Scratch<Space::host>{scratch}}.rotated;
      each_tile(queue, n, [&](std::size_t first, std::size_t count) {
        std::copy(x + first, x + first + count, rotated.data() + first);
        rotate<Way::forward>(*rotation_, rotated.data() + first, count);
      });
      x = rotated.data();
    }
    const Nvfp4Unit unit = Nvfp4Unit::of(largest_magnitude(queue, {x, n}));
    std::memcpy(payload.data(), &unit.decode, sizeof unit.decode);
    auto* scales = section<std::uint8_t>(payload, Nvfp4::kScalesOffset);
    auto* words = section<std::uint32_t>(payload, Nvfp4::codes_offset(n));
    if (unit.encode == 0.0F) {
      std::memset(scales, 0, Nvfp4::bytes(n) - Nvfp4::kScalesOffset);
      return;
    }
    std::memset(scales + Nvfp4::blocks(n), 0, Nvfp4::codes_offset(n) - Nvfp4::kScalesOffset - Nvfp4::blocks(n));
    each_tile(queue, n, [&](std::size_t first, std::size_t count) {
      alignas(64) std::array<std::uint32_t, kTile> draws;
      alignas(64) std::array<std::uint8_t, kTile> codes;
      alignas(64) std::array<float, kTileBlocks> factors;
      scale_blocks(unit, x + first, count, scales + first / Nvfp4::kBlock, factors.data());
      if (stochastic_) host::draw_tile(context.key, first, count, draws.data());
      detail::encode_blocks<Nvfp4Values>(x + first, 0, count, Nvfp4::kBlock, factors.data(),
                                         stochastic_ ? draws.data() : nullptr, codes.data());
      host::write_codes<Nvfp4::Element::kBits>(codes.data(), count, words + first / 8);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    expect_length("nvfp4", payload.size(), Nvfp4::bytes(n));
    if (n == 0) return;
    float decode = 0.0F;
    std::memcpy(&decode, payload.data(), sizeof decode);
    const auto* scales = section<std::uint8_t>(payload, Nvfp4::kScalesOffset);
    const auto* words = section<std::uint32_t>(payload, Nvfp4::codes_offset(n));
    each_tile(queue, n, [&](std::size_t first, std::size_t count) {
      alignas(64) std::array<std::uint8_t, kTile> codes;
      alignas(64) std::array<float, kTileBlocks> units;
      if (units_of_blocks(scales + first / Nvfp4::kBlock, Nvfp4::blocks(count), decode, units.data()) >
          Nvfp4::kLargestScale)
        throw Error{Fault::data, "nvfp4 payload: the scale of a block is negative or not a number"};
      host::read_codes<Nvfp4::Element::kBits>(words + first / 8, count, codes.data());
      if (!rotation_) {
        detail::decode_blocks<Nvfp4Values>(codes.data(), 0, count, Nvfp4::kBlock, units.data(), weight,
                                           out.data() + first);
        return;
      }
      alignas(64) std::array<float, kTile> values;
      detail::block_values<Nvfp4Values>(codes.data(), count, Nvfp4::kBlock, units.data(), values.data());
      rotate<Way::inverse>(*rotation_, values.data(), count);
      detail::add_values(values.data(), count, weight, out.data() + first);
    });
  }

  /// An element of a block whose scale is a normal number, which rounding makes larger or smaller by a sixteenth at
  /// most, loses a fifth of itself or a quarter of the step: 1/16 of the largest, and 1/24 for rounding alone; rounded
  /// stochastically twice as much and more. A block with a smaller scale errs more and may be lost, but its elements
  /// are below 4e-5 of the unit's largest. A rotation keeps energies; an element is then as far off as its block
  /// allows.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double in_block = stochastic_ ? 0.37 : 0.07;
    const double nmse = in_block + 1e-9 * static_cast<double>(n);
    const double element = stochastic_ ? 0.5 : 0.2;
    return {.nmse = nmse, .of_largest = rotation_ ? 4.0 * std::sqrt(in_block) : element * 1.001, .absolute = 0x1p-120};
  }

 private:
  struct Workspace {
    Workspace(const Nvfp4Codec& codec, std::size_t n, Scratch<Space::host> pieces)
        : rotated{pieces.take<float>(codec.rotation_ ? n : 0)}, bytes{pieces.bytes()} {}
    HostView<float> rotated;
    std::size_t bytes;
  };

  /// body(first, count) for tiles of whole blocks, on any thread.
  template <class Body>
  static void each_tile(Queue<Space::host> queue, std::size_t n, const Body& body) {
    parallel_for(queue, n, kTile, 1 << 14, [&](std::size_t begin, std::size_t end) {
      for (std::size_t first = begin; first < end; first += kTile) body(first, std::min(kTile, end - first));
    });
  }

  std::optional<Rotation16> rotation_;
  bool stochastic_;
};

constexpr ParamInfo kParams[] = {{.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .search = "nearest|stochastic",
                                  .meaning = "to nearest even, or up with the probability of what is cut off"},
                                 {.name = "hadamard",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "off",
                                  .choices = "off|on",
                                  .search = "off|on",
                                  .meaning = "rotate every block by random signs and a Hadamard transform first"},
                                 {.name = "seed",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "42",
                                  .min = 0,
                                  .max = 9007199254740992.0,
                                  .meaning = "seed of the rotation's random signs, the same on all ranks"}};

}  // namespace

extern constinit const CodecDescriptor nvfp4_codec{
    .name = "nvfp4",
    .summary = "4-bit floats in blocks of 16 with an 8-bit scale each, and a float32 scale for all",
    .reference = "NVIDIA, Pretraining Large Language Models with NVFP4, 2025, arXiv 2509.25149; TransformerEngine",
    .description =
        "Blocks of 16 elements share a scale in E4M3, the scales of all blocks are in units of one float32, and "
        "elements are E2M1: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 and a sign. Compared with mx:format=e2m1, whose scale is a "
        "power of two for 32 elements, a quarter of a bit an element more keeps the largest of a block to a sixteenth "
        "instead of a quarter and rounds the others in finer steps. Blocks whose largest element is below 2e-6 of the "
        "unit's largest become zero. The arithmetic is TransformerEngine's, so scales and codes are its own for the "
        "same blocks. With hadamard=on a Hadamard transform after random signs spreads an outlier over its block; "
        "there the signs are fixed, here they follow from a seed. If any element is not finite, all decode to NaN. In "
        "training the format is used for matrix products, with stochastic rounding for gradients, which is unbiased "
        "but for the largest elements of blocks whose scale was rounded down; here it is what is sent. It pays where "
        "4 bits are wanted without error feedback or a tuned range; sums do not stay in the format, so payloads are "
        "gathered or encoded again at every hop.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .payload = "32 + 4 n + 8 ceil(n/16) bits",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit,
                              .why = "scales of blocks are in units of the largest magnitude"};
        },
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Nvfp4Codec>(p);
    },
};

}  // namespace gradtool
