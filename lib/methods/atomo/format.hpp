#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// A tensor in an ATOMO payload. It is sent as it is, or factored: as singular triplets of a matrix of rows x columns,
/// of which the first `elements` numbers exist and the rest is zero. Offsets count elements or floats.
struct AtomoTensor {
  std::uint64_t first = 0;  ///< in the gradient
  std::uint64_t elements = 0;
  std::uint64_t rows = 0;  ///< 0 for a tensor that is sent as it is
  std::uint64_t columns = 0;
  std::uint64_t matrix = 0;         ///< its place among the factored tensors, which is that of its count in the header
  std::uint64_t first_draw = 0;     ///< the element whose draw decides on the first triplet
  std::uint64_t slot = 0;           ///< where its floats would start if all triplets of all tensors were sent
  std::uint64_t values_first = 0;   ///< of its `order` singular values among those of all tensors
  std::uint64_t vectors_first = 0;  ///< of its order x order matrix of singular vectors among those of all tensors

  [[nodiscard]] GT_HD bool factored() const { return rows > 0; }
  /// Whether the left singular vectors are the shorter ones.
  [[nodiscard]] GT_HD bool wide() const { return rows <= columns; }
  [[nodiscard]] GT_HD std::uint64_t order() const { return wide() ? rows : columns; }
  [[nodiscard]] GT_HD std::uint64_t longer_side() const { return wide() ? columns : rows; }
  /// Floats of a triplet: weight, left and right vector.
  [[nodiscard]] GT_HD std::uint64_t triplet() const { return 1 + rows + columns; }
};

/// The tensors of a layout as an ATOMO payload sends them.
struct AtomoFormat {
  AtomoFormat(const Params& params, const Layout& layout) : elements{layout.elements} {
    const auto budget = static_cast<std::size_t>(params.integer("s"));
    for (const TensorShape& shape : layout.tensors) {
      AtomoTensor tensor{.first = shape.first, .elements = shape.elements, .slot = most_floats};
      std::size_t rows = shape.rows();
      std::size_t columns = shape.columns();
      if (shape.shape.size() < 2 && params.is("vectors", "square") && shape.elements > 0) {
        rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(shape.elements)));
        columns = (shape.elements + rows - 1) / rows;
      }
      if (rows > 1 && columns > 1 && budget * (rows + columns + 1) < shape.elements) {
        tensor.rows = rows;
        tensor.columns = columns;
        tensor.matrix = matrices++;
        tensor.first_draw = tensor.values_first = values;
        tensor.vectors_first = vectors;
        values += tensor.order();
        vectors += tensor.order() * tensor.order();
      }
      most_floats += tensor.factored() ? tensor.order() * tensor.triplet() : tensor.elements;
      tensors.push_back(tensor);
    }
  }

  /// Bytes in front of the floats: the size and the counts of triplets. None where there are no elements.
  [[nodiscard]] std::size_t header_bytes() const { return elements == 0 ? 0 : 8 + 4 * matrices; }
  /// Bytes of the longest payload.
  [[nodiscard]] std::size_t most_bytes() const { return header_bytes() + 4 * most_floats; }

  std::vector<AtomoTensor> tensors;
  std::size_t elements = 0;
  std::size_t matrices = 0;     ///< factored tensors
  std::size_t values = 0;       ///< singular values of all of them
  std::size_t vectors = 0;      ///< numbers of the singular vectors of their shorter sides
  std::size_t most_floats = 0;  ///< floats when all triplets are sent
};

namespace format {

/// ATOMO (Wang et al., NeurIPS 2018, section 3): probabilities p_j = min(1, c values_j) with c such that their sum is
/// `budget`; 1 for every value above zero where there are no more than `budget` of them. `count` values, descending.
GT_HD inline void atomic_probabilities(const double* values, std::size_t count, double budget, double* probabilities) {
  double sum = 0.0;
  for (std::size_t j = 0; j < count; ++j) sum += values[j];
  std::size_t certain = 0;  // the largest values, whose share of what is left of the budget is 1 or more
  double left = budget;
  while (certain < count && values[certain] > 0.0 && left * values[certain] >= sum) {
    sum -= values[certain];
    left -= 1.0;
    ++certain;
  }
  // Subtracting values one by one loses digits, so what remains is added up anew.
  sum = 0.0;
  for (std::size_t j = certain; j < count; ++j) sum += values[j];
  left = left > 0.0 ? left : 0.0;
  for (std::size_t j = 0; j < count; ++j) {
    const double share = sum > 0.0 ? left * values[j] / sum : 0.0;
    probabilities[j] = j < certain || share > 1.0 ? 1.0 : share;
  }
}

}  // namespace format
}  // namespace gradtool
