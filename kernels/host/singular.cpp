#include "kernels/host/singular.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/law/atomo.hpp"
#include "kernels/law/hd.hpp"
#include "lib/core/arena.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kWidth = 512;  ///< of the longer side that is worked on at a time

constexpr std::size_t padded(std::size_t bytes) {
  return Arena<Space::host>::padded_size(bytes);
}

/// Positions [first, first + width) of the longer side as rows of the shorter one, in float64.
void widen(const PaddedMatrix& matrix, std::size_t first, std::size_t width, double* out) {
  const bool wide = matrix.rows <= matrix.columns;
  for (std::size_t s = 0; s < matrix.order(); ++s) {
    double* to = out + s * width;
    for (std::size_t l = 0; l < width; ++l) {
      const std::size_t at = wide ? s * matrix.columns + first + l : (first + l) * matrix.columns + s;
      to[l] = at < matrix.elements ? static_cast<double>(matrix.data[at]) : 0.0;
    }
  }
}

/// `available` elements of row i.
std::size_t row_length(const PaddedMatrix& matrix, std::size_t i) {
  const std::size_t first = i * matrix.columns;
  return matrix.elements <= first ? 0 : std::min(matrix.columns, matrix.elements - first);
}

GT_SIMD_CLONES void add_times(const float* x, std::size_t count, double factor, double* sum) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += factor * static_cast<double>(x[i]);
}

}  // namespace

SingularVectors::SingularVectors(std::size_t order) : order_{order}, eigen_{order} {}

std::size_t SingularVectors::scratch_bytes() const {
  return padded(8 * order_ * order_) + padded(8 * order_) +
         std::max(padded(8 * order_ * kWidth), eigen_.scratch_bytes());
}

SingularVectors::Result SingularVectors::decompose(const PaddedMatrix& matrix, HostView<std::byte> scratch) const {
  auto* gram = reinterpret_cast<double*>(scratch.data());
  auto* values = reinterpret_cast<double*>(scratch.data() + padded(8 * order_ * order_));
  const std::size_t used = padded(8 * order_ * order_) + padded(8 * order_);
  auto* block = reinterpret_cast<double*>(scratch.data() + used);
  std::fill_n(gram, order_ * order_, 0.0);
  const std::size_t length = matrix.rows + matrix.columns - order_;
  for (std::size_t first = 0; first < length; first += kWidth) {
    const std::size_t width = std::min(kWidth, length - first);
    widen(matrix, first, width, block);
    add_gram(block, order_, width, gram);
  }
  double energy = 0.0;
  for (std::size_t s = 0; s < order_; ++s) energy += gram[s * order_ + s];
  if (!std::isfinite(energy)) return {};
  if (!eigen_.solve(gram, values, {scratch.data() + used, scratch.size() - used})) return {};
  for (std::size_t s = 0; s < order_; ++s) values[s] = std::sqrt(std::max(values[s], 0.0));
  std::reverse(values, values + order_);
  for (std::size_t s = 0; s < order_ / 2; ++s)
    std::swap_ranges(gram + s * order_, gram + (s + 1) * order_, gram + (order_ - 1 - s) * order_);
  return {.values = values, .vectors = gram};
}

void other_side(const PaddedMatrix& matrix, const double* a, double* out) {
  if (matrix.rows > matrix.columns) {
    for (std::size_t i = 0; i < matrix.rows; ++i) {
      const float* row = matrix.data + i * matrix.columns;
      double sum = 0.0;
      for (std::size_t k = 0; k < row_length(matrix, i); ++k) sum += a[k] * static_cast<double>(row[k]);
      out[i] = sum;
    }
    return;
  }
  std::fill_n(out, matrix.columns, 0.0);
  for (std::size_t i = 0; i < matrix.rows; ++i)
    add_times(matrix.data + i * matrix.columns, row_length(matrix, i), a[i], out);
}

void atomic_probabilities(std::span<const double> values, double budget, std::span<double> probabilities) {
  law::atomic_probabilities(values.data(), values.size(), budget, probabilities.data());
}

}  // namespace gradtool::host
