#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/slice_columns.hpp"
#include "lib/core/view.hpp"

/// Inner products of rows of double precision numbers, for the correlations of `gradtool analyze`. Everything is
/// enqueued; the order of all sums depends on the sizes alone.
namespace gradtool::cuda {

/// `rows` rows of `columns` numbers, `stride` apart.
struct RowsOf {
  double* data = nullptr;
  std::size_t rows = 0, columns = 0, stride = 0;
};

/// Numbers that the functions below work in for this many rows.
[[nodiscard]] std::size_t gram_work(std::size_t rows);

/// rows.data[r][i] := values[r * stride + i] for all rows but the last, which becomes their mean.
/// non_finite += how many values are not finite.
void widen_with_mean(Queue<Space::cuda> queue, const float* values, std::size_t stride, const RowsOf& rows,
                     std::uint64_t* non_finite);

/// Takes its mean from every row; means[r] := the mean. Rows of equal values become exactly 0.
void centre_rows(Queue<Space::cuda> queue, const RowsOf& rows, double* means, double* work);

/// Takes from every column its mean over the rows.
void centre_columns(Queue<Space::cuda> queue, const RowsOf& rows);

/// gram[i * rows + j] := <row i, row j>, over all columns or over those of a slice.
void gram(Queue<Space::cuda> queue, const RowsOf& rows, double* gram, double* work);
void gram(Queue<Space::cuda> queue, const RowsOf& rows, const law::SliceColumns& slice, double* gram, double* work);

/// dots[r] := <row r of a, row r of b>. Equal sizes.
void row_dots(Queue<Space::cuda> queue, const RowsOf& a, const RowsOf& b, double* dots, double* work);
void row_dots(Queue<Space::cuda> queue, const RowsOf& a, const RowsOf& b, const law::SliceColumns& slice, double* dots,
              double* work);

}  // namespace gradtool::cuda
