#pragma once

#include <cstddef>
#include <span>

namespace gradtool {

/// A row-major matrix view: `rows` rows of `columns` values, `stride` values apart.
struct Rows {
  const double* data = nullptr;
  std::size_t rows = 0, columns = 0, stride = 0;
  [[nodiscard]] const double* row(std::size_t i) const { return data + i * stride; }
};

/// gram[i * rows + j] += <row i, row j> for every i and j (both triangles). gram.size() == rows^2.
///
/// The order of the additions depends on the shape alone: a threaded BLAS would not promise that, and would compete
/// with our own threads. O(rows^2 columns / 2).
void add_gram(Rows matrix, std::span<double> gram);

/// <a, b>, in the same order of additions for the same n.
[[nodiscard]] double dot(const double* a, const double* b, std::size_t n);

}  // namespace gradtool
