#pragma once

#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// The choice that AdaComp makes (Chen et al., AAAI 2018, arXiv 1712.02679), one element at a time. G is residue +
/// gradient, and H = G + (s - 1) gradient is what G would be if the gradient were s times as large.
struct AdaComp {
  float more = 1.0F;  ///< s - 1

  static constexpr std::uint32_t kInfinity = 0x7f800000u;
  /// The 2-bit codes of an entry; 0 and 3 are not used.
  static constexpr std::uint32_t kPositive = 1, kNegative = 2;

  /// The bit pattern of |x|, which orders as |x| does. A NaN counts as infinity.
  GT_HD static std::uint32_t magnitude(float x) {
    const std::uint32_t pattern = bits_of(x) & 0x7fffffffu;
    return pattern < kInfinity ? pattern : kInfinity;
  }
  /// True when |H| reaches the largest |G| of the bin. A zero G is never sent, because it has no sign.
  GT_HD bool sends(float sum, float gradient, std::uint32_t largest) const {
    return magnitude(sum + more * gradient) >= largest && magnitude(sum) > 0;
  }
  GT_HD static std::uint32_t code(float sum) { return kPositive + (bits_of(one_nan(sum)) >> 31); }
  GT_HD static bool finite(float scale) { return scale < float_of(kInfinity); }
  /// The rest of G after the scale with its sign was sent. A scale that is not finite clears it.
  GT_HD static float residue_after(float sum, float scale) {
    return finite(scale) ? sum - float_of(bits_of(scale) | (bits_of(sum) & 0x80000000u)) : 0.0F;
  }
  /// The scale of a tensor from the sum over its bins of their largest |G|.
  GT_HD static float scale(double sum, std::size_t bins) {
    const double mean = sum / static_cast<double>(bins);
    return mean < static_cast<double>(float_of(kInfinity)) ? static_cast<float>(mean) : float_of(0x7fc00000u);
  }
};

/// The bins of one tensor, in the bucket and in the payload. Tensors without elements are left out.
struct AdaCompTensor {
  std::size_t first = 0, elements = 0;  ///< in the bucket
  std::size_t bin = 1;                  ///< elements of a bin; the last one may be shorter
  std::size_t bins = 0;
  std::size_t first_piece = 0, last_piece = 0;  ///< its pieces are [first_piece, last_piece)

  /// Bytes of an entry, and of a bin's count of entries. One byte has room for 6 bits of index and 2 of code.
  [[nodiscard]] GT_HD std::size_t width() const { return bin <= 64 ? 1 : 2; }
  /// Bytes of its counts and entries in the payload, without and with the padding to 4 bytes.
  [[nodiscard]] GT_HD std::size_t used_bytes(std::size_t entries) const { return width() * (bins + entries); }
  [[nodiscard]] GT_HD std::size_t bytes(std::size_t entries) const { return (used_bytes(entries) + 3) / 4 * 4; }
};

/// Some whole bins of a tensor: what a thread of a CPU or a block of a GPU works on at a time.
struct AdaCompPiece {
  std::size_t tensor = 0;
  std::size_t first = 0, count = 0;  ///< elements in the bucket
  std::size_t first_bin = 0;         ///< in the tensor
  std::size_t bins = 0;
  std::size_t mark_word = 0;  ///< CPU only: where its marks start

  /// Elements of the piece's bin b, where a whole one has `bin`.
  [[nodiscard]] GT_HD std::size_t bin_size(std::size_t bin, std::size_t b) const {
    const std::size_t left = count - b * bin;
    return left < bin ? left : bin;
  }
};

}  // namespace gradtool::format
