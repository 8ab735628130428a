#include "kernels/rows.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/sums.hpp"
#include "kernels/vector.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// The last matrix of which `member`, an offset that grows from matrix to matrix, is at most `value`.
const RowMatrix* matrix_at(const RowPlan& plan, std::size_t RowMatrix::*member, std::size_t value) {
  const auto after = std::upper_bound(plan.matrices.begin(), plan.matrices.end(), value,
                                      [&](std::size_t v, const RowMatrix& matrix) { return v < matrix.*member; });
  return &*(after - 1);
}

/// body(matrix, element of the vector, element of the message, how many follow in both) over all chosen rows.
template <class Body>
void for_each_stretch(const RowPlan& plan, Queue<Space::host> queue, HostView<const std::uint32_t> chosen,
                      const Body& body) {
  parallel_for(queue, plan.message, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    const RowMatrix* matrix = matrix_at(plan, &RowMatrix::message_first, first);
    while (first < last) {
      const std::size_t inside = first - matrix->message_first;
      if (inside == matrix->count * matrix->columns) {
        ++matrix;
        continue;
      }
      const std::size_t row = chosen[matrix->chosen_first + inside / matrix->columns];
      const std::size_t column = inside % matrix->columns;
      const std::size_t count = std::min(matrix->columns - column, last - first);
      body(*matrix, matrix->first + row * matrix->columns + column, first, count);
      first += count;
    }
  });
}

}  // namespace

void RowPlan::add(std::size_t first, std::size_t rows, std::size_t columns, std::size_t count, float keeps) {
  const RowMatrix matrix{first, rows, columns, count, keeps, keys, chosen, message, sums};
  matrices.push_back(matrix);
  chosen += count;
  message += count * columns;
  if (!matrix.selects()) return;
  keys += rows;
  sums += rows * ((columns + format::kSumChunk - 1) / format::kSumChunk);
}

std::size_t share_of_rows(double ratio, std::size_t rows) {
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(rows))), 1, rows);
}

template <>
RowSelection<Space::host>::RowSelection(RowPlan plan, Queue<Space::host> /*queue*/)
    : plan_{std::move(plan)}, arena_{0} {}

template <>
void RowSelection<Space::host>::magnitudes(const Workspace& /*work*/, Queue<Space::host> queue, HostView<const float> x,
                                           HostView<float> out) const {
  std::size_t elements = 0;
  for (const RowMatrix& matrix : plan_.matrices) elements += matrix.selects() ? matrix.rows * matrix.columns : 0;
  const std::size_t grain = elements == 0 ? 1 : plan_.keys * (1 << 14) / elements + 1;
  parallel_for(queue, plan_.keys, 1, grain, [&](std::size_t first, std::size_t last) {
    const RowMatrix* matrix = matrix_at(plan_, &RowMatrix::key_first, first);
    for (std::size_t key = first; key < last; ++key) {
      while (!matrix->selects() || key - matrix->key_first == matrix->rows) ++matrix;
      const float* row = x.data() + matrix->first + (key - matrix->key_first) * matrix->columns;
      double sum = 0.0;
      for (std::size_t at = 0; at < matrix->columns; at += format::kSumChunk)
        sum += host::magnitudes_of(row + at, std::min(format::kSumChunk, matrix->columns - at));
      out[key] = format::stored_mean(sum, 1);
    }
  });
}

template <>
void RowSelection<Space::host>::choose(const Workspace& work, Queue<Space::host> queue,
                                       HostView<std::uint32_t> chosen) const {
  parallel_parts(queue, plan_.matrices.size(), plan_.matrices.size(), 1, [&](std::size_t m, std::size_t, std::size_t) {
    const RowMatrix& matrix = plan_.matrices[m];
    std::uint32_t* own = chosen.data() + matrix.chosen_first;
    if (!matrix.selects()) {
      std::iota(own, own + matrix.rows, 0U);
      return;
    }
    const std::uint32_t* keys = work.keys.data() + matrix.key_first;
    std::uint32_t* order = work.order.data() + matrix.key_first;
    std::iota(order, order + matrix.rows, 0U);
    std::nth_element(order, order + matrix.count - 1, order + matrix.rows,
                     [&](std::uint32_t a, std::uint32_t b) { return keys[a] != keys[b] ? keys[a] > keys[b] : a < b; });
    std::sort(order, order + matrix.count);
    std::copy_n(order, matrix.count, own);
  });
}

template <>
void RowSelection<Space::host>::gather(Queue<Space::host> queue, HostView<const std::uint32_t> chosen,
                                       HostView<const float> x, HostView<float> message) const {
  for_each_stretch(plan_, queue, chosen,
                   [&](const RowMatrix& /*matrix*/, std::size_t element, std::size_t at, std::size_t count) {
                     std::copy_n(x.data() + element, count, message.data() + at);
                   });
}

template <>
void RowSelection<Space::host>::place(Queue<Space::host> queue, HostView<const std::uint32_t> chosen,
                                      HostView<const float> message, float share, HostView<float> out) const {
  for (const RowMatrix& matrix : plan_.matrices) {
    if (matrix.selects()) fill_zero(queue, out.part(matrix.first, matrix.rows * matrix.columns));
  }
  for_each_stretch(plan_, queue, chosen,
                   [&](const RowMatrix& /*matrix*/, std::size_t element, std::size_t at, std::size_t count) {
                     for (std::size_t i = 0; i < count; ++i) out[element + i] = message[at + i] * share;
                   });
}

template <>
void RowSelection<Space::host>::fade(Queue<Space::host> queue, HostView<const std::uint32_t> chosen,
                                     HostView<float> x) const {
  for_each_stretch(plan_, queue, chosen,
                   [&](const RowMatrix& matrix, std::size_t element, std::size_t /*at*/, std::size_t count) {
                     for (std::size_t i = element; i < element + count; ++i)
                       x[i] = matrix.keeps == 0.0F ? 0.0F : x[i] * matrix.keeps;
                   });
}

}  // namespace gradtool
