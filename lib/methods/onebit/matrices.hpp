#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/codecs/layout.hpp"

namespace gradtool {

/// A tensor as a matrix, each column of which has two means.
struct OneBitMatrix {
  std::uint64_t first = 0;  ///< index of its first element in the unit
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;       ///< 0 for a tensor without elements
  std::uint64_t first_column = 0;  ///< number of its first column among the columns of all tensors
};

/// The tensors of a layout, in order. Each is one column unless `by_column` is true.
[[nodiscard]] inline std::vector<OneBitMatrix> onebit_matrices(const Layout& layout, bool by_column) {
  std::vector<OneBitMatrix> matrices;
  std::size_t before = 0;
  for (const auto& tensor : layout.tensors) {
    const std::size_t columns = by_column ? tensor.columns() : std::min<std::size_t>(tensor.elements, 1);
    matrices.push_back({tensor.first, columns == 0 ? 0 : tensor.elements / columns, columns, before});
    before += columns;
  }
  return matrices;
}

}  // namespace gradtool
