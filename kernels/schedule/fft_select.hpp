#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/schedule/warp.hpp"

/// Selection of the K strongest bins by warps: the digits, the threshold and the order among equals are those of
/// kernels/host/largest.hpp, so CPU and GPU keep the same bins.
namespace gradtool::schedule {

/// Keys are 31-bit patterns, looked at in digits of 11, 11 and 9 bits from the top.
inline constexpr std::uint32_t kDigits = 3;
inline constexpr std::uint32_t kCounters = 2048;
GT_HD constexpr std::uint32_t digit_width(std::uint32_t digit) {
  return digit < 2 ? 11u : 9u;
}
GT_HD constexpr std::uint32_t digit_shift(std::uint32_t digit) {
  return digit == 0 ? 20u : digit == 1 ? 9u : 0u;
}

/// The pattern of re^2 + im^2 that selection sorts by; NaN above infinity, all NaN alike.
GT_HD inline std::uint32_t fft_key(float re, float im) {
  const std::uint32_t pattern = law::bits_of(re * re + im * im) & 0x7fffffffu;
  return pattern > 0x7f800000u ? 0x7fc00000u : pattern;
}

/// The digits of the threshold found so far, and how many of the keys that begin with them are wanted. After the last
/// digit `prefix` is the threshold and `left` the number of keys equal to it that are taken.
struct Digits {
  std::uint32_t prefix = 0;
  std::uint32_t left = 0;
};

/// True when `key` counts for this digit.
GT_HD inline bool has_prefix(std::uint32_t key, std::uint32_t digit, std::uint32_t prefix) {
  return digit == 0 || key >> (digit_shift(digit) + digit_width(digit)) == prefix;
}
GT_HD inline std::uint32_t digit_of(std::uint32_t key, std::uint32_t digit) {
  return key >> digit_shift(digit) & ((1u << digit_width(digit)) - 1u);
}

/// Finds the next digit from the counts of its values and stores the longer prefix in `next`. The counts add up to at
/// least before.left, which is at least 1. Every lane walks over its own piece of the histogram.
template <class Warp>
GT_SCHEDULE void find_digit(const Warp& warp, const std::uint32_t* histogram, std::uint32_t digit, Digits before,
                            Digits* next) {
  const std::uint32_t per_lane = (1u << digit_width(digit)) / kLanes;
  typename Warp::template Own<std::uint32_t> own;
  warp.each([&](std::uint32_t lane) {
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < per_lane; ++i) sum += histogram[lane * per_lane + i];
    own[lane] = sum;
  });
  const std::uint32_t total = warp.sum(own);
  const auto below = warp.sum_before(own);
  warp.each([&](std::uint32_t lane) {
    const std::uint32_t above = total - below[lane] - own[lane];
    if (above >= before.left || before.left - above > own[lane]) return;
    std::uint32_t left = before.left - above;
    std::uint32_t value = lane * per_lane + per_lane - 1;
    for (; histogram[value] < left; --value) left -= histogram[value];
    *next = {before.prefix << digit_width(digit) | value, left};
  });
}

/// A tile is what a warp takes at a time: 32 words of the bitmap.
inline constexpr std::uint32_t kSelectWords = 32;
inline constexpr std::uint32_t kSelectBins = 32 * kSelectWords;
GT_HD constexpr std::size_t select_tiles_of(std::size_t bins) {
  return (bins + kSelectBins - 1) / kSelectBins;
}

