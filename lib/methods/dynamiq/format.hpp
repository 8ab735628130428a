#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"

// DynamiQ's statistics, widths and quantiser. A group of 16 elements has a scale of its own, a super-group of 256 a
// width, a mean and the scale of its groups' scales.
namespace gradtool::format {

inline constexpr std::size_t kDynamiqGroup = 16;
inline constexpr std::size_t kDynamiqSuper = 256;

/// The values of codes of `Bits` bits, whose highest bit is the sign: (q^r - 1) / (q^top - 1) with q = 1 + 2 epsilon^2
/// for r = 0 to top = 2^(Bits-1) - 1, or r / top.
template <std::uint32_t Bits>
struct DynamiqLevels {
  static constexpr std::uint32_t kTop = (1u << (Bits - 1)) - 1;
  /// The error of normal and Laplacian numbers in groups of 16 is least near these.
  static constexpr double kEpsilon = Bits == 8 ? 0.0625 : 0.3;

  static constexpr DynamiqLevels make(bool uniform) {
    double power = 1.0;  // products and quotients of float64, the same on every processor
    double height[kTop + 1]{};
    for (std::uint32_t r = 0; r <= kTop; ++r) {
      height[r] = uniform ? static_cast<double>(r) : power - 1.0;
      power *= 1.0 + 2.0 * kEpsilon * kEpsilon;
    }
    DynamiqLevels levels{};
    for (std::uint32_t r = 0; r <= kTop; ++r) {
      levels.magnitude[r] = static_cast<float>(height[r] / height[kTop]);
      levels.value[r] = levels.magnitude[r];
      levels.value[r | (kTop + 1)] = -levels.magnitude[r];
    }
    return levels;
  }

  float magnitude[kTop + 1];
  float value[2 * (kTop + 1)];  ///< of every code
};
struct DynamiqTables {
  DynamiqLevels<2> two;
  DynamiqLevels<4> four;
  DynamiqLevels<8> eight;

  static constexpr DynamiqTables make(bool uniform) {
    return {DynamiqLevels<2>::make(uniform), DynamiqLevels<4>::make(uniform), DynamiqLevels<8>::make(uniform)};
  }
};

/// Which super-groups get 8 and 4 bits an element instead of 2. What is compared is the pattern of the sum of squares F
/// as a float32; patterns of sums that are not a number are above all others.
struct DynamiqWidths {
  std::uint32_t eight = 0xffffffffu;
  std::uint32_t four = 0xffffffffu;

  static constexpr std::uint32_t kChoices = 0x7f82u;
  /// Choice i: the threshold of 8 bits is the bfloat16 of pattern i, that of 4 bits 17/512 of it, by which a bit more
  /// takes as much off the error at both. The last choice is 2 bits for all.
  GT_HD static DynamiqWidths choice(std::uint32_t i) {
    if (i + 1 == kChoices) return {};
    return {i << 16, bits_of(float_of(i << 16) * (17.0f / 512.0f))};
  }
  [[nodiscard]] GT_HD std::uint32_t of(std::uint16_t sum_of_squares) const {
    const std::uint32_t pattern = static_cast<std::uint32_t>(sum_of_squares) << 16;
    return pattern >= eight ? 8 : pattern >= four ? 4 : 2;
  }
};

/// bfloat16 of a magnitude, rounded up to at most the largest number; 0x7fc0 where it is not finite.
GT_HD inline std::uint16_t dynamiq_scale(float magnitude) {
  const std::uint32_t bits = bits_of(magnitude);
  if (bits >= 0x7f800000u) return 0x7fc0u;
  const std::uint32_t up = (bits + 0xffffu) >> 16;
  return static_cast<std::uint16_t>(up < 0x7f7fu ? up : 0x7f7fu);
}
/// A group's scale on the grid of its super-group's, 255 steps, rounded at random.
GT_HD inline std::uint8_t dynamiq_group_code(float magnitude, float scale, std::uint32_t draw) {
  if (!(scale > 0.0f)) return 0;
  const float steps = magnitude / scale * 255.0f;
  const auto whole = static_cast<std::uint32_t>(steps);
  const std::uint32_t code = whole + (uniform(draw) < steps - static_cast<float>(whole) ? 1u : 0u);
  return static_cast<std::uint8_t>(code < 255u ? code : 255u);
}
GT_HD inline float dynamiq_group_scale(std::uint8_t code, float scale) {
  return static_cast<float>(code) / 255.0f * scale;
}

/// The code of x between levels r and r + 1, rounded with u; `share` is its share of the largest magnitude of its
/// group.
template <std::uint32_t Bits>
GT_HD inline std::uint32_t dynamiq_code(float x, float share, float u, std::uint32_t r, float low, float high) {
  return (r + (u * (high - low) < share - low ? 1u : 0u)) | bits_of(x) >> 31 << (Bits - 1);
}

/// The number that rounds an element: uniform on [0, 1), and over the `ranks`, whose `place` in a permutation differ,
/// one in each of as many equal parts. `shared` is a draw that all ranks share, `own` one that they do not.
GT_HD inline float dynamiq_uniform(std::uint32_t shared, std::uint32_t own, std::uint32_t place, std::uint32_t ranks) {
  const std::uint32_t shifted = place + product(shared & 0xffffff00u, ranks).high;
  const std::uint32_t part = shifted < ranks ? shifted : shifted - ranks;
  const float u = (static_cast<float>(part) + uniform(own)) / static_cast<float>(ranks);
  return u < 0x1.fffffep-1f ? u : 0x1.fffffep-1f;
}

}  // namespace gradtool::format
