#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host/marks.hpp"

namespace gradtool::host {

/// The largest pattern of |x| of each 32 elements of a piece.
void block_maxima(const float* x, std::size_t count, std::uint32_t* maxima);

/// Which numbers are at least as large as what. Blocks of 32 with their maxima, which whoever computed the numbers
/// wrote on the way, make a question about few of them cost a small part of a pass over all. Magnitudes compare by
/// their binary32 patterns, so NaN is larger than infinity and nothing depends on threads.
class BlockSelect {
 public:
  /// All patterns above `threshold`, and the first `ties` that equal it.
  struct Cut {
    std::uint32_t threshold = 0;
    std::size_t ties = 0;
    std::size_t count = 0;  ///< of all that it selects
  };

  /// Bytes of scratch, a multiple of 4.
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t pieces);

  /// `maxima` has one for each block, at the word of its piece; `scratch` is aligned to 4.
  BlockSelect(Queue<Space::host> queue, const Pieces& pieces, const float* numbers, const std::uint32_t* maxima,
              std::byte* scratch);

  /// How many patterns are at least `threshold`.
  [[nodiscard]] std::size_t count(std::uint32_t threshold);
  /// Everything that is at least `threshold` >= 1.
  [[nodiscard]] Cut at_least(std::uint32_t threshold) { return {threshold - 1, 0, count(threshold)}; }
  /// The k largest of those that are at least `floor`, of equal ones the first; there are at least k >= 1 of them.
  [[nodiscard]] Cut largest(std::size_t k, std::uint32_t floor) const;
  /// positions and values := what the cut selects, ascending; both hold cut.count.
  void collect(const Cut& cut, std::uint32_t* positions, float* values);

 private:
  Queue<Space::host> queue_;
  Pieces pieces_;
  const float* numbers_;
  const std::uint32_t* maxima_;
  std::uint32_t* histograms_;  ///< one for each part
  std::uint32_t* above_;       ///< for each piece
  std::uint32_t* equal_;       ///< for each piece
  std::uint32_t counted_ = 0;  ///< the threshold that above_ has counts for; 0: none
};

}  // namespace gradtool::host