/// Keys of a tile above the threshold (in the upper 32 bits) and equal to it (in the lower): they add without carry.
template <class Warp>
GT_SCHEDULE std::uint64_t count_tile(const Warp& warp, const std::uint32_t* keys, std::size_t bins, std::size_t tile,
                                     std::uint32_t threshold) {
  typename Warp::template Own<std::uint32_t> above;
  typename Warp::template Own<std::uint32_t> equal;
  warp.each([&](std::uint32_t lane) {
    std::uint32_t more = 0;
    std::uint32_t same = 0;
    const std::size_t first = tile * kSelectBins + lane;
    for (std::uint32_t word = 0; word < kSelectWords && first + 32 * word < bins; ++word) {
      const std::uint32_t key = keys[first + 32 * word];
      more += key > threshold ? 1u : 0u;
      same += key == threshold ? 1u : 0u;
    }
    above[lane] = more;
    equal[lane] = same;
  });
  const std::uint32_t more = warp.sum(above);
  return static_cast<std::uint64_t>(more) << 32 | warp.sum(equal);
}

/// What a tile's compaction reads and writes; all arrays whole, `spectrum` and `kept` as pairs.
struct Compaction {
  const std::uint32_t* keys;
  const float* spectrum;
  std::size_t bins;
  Digits cut;
  std::uint32_t* bitmap;
  float* kept;
};

/// Writes a tile's words of the bitmap and appends its kept components at their place. `before` is the sum of
/// count_tile over the tiles in front. Returns the largest pattern, without signs, of the components kept here.
template <class Warp>
GT_SCHEDULE std::uint32_t compact_tile(const Warp& warp, const Compaction& at, std::size_t tile, std::uint64_t before) {
  typename Warp::template Own<std::uint32_t> status;  // lane w keeps word w
  typename Warp::template Own<std::uint32_t> largest;
  typename Warp::template Own<std::uint32_t> is_above;
  typename Warp::template Own<std::uint32_t> is_equal;
  typename Warp::template Own<std::uint32_t> is_taken;
  auto above = static_cast<std::uint32_t>(before >> 32);
  auto equal = static_cast<std::uint32_t>(before);
  const std::size_t first = tile * kSelectBins;
  warp.each([&](std::uint32_t lane) {
    status[lane] = 0;
    largest[lane] = 0;
  });
  for (std::uint32_t word = 0; word < kSelectWords && first + 32 * word < at.bins; ++word) {
    warp.each([&](std::uint32_t lane) {
      const std::size_t bin = first + 32 * word + lane;
      const std::uint32_t key = bin < at.bins ? at.keys[bin] : 0u;
      is_above[lane] = bin < at.bins && key > at.cut.prefix ? 1u : 0u;
      is_equal[lane] = bin < at.bins && key == at.cut.prefix ? 1u : 0u;
    });
    const std::uint32_t all_above = warp.ballot(is_above);
    const std::uint32_t all_equal = warp.ballot(is_equal);
    warp.each([&](std::uint32_t lane) {
      const std::uint32_t ties = equal + bits_set(all_equal & lanes_below(lane));
      is_taken[lane] = is_above[lane] != 0 || (is_equal[lane] != 0 && ties < at.cut.left) ? 1u : 0u;
      if (is_taken[lane] == 0) return;
      const std::uint32_t stronger = above + bits_set(all_above & lanes_below(lane));
      const std::size_t position = std::size_t{stronger} + (ties < at.cut.left ? ties : at.cut.left);
      const Pair pair = reinterpret_cast<const Pair*>(at.spectrum)[first + 32 * word + lane];
      reinterpret_cast<Pair*>(at.kept)[position] = pair;
      const std::uint32_t re = law::bits_of(pair.re) & 0x7fffffffu;
      const std::uint32_t im = law::bits_of(pair.im) & 0x7fffffffu;
      const std::uint32_t larger = re > im ? re : im;
      largest[lane] = larger > largest[lane] ? larger : largest[lane];
    });
    const std::uint32_t taken = warp.ballot(is_taken);
    warp.each([&](std::uint32_t lane) {
      if (lane == word) status[lane] = taken;
    });
    above += bits_set(all_above);
    equal += bits_set(all_equal);
  }
  warp.each([&](std::uint32_t lane) {
    if (first + 32 * lane < at.bins) at.bitmap[first / 32 + lane] = status[lane];
  });
  return warp.max(largest);
}

}  // namespace gradtool::schedule
