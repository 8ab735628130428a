#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"

/// The payload of the fft codec and the arithmetic on single numbers, for CPU and GPU alike (Wang et al., HPDC 2020).
/// README.md describes the bytes.
namespace gradtool::format {

/// Gradients of fewer elements are sent as float32 without a header.
inline constexpr std::size_t kFftSmallest = 4;

/// How n elements are cut for the transform. The pieces are `chunks` chunks of `length` elements each and, where
/// elements are left over, one shorter piece, the tail. The bins (complex frequencies) of all pieces form one row.
struct FftShape {
  std::size_t length = 0;  ///< elements of a chunk, L
  std::size_t chunks = 0;  ///< number of chunks, C
  std::size_t tail = 0;    ///< elements of the tail; 0 when there is none

  /// A tail of fewer than kFftSmallest elements is padded with zeros to that length.
  [[nodiscard]] static constexpr FftShape of(std::size_t n, std::size_t chunk) {
    if (n <= chunk) return {n, 1, 0};
    const std::size_t left = n % chunk;
    return {chunk, n / chunk, left == 0 || left > kFftSmallest ? left : kFftSmallest};
  }
  [[nodiscard]] GT_HD constexpr std::size_t bins_per_chunk() const { return length / 2 + 1; }
  [[nodiscard]] GT_HD constexpr std::size_t tail_bins() const { return tail == 0 ? 0 : tail / 2 + 1; }
  [[nodiscard]] GT_HD constexpr std::size_t bins() const { return chunks * bins_per_chunk() + tail_bins(); }

  [[nodiscard]] constexpr std::size_t pieces() const { return chunks + (tail == 0 ? 0 : 1); }
  [[nodiscard]] constexpr std::size_t piece_length(std::size_t piece) const { return piece < chunks ? length : tail; }
  [[nodiscard]] constexpr std::size_t piece_bins(std::size_t piece) const { return piece_length(piece) / 2 + 1; }
  [[nodiscard]] GT_HD constexpr std::size_t first_bin(std::size_t piece) const { return piece * bins_per_chunk(); }
};

/// 1/sqrt(length): an unnormalised transform of this length times this is unitary.
[[nodiscard]] inline float unitary_factor(std::size_t length) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(length)));
}

/// First 32 bytes of a payload; all numbers are little-endian.
struct FftHeader {
  std::uint64_t bytes = 0;      ///< size of the payload, this header included
  std::uint32_t kept = 0;       ///< number of bins sent, K
  std::uint32_t bins = 0;       ///< number of bins of all pieces, B
  float scale = 0.0F;           ///< a decoded number times this is the unitary coefficient; NaN: input was not finite
  std::uint32_t pbase = 0;      ///< RangeFloat::pbase; 0 when bits is 32
  std::uint32_t positives = 0;  ///< RangeFloat::positives; 0 when bits is 32
  std::uint16_t bits = 0;       ///< bits of a code, N; 32 for plain float32
  std::uint16_t mantissa = 0;   ///< mantissa bits of a code, m
};
static_assert(sizeof(FftHeader) == 32);

/// Sizes and offsets of a payload's sections behind the header: the bitmap of the kept bins, which is absent when every
/// bin is kept, and the packed codes.
struct FftLayout {
  std::size_t bins;
  std::size_t kept;
  std::uint32_t bits;

  [[nodiscard]] GT_HD constexpr bool has_bitmap() const { return kept != bins; }
  [[nodiscard]] GT_HD constexpr std::size_t bitmap_words() const { return has_bitmap() ? (bins + 31) / 32 : 0; }
  [[nodiscard]] GT_HD constexpr std::size_t code_words() const { return packed_words(2 * kept, bits); }
  [[nodiscard]] GT_HD constexpr std::size_t codes_offset() const { return sizeof(FftHeader) + 4 * bitmap_words(); }
  [[nodiscard]] GT_HD constexpr std::size_t bytes() const { return codes_offset() + 4 * code_words(); }
};

/// 1/x rounded to nearest, or the next float32 above it where x times that would be below 1. x is at least
/// FftScaling::kSmallestPeak and finite.
[[nodiscard]] GT_HD inline float reciprocal_up(float x) {
  const float nearest = 1.0f / x;
  return x * nearest < 1.0f ? float_of(bits_of(nearest) + 1) : nearest;
}

/// The two factors between an unnormalised component of the spectrum and the number that is coded.
struct FftScaling {
  float factor = 0.0F;  ///< component times this is the number that is coded
  float scale = 0.0F;   ///< FftHeader::scale

  /// Everything is sent as zero if the largest magnitude lies below this, because its inverse might overflow.
  static constexpr float kSmallestPeak = 0x1p-100F;

  /// `largest` is the largest magnitude among the kept components, as a binary32 pattern without sign; `unit` is
  /// unitary_factor(L). With `to_peak` the largest component becomes 1 or just above, so that truncation leaves it the
  /// code of 1, the range of the number format; otherwise the unitary coefficients themselves are coded. A component
  /// that is not finite gives a scale of NaN.
  [[nodiscard]] GT_HD static FftScaling of(std::uint32_t largest, float unit, bool to_peak) {
    const bool finite = largest < 0x7f800000u;
    if (!to_peak || !finite) return {unit, finite ? 1.0f : float_of(0x7fc00000u)};
    const float peak = float_of(largest);
    if (peak < kSmallestPeak) return {0.0f, 0.0f};
    return {reciprocal_up(peak), peak * unit};
  }
};

