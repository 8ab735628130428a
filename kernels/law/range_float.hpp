#pragma once

#include <bit>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// The N-bit range-based float of the FFT paper (Wang et al., HPDC 2020, section 3.1.2, Alg. 1): keep m mantissa bits
/// of the binary32 pattern and number the patterns from that of eps on. Code 0 is zero, 1..P are the positives in
/// ascending order (code 1 = eps), P+1 .. 2^N-1 the negatives, most negative last. Codes cover [min, max] and nothing
/// outside.
struct RangeFloat {
  std::uint32_t bits = 0;       ///< N
  std::uint32_t shift = 0;      ///< s = 23 - m, mantissa bits dropped
  std::uint32_t pbase = 0;      ///< truncated pattern of eps
  std::uint32_t positives = 0;  ///< P
  std::uint32_t negatives = 0;  ///< 2^N - 1 - P
  std::uint32_t half_step = 0;  ///< 0: truncate, as in the paper; 1 << (s-1): round half up

  /// The closed form for eps (so that 2^N codes exactly cover the range):
  /// pbase = ceil((bits(max)>>s + bits(|min|)>>s - 2^N + 3) / 2). `valid` is false when eps would not be a normal float
  /// or one of the signs would have no code: then N is too large for so small an m.
  struct Made;
  static constexpr Made make(std::uint32_t bits, std::uint32_t mantissa, float max, float min_magnitude, bool nearest);

  [[nodiscard]] GT_HD std::uint32_t encode(float x) const {
    const std::uint32_t pattern = bits_of(x);
    const std::uint32_t magnitude = ((pattern & 0x7fffffffu) + half_step) >> shift;
    const std::uint32_t j = magnitude - pbase + 1;  // wraps when below eps; that case is selected away
    const bool negative = (pattern >> 31) != 0;
    const std::uint32_t limit = negative ? negatives : positives;
    const std::uint32_t code = (negative ? positives : 0u) + (j < limit ? j : limit);
    return magnitude < pbase ? 0u : code;
  }

  [[nodiscard]] GT_HD float decode(std::uint32_t code) const {
    const bool negative = code > positives;
    const std::uint32_t j = code - (negative ? positives : 0u);
    const std::uint32_t pattern = (j + pbase - 1) << shift | (negative ? 0x80000000u : 0u);
    return code == 0 ? 0.0f : float_of(pattern);
  }

  /// Smallest positive value.
  [[nodiscard]] GT_HD float eps() const { return float_of(pbase << shift); }
};

struct RangeFloat::Made {
  RangeFloat format;
  bool valid = false;
};

/// The formats of one number of bits by their m, and which of them there are.
struct RangeFormats {
  static constexpr std::uint32_t kMantissas = 16;
  RangeFloat format[kMantissas] = {};
  std::uint32_t there = 0;  ///< bit m: format[m] may be used

  constexpr void add(std::uint32_t mantissa, const RangeFloat& one) {
    format[mantissa] = one;
    there |= 1u << mantissa;
  }
  [[nodiscard]] static constexpr RangeFormats only(std::uint32_t mantissa, const RangeFloat& one) {
    RangeFormats formats;
    formats.add(mantissa, one);
    return formats;
  }
  [[nodiscard]] GT_HD bool has(std::uint32_t mantissa) const {
    return mantissa < kMantissas && (there >> mantissa & 1u) != 0;
  }
};

constexpr RangeFloat::Made RangeFloat::make(std::uint32_t bits, std::uint32_t mantissa, float max, float min_magnitude,
                                            bool nearest) {
  RangeFloat f;
  f.bits = bits;
  f.shift = 23 - mantissa;
  const auto top = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(max) >> f.shift);
  const auto bottom = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(min_magnitude) >> f.shift);
  const std::int64_t codes = std::int64_t{1} << bits;
  const std::int64_t sum = top + bottom - codes + 3;
  if (sum < 2) return {};
  const std::int64_t base = (sum + 1) / 2;
  const std::int64_t positives = top - base + 1;
  const std::int64_t negatives = codes - 1 - positives;
  if (base < (std::int64_t{1} << mantissa) || positives < 1 || negatives < 1) return {};
  f.pbase = static_cast<std::uint32_t>(base);
  f.positives = static_cast<std::uint32_t>(positives);
  f.negatives = static_cast<std::uint32_t>(negatives);
  f.half_step = nearest && f.shift > 0 ? 1u << (f.shift - 1) : 0u;
  return {f, true};
}

}  // namespace gradtool::law
