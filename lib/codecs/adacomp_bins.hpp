#pragma once

#include <cstddef>
#include <vector>

#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// How adacomp cuts a unit: tensors into bins, and bins into pieces of work.
struct AdaCompBins {
  static constexpr std::size_t kLongest = 1 << 14;      ///< 14 bits of index
  static constexpr std::size_t kShortEntries = 1 << 6;  ///< up to here 6 bits of index, and counts of one byte

  /// A tensor's bins in the unit and in the payload.
  struct Tensor {
    std::size_t first = 0, elements = 0, bin = 1, bins = 0;
    std::size_t first_piece = 0, last_piece = 0;
    [[nodiscard]] std::size_t width() const { return bin <= kShortEntries ? 1 : 2; }  ///< bytes of an entry or a count
    [[nodiscard]] std::size_t bytes(std::size_t entries) const { return (width() * (bins + entries) + 3) / 4 * 4; }
  };

  /// Some whole bins of a tensor.
  struct Piece {
    std::size_t tensor = 0, first = 0, count = 0, first_bin = 0, bins = 0, word = 0;
  };

  /// Parameters are those of codec adacomp.
  AdaCompBins(const Params& params, const Layout& layout);

  std::vector<Tensor> tensors;  ///< that have elements
  std::vector<Piece> pieces;
  std::size_t words = 0;  ///< of the marks; every bin starts a new one
};

}  // namespace gradtool
