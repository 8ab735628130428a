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

struct SingularVectors::Workspace {
  Workspace(const SingularVectors& singular, Scratch<Space::host> scratch)
      : gram{scratch.take<double>(singular.order_ * singular.order_)},
        values{scratch.take<double>(singular.order_)},
        eigenvalues{scratch.take<double>(singular.order_)},
        vector{scratch.take<double>(singular.order_)},
        widened{scratch.take<double>(singular.order_ * kWidth)},
        eigen{scratch.take_bytes(singular.eigen_.scratch_bytes())} {}
  HostView<double> gram;         ///< then what LAPACK made of it
  HostView<double> values;       ///< descending
  HostView<double> eigenvalues;  ///< ascending: their squares, but for rounding
  HostView<double> vector, widened;
  HostView<std::byte> eigen;
};

std::size_t SingularVectors::scratch_bytes() const {
  return planned<Workspace>(*this);
}

void SingularVectors::fill_gram(const PaddedMatrix& matrix, const Workspace& work) const {
  std::fill_n(work.gram.data(), order_ * order_, 0.0);
  const std::size_t length = matrix.rows + matrix.columns - order_;
  for (std::size_t first = 0; first < length; first += kWidth) {
    const std::size_t width = std::min(kWidth, length - first);
    widen(matrix, first, width, work.widened.data());
    add_gram(work.widened.data(), order_, width, work.gram.data());
  }
}

SingularVectors::Result SingularVectors::decompose(const PaddedMatrix& matrix, HostView<std::byte> scratch) const {
  const Workspace work{*this, Scratch<Space::host>{scratch}};
  fill_gram(matrix, work);
  double energy = 0.0;
  for (std::size_t s = 0; s < order_; ++s) energy += work.gram.data()[s * order_ + s];
  Result result;
  if (!std::isfinite(energy) || !eigen_.find_values(work.gram.data(), work.eigenvalues.data(), work.eigen)) return {};
  for (std::size_t s = 0; s < order_; ++s)
    work.values.data()[order_ - 1 - s] = std::sqrt(std::max(work.eigenvalues.data()[s], 0.0));
  result.singular_ = this;
  result.matrix_ = matrix;
  result.scratch_ = scratch;
  result.values_ = work.values.data();
  return result;
}

/// Whether the eigenvalue is far enough from its neighbours for its vector to be found by itself: it is mixed with
/// theirs by some 10^-7, which is what float32 rounds.
bool SingularVectors::Result::is_alone(std::size_t j) const {
  constexpr double kNear = 1e-9;
  const auto square = [&](std::size_t i) { return values_[i] * values_[i]; };
  const double least = kNear * square(0);
  return (j == 0 || square(j - 1) - square(j) > least) &&
         (j + 1 == singular_->order_ || square(j) - square(j + 1) > least);
}

const double* SingularVectors::Result::vector(std::size_t j) {
  const Workspace work{*singular_, Scratch<Space::host>{scratch_}};
  const std::size_t order = singular_->order_;
  const std::size_t index = order - 1 - j;  // among eigenvalues
  if (vectors_ == Vectors::one_by_one && is_alone(j) &&
      singular_->eigen_.find_vector(work.gram.data(), index, work.vector.data(), work.eigen))
    return work.vector.data();
  if (vectors_ == Vectors::one_by_one) {
    singular_->fill_gram(matrix_, work);
    const bool found = singular_->eigen_.find_vectors(work.gram.data(), work.eigenvalues.data(), work.eigen);
    vectors_ = found ? Vectors::all : Vectors::lost;
  }
  if (vectors_ == Vectors::lost) return nullptr;
  return work.gram.data() + index * order;
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