/// The N-bit range-based float of the FFT paper (section 3.1.2, Alg. 1). It keeps m mantissa bits of a binary32 pattern
/// and numbers the patterns from that of eps, the smallest positive value, on. Code 0 is zero, codes 1 to P are the
/// positive values in ascending order (code 1 is eps), codes P+1 to 2^N-1 the negative values by ascending magnitude.
struct RangeFloat {
  std::uint32_t bits = 0;       ///< N
  std::uint32_t shift = 0;      ///< 23 - m, the mantissa bits dropped
  std::uint32_t pbase = 0;      ///< pattern of eps >> shift
  std::uint32_t positives = 0;  ///< P
  std::uint32_t negatives = 0;  ///< 2^N - 1 - P
  std::uint32_t half_step = 0;  ///< added before the shift: 0 truncates, as in the paper; 1 << (shift-1) rounds

  /// The format whose codes cover exactly [-min_magnitude, max], by the closed form for eps:
  /// pbase = ceil((bits(max)>>s + bits(min_magnitude)>>s - 2^N + 3) / 2) with s = shift. Empty when eps would not be a
  /// normal float or one of the signs would have no code: N is then too large for so small an m.
  [[nodiscard]] static constexpr std::optional<RangeFloat> make(std::uint32_t bits, std::uint32_t mantissa, float max,
                                                                float min_magnitude, bool nearest) {
    RangeFloat format;
    format.bits = bits;
    format.shift = 23 - mantissa;
    const auto top = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(max) >> format.shift);
    const auto bottom = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(min_magnitude) >> format.shift);
    const std::int64_t codes = std::int64_t{1} << bits;
    const std::int64_t sum = top + bottom - codes + 3;
    if (sum < 2) return {};
    const std::int64_t base = (sum + 1) / 2;
    const std::int64_t positives = top - base + 1;
    const std::int64_t negatives = codes - 1 - positives;
    if (base < (std::int64_t{1} << mantissa) || positives < 1 || negatives < 1) return {};
    format.pbase = static_cast<std::uint32_t>(base);
    format.positives = static_cast<std::uint32_t>(positives);
    format.negatives = static_cast<std::uint32_t>(negatives);
    format.half_step = nearest && format.shift > 0 ? 1u << (format.shift - 1) : 0u;
    return format;
  }

  /// Magnitudes below eps become code 0; those above the range become the largest code of their sign.
  [[nodiscard]] GT_HD std::uint32_t encode(float x) const {
    const std::uint32_t pattern = bits_of(x);
    const std::uint32_t magnitude = ((pattern & 0x7fffffffu) + half_step) >> shift;
    const std::uint32_t rank = magnitude - pbase + 1;  // wraps below eps, where the last line selects 0
    const bool negative = (pattern >> 31) != 0;
    const std::uint32_t limit = negative ? negatives : positives;
    const std::uint32_t code = (negative ? positives : 0u) + (rank < limit ? rank : limit);
    return magnitude < pbase ? 0u : code;
  }

  [[nodiscard]] GT_HD float decode(std::uint32_t code) const {
    const bool negative = code > positives;
    const std::uint32_t rank = code - (negative ? positives : 0u);
    const std::uint32_t pattern = (rank + pbase - 1) << shift | (negative ? 0x80000000u : 0u);
    return code == 0 ? 0.0f : float_of(pattern);
  }

  /// The smallest positive value.
  [[nodiscard]] GT_HD float eps() const { return float_of(pbase << shift); }
};

/// The number formats that a payload may have, by their m: a payload's header says which of them it uses.
struct RangeFormats {
  static constexpr std::uint32_t kMantissas = 16;
  RangeFloat format[kMantissas] = {};
  std::uint32_t valid = 0;  ///< bit m is set when format[m] may be used

  constexpr void add(std::uint32_t mantissa, const RangeFloat& added) {
    format[mantissa] = added;
    valid |= 1u << mantissa;
  }
  [[nodiscard]] static constexpr RangeFormats only(std::uint32_t mantissa, const RangeFloat& single) {
    RangeFormats formats;
    formats.add(mantissa, single);
    return formats;
  }
  [[nodiscard]] GT_HD constexpr bool has(std::uint32_t mantissa) const {
    return mantissa < kMantissas && (valid >> mantissa & 1u) != 0;
  }
};

/// precision=fp16: rounds numbers to what is left of them when they are held in binary16 after scaling by a power of
/// two, that is f16(x 2^s) 2^-s with rounding to nearest even.
struct HalfRounding {
  /// The scaled input of the transform stays below 2^8, which leaves 2^8 for the sum to grow; its scaled output stays
  /// below 2^15, so that nothing overflows.
  static constexpr int kInputTop = 8;
  static constexpr int kOutputTop = 15;

  float scale = 1.0F;    ///< 2^s; 0 when nothing is to be rounded
  float inverse = 1.0F;  ///< 2^-s

  /// `largest` is the largest magnitude of the numbers, as a binary32 pattern without sign. s brings it into
  /// [2^(top-1), 2^top), top <= 15 and |s| <= 120; a subnormal maximum stays below that. Nothing is rounded when all
  /// numbers are zero or when one is not finite.
  [[nodiscard]] GT_HD static HalfRounding of(std::uint32_t largest, int top) {
    if (largest == 0 || largest >= 0x7f800000U) return {0.0F, 0.0F};
    int shift = top - 1 - (static_cast<int>(largest >> 23) - 127);
    shift = shift < -120 ? -120 : shift > 120 ? 120 : shift;
    return {float_of(static_cast<std::uint32_t>(shift + 127) << 23),
            float_of(static_cast<std::uint32_t>(127 - shift) << 23)};
  }
  [[nodiscard]] GT_HD float round(float x) const {
    return scale == 0.0F ? x : f32_from_f16(f16_from_f32(x * scale)) * inverse;
  }
};

}  // namespace gradtool::format
