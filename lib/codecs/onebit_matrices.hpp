#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lib/codecs/layout.hpp"

namespace gradtool {

/// A tensor as onebit sees it: what has two means is a column.
struct OneBitMatrix {
  std::size_t first = 0, rows = 0, columns = 0;  ///< columns is 0 for a tensor without elements
  std::size_t first_column = 0;                  ///< among those of all tensors
};

/// The tensors of a layout; `by_column` false: each is one column.
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
