#include "lib/methods/atomo/singular.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/float_bits.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kWidth = 512;  ///< positions of the longer side that are widened to float64 at a time

/// Writes positions [first, first + width) of the longer side in float64: a row of `width` for each position of the
/// shorter side.
void widen(const PaddedMatrix& matrix, std::size_t first, std::size_t width, double* out) {
  const bool wide = matrix.rows <= matrix.columns;
  for (std::size_t s = 0; s < matrix.order(); ++s) {
    double* to = out + s * width;
    for (std::size_t l = 0; l < width; ++l) {
      const std::size_t element = wide ? s * matrix.columns + first + l : (first + l) * matrix.columns + s;
      to[l] = element < matrix.elements ? static_cast<double>(matrix.data[element]) : 0.0;
    }
  }
}

/// The numbers of row i that are stored.
std::size_t row_length(const PaddedMatrix& matrix, std::size_t i) {
  const std::size_t first = i * matrix.columns;
  return matrix.elements <= first ? 0 : std::min(matrix.columns, matrix.elements - first);
}

/// sum += factor * x.
GT_SIMD_CLONES void add_times(const float* x, std::size_t count, double factor, double* sum) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += factor * static_cast<double>(x[i]);
}

}  // namespace

SingularVectors::SingularVectors(std::size_t order) : order_{order}, eigen_{order} {}

/// The eigen-decomposition begins when the widened numbers are no longer needed, so both use the same memory.
struct SingularVectors::Workspace {
  Workspace(const SingularVectors& singular, Scratch<Space::host> scratch)
      : gram{scratch.take<double>(singular.order_ * singular.order_)},
        values{scratch.take<double>(singular.order_)},
        shared{scratch.take_bytes(std::max(8 * singular.order_ * kWidth, singular.eigen_.scratch_bytes()))} {}
  HostView<double> gram, values;
  HostView<std::byte> shared;
};

std::size_t SingularVectors::scratch_bytes() const {
  return planned<Workspace>(*this);
}

SingularVectors::Result SingularVectors::decompose(const PaddedMatrix& matrix, HostView<std::byte> scratch) const {
  const Workspace work{*this, Scratch<Space::host>{scratch}};
  double* gram = work.gram.data();
  double* values = work.values.data();
  auto* block = reinterpret_cast<double*>(work.shared.data());
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
  if (!eigen_.solve(gram, values, work.shared)) return {};
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

}  // namespace gradtool::host
