#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// A tensor in an ATOMO payload: sent as it is, or as singular triplets of rows x columns.
struct AtomoTensor {
  std::size_t first = 0;
  std::size_t elements = 0;
  std::size_t rows = 0;  ///< 0: as it is
  std::size_t columns = 0;
  std::size_t draw = 0;   ///< element whose draw decides on the first triplet
  std::size_t count = 0;  ///< which of the counts in the header
  std::size_t slot = 0;   ///< where its floats start when all triplets of all parts are sent

  [[nodiscard]] bool factored() const { return rows > 0; }
  [[nodiscard]] std::size_t order() const { return std::min(rows, columns); }
  [[nodiscard]] std::size_t triplet() const { return 1 + rows + columns; }  ///< floats
};

/// What an ATOMO payload of a layout consists of.
struct AtomoParts {
  AtomoParts(const Params& params, const Layout& layout) : elements{layout.elements} {
    const auto budget = static_cast<std::size_t>(params.integer("s"));
    std::size_t draws = 0;
    for (const TensorShape& tensor : layout.tensors) {
      AtomoTensor part{.first = tensor.first, .elements = tensor.elements, .slot = most_floats};
      std::size_t rows = tensor.rows();
      std::size_t columns = tensor.columns();
      if (tensor.shape.size() < 2 && params.is("vectors", "square") && tensor.elements > 0) {
        rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(tensor.elements)));
        columns = (tensor.elements + rows - 1) / rows;
      }
      if (rows > 1 && columns > 1 && budget * (rows + columns + 1) < tensor.elements) {
        part.rows = rows;
        part.columns = columns;
        part.count = matrices++;
        part.draw = draws;
        draws += part.order();
      }
      most_floats += part.factored() ? part.order() * part.triplet() : part.elements;
      parts.push_back(part);
    }
  }
  /// Size and matrices; nothing for no elements.
  [[nodiscard]] std::size_t header() const { return elements == 0 ? 0 : 8 + 4 * matrices; }

  std::vector<AtomoTensor> parts;
  std::size_t elements = 0;
  std::size_t matrices = 0;     ///< factored parts
  std::size_t most_floats = 0;  ///< at most
};

}  // namespace gradtool
