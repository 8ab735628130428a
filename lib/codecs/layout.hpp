#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradtool {

/// One parameter tensor inside the vector that a codec or reducer is given.
struct TensorShape {
  std::string name{};
  std::vector<std::int64_t> shape{};  ///< row-major; the product is `elements`
  std::string kind = "other";         ///< conv, linear, expert, router, embedding, recurrent, norm, bias, other
  std::string layout{};               ///< "OIHW", "OI", ... as in the gradient file
  std::size_t first = 0;              ///< where it starts in the vector
  std::size_t elements = 0;
  double depth = 0.0;  ///< share of the model's elements in tensors before it in forward order: 0 is the input side

  /// Rows and columns as most methods see a weight: first dimension by all others. A vector is one column.
  [[nodiscard]] std::size_t rows() const { return shape.size() < 2 ? elements : static_cast<std::size_t>(shape[0]); }
  [[nodiscard]] std::size_t columns() const { return rows() == 0 ? 0 : elements / rows(); }
  [[nodiscard]] bool is_matrix() const { return shape.size() >= 2 && rows() > 1 && columns() > 1; }
};

/// The piece that a codec encodes at once: tensors one behind the other, without gaps.
struct Layout {
  std::vector<TensorShape> tensors;
  std::size_t elements = 0;

  /// n elements of which nothing is known: one tensor of shape {n}.
  [[nodiscard]] static Layout flat(std::size_t n) {
    return {{{.shape = {static_cast<std::int64_t>(n)}, .elements = n}}, n};
  }
  /// One matrix.
  [[nodiscard]] static Layout matrix(std::size_t rows, std::size_t columns) {
    return {{{.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)},
              .kind = "linear",
              .layout = "OI",
              .elements = rows * columns}},
            rows * columns};
  }
};

}  // namespace gradtool
