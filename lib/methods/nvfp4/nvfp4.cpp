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
using format::Nvfp4Layout;
using format::Nvfp4Rounding;
using format::Nvfp4Unit;
using format::Rotation128;
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

/// For MS-EDEN: codes of whole groups of 128 rotated elements with their factors become those of the group's scales,
/// corrected. A draw for each block.
GT_SIMD_CLONES void correct_scales(const float* x, std::size_t groups, const float* factors, const std::uint8_t* codes,
                                   const std::uint32_t* draws, std::uint8_t* scales) {
  constexpr std::size_t kBlocks = Nvfp4::kGroup / Nvfp4::kBlock;
  for (std::size_t g = 0; g < groups; ++g) {
    format::EdenSums sums[kBlocks];
    for (std::size_t b = 0; b < kBlocks; ++b) {
      const std::size_t block = g * kBlocks + b;
      float scaled[Nvfp4::kBlock];
      float rounded[Nvfp4::kBlock];
      for (std::size_t i = 0; i < Nvfp4::kBlock; ++i) {
        scaled[i] = x[block * Nvfp4::kBlock + i] * factors[block];
        rounded[i] = Nvfp4::Element::decode(codes[block * Nvfp4::kBlock + i]);
      }
      const float scale = Nvfp4::BlockScale::decode(scales[block]);
      sums[b] = format::eden_sums(scaled, rounded).times(scale * scale);
    }
    for (std::size_t half = kBlocks / 2; half > 0; half /= 2) {
      for (std::size_t b = 0; b < half; ++b) sums[b] = sums[b] + sums[b + half];
    }
    const float correction = sums[0].correction();
    for (std::size_t block = g * kBlocks; block < (g + 1) * kBlocks; ++block)
      scales[block] = format::corrected_scale(scales[block], correction, draws[block]);
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
template <Way Direction, class Rotation>
GT_SIMD_CLONES void rotate(const Rotation& rotation, float* x, std::size_t count) {
  const auto turn = [&](auto& block) GT_INLINED {
    if constexpr (Direction == Way::forward)
      rotation.forward(block);
    else
      rotation.inverse(block);
  };
  constexpr std::size_t kSize = Rotation::kSize;
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
  explicit Nvfp4Codec(const Params& params) : rounding_{format::nvfp4_rounding(params)} {
    if (!eden() && params.is("hadamard", "on")) rotation_.emplace(static_cast<std::uint64_t>(params.integer("seed")));
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).bytes(), .scratch_bytes = planned<Workspace>(*this, n)};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    const Nvfp4Layout places = layout(n);
    const float* x = gradient.data();
    if (eden()) {
      const std::uint32_t seed = format::eden_seed(context.key, n);
      std::memcpy(payload.data() + sizeof(float), &seed, sizeof seed);
      x = rotated(queue, Rotation128{seed}, gradient, scratch);
    } else if (rotation_) {
      x = rotated(queue, *rotation_, gradient, scratch);
    }
    const Nvfp4Unit unit = Nvfp4Unit::of(largest_magnitude(queue, {x, n}), rounding_);
    std::memcpy(payload.data(), &unit.decode, sizeof unit.decode);
    auto* scales = section<std::uint8_t>(payload, places.scales_offset());
    auto* words = section<std::uint32_t>(payload, places.codes_offset());
    if (unit.encode == 0.0F) {
      std::memset(scales, 0, places.bytes() - places.scales_offset());
      return;
    }
    const std::size_t scales_end = places.scales_offset() + Nvfp4::blocks(n);
    std::memset(payload.data() + scales_end, 0, places.codes_offset() - scales_end);
    each_tile(queue, n, [&](std::size_t first, std::size_t count) {
      alignas(64) std::array<std::uint8_t, kTile> codes;
      if (eden())
        encode_eden(unit, x + first, first, count, context.key, scales + first / Nvfp4::kBlock, codes.data());
      else
        encode_plain(unit, x + first, first, count, context.key, scales + first / Nvfp4::kBlock, codes.data());
      host::write_codes<Nvfp4::Element::kBits>(codes.data(), count, words + first / 8);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const Nvfp4Layout places = layout(out.size());
    expect_length("nvfp4", payload.size(), places.bytes());
    if (out.empty()) return;
    float decode = 0.0F;
    std::memcpy(&decode, payload.data(), sizeof decode);
    if (eden()) {
      std::uint32_t seed = 0;
      std::memcpy(&seed, payload.data() + sizeof decode, sizeof seed);
      const Rotation128 rotation{seed};
      return decode_tiles(queue, payload, decode, &rotation, weight, out);
    }
    decode_tiles(queue, payload, decode, rotation_ ? &*rotation_ : nullptr, weight, out);
  }

  /// An element of a block whose scale is a normal number, which rounding makes larger or smaller by a sixteenth at
  /// most, loses a fifth of itself or a quarter of the step: 1/16 of the largest, and 1/24 for rounding alone; rounded
  /// stochastically twice as much and more. A block with a smaller scale errs more and may be lost, but its elements
  /// are below 4e-5 of the unit's largest. A rotation keeps energies; an element is then as far off as its block
  /// allows. Rounded to nearest a group of MS-EDEN loses a share of 0.07 as well, which makes the angle that its
  /// correction leaves 0.274 in tangent, and its scales are off by an eighth at most: (0.274 + 0.125 * 1.04)^2 = 0.17.
  /// Elements behind the last group are rounded stochastically.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const bool whole_groups = eden() && n % Nvfp4::kGroup == 0;
    const double in_block = rounding_ == Nvfp4Rounding::nearest ? 0.07 : whole_groups ? 0.17 : 0.37;
    const double nmse = in_block + 1e-9 * static_cast<double>(n);
    const double element = rounding_ == Nvfp4Rounding::nearest ? 0.2 : 0.5;
    const auto together = static_cast<double>(eden() ? Nvfp4::kGroup : Nvfp4::kBlock);
    const bool rotates = eden() || rotation_.has_value();
    return {
        .nmse = nmse, .of_largest = rotates ? std::sqrt(together * in_block) : element * 1.001, .absolute = 0x1p-120};
  }

 private:
  struct Workspace {
    Workspace(const Nvfp4Codec& codec, std::size_t n, Scratch<Space::host> pieces)
        : rotated{pieces.take<float>(codec.rotation_ || codec.eden() ? n : 0)} {}
    HostView<float> rotated;
  };

  [[nodiscard]] bool eden() const { return rounding_ == Nvfp4Rounding::eden; }
  [[nodiscard]] Nvfp4Layout layout(std::size_t n) const { return {n, eden()}; }

  /// A copy of the gradient in scratch memory, its whole blocks rotated.
  template <class Rotation>
  const float* rotated(Queue<Space::host> queue, const Rotation& rotation, HostView<const float> gradient,
                       HostView<std::byte> scratch) const {
    const auto out = Workspace{*this, gradient.size(), Scratch<Space::host>{scratch}}.rotated;
    each_tile(queue, gradient.size(), [&](std::size_t first, std::size_t count) {
      std::copy(gradient.data() + first, gradient.data() + first + count, out.data() + first);
      rotate<Way::forward>(rotation, out.data() + first, count);
    });
    return out.data();
  }

  /// Scales and codes of `count` elements, the first of which has the number `first` among those of the unit.
  void encode_plain(const Nvfp4Unit& unit, const float* x, std::size_t first, std::size_t count,
                    const format::DrawKey& key, std::uint8_t* scales, std::uint8_t* codes) const {
    alignas(64) std::array<std::uint32_t, kTile> draws;
    alignas(64) std::array<float, kTileBlocks> factors;
    const bool stochastic = rounding_ == Nvfp4Rounding::stochastic;
    scale_blocks(unit, x, count, scales, factors.data());
    if (stochastic) host::draw_tile(key, first, count, draws.data());
    detail::encode_blocks<Nvfp4Values>(x, 0, count, Nvfp4::kBlock, factors.data(), stochastic ? draws.data() : nullptr,
                                       codes);
  }

  /// Has the contract of encode_plain for MS-EDEN. Elements behind the last whole group are not rotated, and rounded
  /// stochastically.
  static void encode_eden(const Nvfp4Unit& unit, const float* x, std::size_t first, std::size_t count,
                          const format::DrawKey& key, std::uint8_t* scales, std::uint8_t* codes) {
    alignas(64) std::array<std::uint32_t, kTileBlocks> draws;
    alignas(64) std::array<float, kTileBlocks> factors;
    const std::size_t whole = count / Nvfp4::kGroup * Nvfp4::kGroup;
    scale_blocks(unit, x, whole, scales, factors.data());
    detail::encode_blocks<Nvfp4Values>(x, 0, whole, Nvfp4::kBlock, factors.data(), nullptr, codes);
    host::draw_tile(key, first / Nvfp4::kBlock, Nvfp4::blocks(whole), draws.data());
    correct_scales(x, whole / Nvfp4::kGroup, factors.data(), codes, draws.data(), scales);
    if (whole == count) return;
    for (std::size_t at = whole; at < count; at += Nvfp4::kBlock) {
      const std::size_t block = at / Nvfp4::kBlock;
      const auto scaled = unit.scaled_up(detail::largest_magnitude(x + at, std::min(Nvfp4::kBlock, count - at)));
      scales[block] = scaled.stored;
      factors[block] = scaled.factor;
    }
    static_assert(kTileBlocks >= Nvfp4::kGroup, "draws of the elements behind the last group fit");
    host::draw_tile(key, first + whole, count - whole, draws.data());
    detail::encode_blocks<Nvfp4Values>(x + whole, 0, count - whole, Nvfp4::kBlock,
                                       factors.data() + whole / Nvfp4::kBlock, draws.data(), codes + whole);
  }

  /// `rotation` is null where values are not rotated back.
  template <class Rotation>
  void decode_tiles(Queue<Space::host> queue, HostView<const std::byte> payload, float decode, const Rotation* rotation,
                    float weight, HostView<float> out) const {
    const Nvfp4Layout places = layout(out.size());
    const auto* scales = section<std::uint8_t>(payload, places.scales_offset());
    const auto* words = section<std::uint32_t>(payload, places.codes_offset());
    each_tile(queue, out.size(), [&](std::size_t first, std::size_t count) {
      alignas(64) std::array<std::uint8_t, kTile> codes;
      alignas(64) std::array<float, kTileBlocks> units;
      if (units_of_blocks(scales + first / Nvfp4::kBlock, Nvfp4::blocks(count), decode, units.data()) >
          Nvfp4::kLargestScale)
        throw Error{Fault::data, "nvfp4 payload: the scale of a block is negative or not a number"};
      host::read_codes<Nvfp4::Element::kBits>(words + first / 8, count, codes.data());
      if (rotation == nullptr) {
        detail::decode_blocks<Nvfp4Values>(codes.data(), 0, count, Nvfp4::kBlock, units.data(), weight,
                                           out.data() + first);
        return;
      }
      alignas(64) std::array<float, kTile> values;
      detail::block_values<Nvfp4Values>(codes.data(), count, Nvfp4::kBlock, units.data(), values.data());
      rotate<Way::inverse>(*rotation, values.data(), count);
      detail::add_values(values.data(), count, weight, out.data() + first);
    });
  }

  /// body(first, count) for tiles of whole blocks, on any thread.
  template <class Body>
  static void each_tile(Queue<Space::host> queue, std::size_t n, const Body& body) {
    parallel_for(queue, n, kTile, 1 << 14, [&](std::size_t begin, std::size_t end) {
      for (std::size_t first = begin; first < end; first += kTile) body(first, std::min(kTile, end - first));
    });
  }

  std::optional<Rotation16> rotation_;
  Nvfp4Rounding rounding_;
};

constexpr ParamInfo kParams[] = {
    choice_param("rounding", "nearest", "nearest|stochastic|eden",
                 "to nearest even, up with the probability of what is cut off, or MS-EDEN")
        .searched("nearest|stochastic"),
    choice_param("hadamard", "off", "off|on",
                 "rotate every block by random signs and a Hadamard transform first; eden rotates by itself")
        .searched("off|on"),
    integer_param("seed", "42", {0, 9007199254740992.0}, "seed of the rotation's random signs, the same on all ranks")};

}  // namespace

extern constinit const CodecDescriptor nvfp4_codec{
    .name = "nvfp4",
    .summary = "sends 4-bit floats, with an 8-bit scale for every 16 and a float32 scale for all",
    .reference = "NVIDIA, Pretraining Large Language Models with NVFP4, 2025, arXiv 2509.25149; TransformerEngine",
    .params = kParams,
    .payload = "32 + 4 n + 8 ceil(n/16) bits; rounding=eden: 32 more",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit,
                              .why = "scales of blocks are in units of the largest magnitude"};
        },
    .make_host = make_method_codec<Space::host, Nvfp4Codec>,
};

}  // namespace gradtool
