#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"

namespace gradtool::law {

/// Transforms shorter than this are not worth a header: the payload is the n float32 themselves.
inline constexpr std::size_t kFftSmallest = 4;

/// How n elements are cut for the transform: one of length n, or chunks of length `chunk` and a shorter one, the tail,
/// for what is left. Together they are the pieces.
struct FftShape {
  std::size_t length = 0;  ///< L
  std::size_t chunks = 0;  ///< C
  std::size_t tail = 0;    ///< T, length of the last transform; 0 when there is none

  /// A tail of fewer than kFftSmallest elements is padded with zeros to that length.
  [[nodiscard]] static constexpr FftShape of(std::size_t n, std::size_t chunk) {
    if (n <= chunk) return {n, 1, 0};
    const std::size_t left = n % chunk;
    return {chunk, n / chunk, left == 0 || left > kFftSmallest ? left : kFftSmallest};
  }
  [[nodiscard]] GT_HD constexpr std::size_t bins_per_chunk() const { return length / 2 + 1; }  ///< B
  [[nodiscard]] GT_HD constexpr std::size_t tail_bins() const { return tail == 0 ? 0 : tail / 2 + 1; }
  [[nodiscard]] GT_HD constexpr std::size_t bins() const { return chunks * bins_per_chunk() + tail_bins(); }

  [[nodiscard]] constexpr std::size_t pieces() const { return chunks + (tail == 0 ? 0 : 1); }
  [[nodiscard]] constexpr std::size_t piece_length(std::size_t piece) const { return piece < chunks ? length : tail; }
  [[nodiscard]] constexpr std::size_t piece_bins(std::size_t piece) const { return piece_length(piece) / 2 + 1; }
  [[nodiscard]] constexpr std::size_t first_bin(std::size_t piece) const { return piece * bins_per_chunk(); }
};

/// First 32 bytes of an fft payload; all numbers little-endian. Then the status bitmap (absent when every bin is kept):
/// bit b%32 of word b/32 for bin b, bins of all pieces in one row. Then 2 * kept codes of `bits` bits, packed
/// little-endian: real, imaginary part of the kept bins in ascending order.
struct FftHeader {
  std::uint64_t bytes = 0;  ///< of the whole payload
  std::uint32_t kept = 0;   ///< K
  std::uint32_t bins = 0;   ///< of all pieces
  float scale = 0.0F;       ///< a decoded code times this is the unitary coefficient; NaN: the input was not finite
  std::uint32_t pbase = 0;  ///< truncated pattern of eps; 0 when bits is 32
  std::uint32_t positives = 0;
  std::uint16_t bits = 0;      ///< N, or 32 for plain float32
  std::uint16_t mantissa = 0;  ///< m
};
static_assert(sizeof(FftHeader) == 32);

/// Where the sections lie for `kept` of `bins` bins.
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

/// Components below this would overflow 1/scale: the payload is then sent as zeros.
inline constexpr float kSmallestScale = 0x1p-100F;

}  // namespace gradtool::law
