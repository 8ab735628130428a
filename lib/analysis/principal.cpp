#include "lib/analysis/principal.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/error.hpp"

#ifdef GRADTOOL_SANITIZED
// OpenBLAS hands work to its own threads by means that the thread sanitizer, for lack of instrumentation, cannot see.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libopenblas\nrace:libopenblas\n";
}
#endif

namespace gradtool {
namespace {

/// One float32 ulp in one of 10^9 values is more than this share of their energy; rounding in float64 is less.
constexpr double kNoVariance = 1e-25;

}  // namespace

PrincipalComponents principal_components(std::span<const double> gram, std::span<const double> square_norms,
                                         std::size_t coordinates, const Eigensolver& eigensolver) {
  const std::size_t samples = square_norms.size();
  expects(gram.size() == samples * samples, "a Gram matrix must be square");
  PrincipalComponents result;
  if (samples < 2) return result;
  double trace = 0;
  for (std::size_t i = 0; i < samples; ++i) trace += gram[i * samples + i];
  if (trace <= kNoVariance * std::accumulate(square_norms.begin(), square_norms.end(), 0.0)) {
    result.eigenvalues.resize(std::min(coordinates, samples - 1));
    return result;
  }
  std::vector<double> matrix{gram.begin(), gram.end()};
  std::vector<double> values(samples);
  eigensolver(matrix, values, false);
  std::reverse(values.begin(), values.end());
  values.resize(std::min(coordinates, samples - 1));
  const double zero = values.empty() ? 0 : kRelativeZero * std::max(values.front(), 0.0);
  for (double& value : values) value = value > zero ? value / static_cast<double>(samples - 1) : 0.0;
  result.total = std::accumulate(values.begin(), values.end(), 0.0);
  result.eigenvalues = std::move(values);
  return result;
}

std::size_t PrincipalComponents::components_for(double share) const {
  if (!(total > 0)) return 0;
  double sum = 0;
  for (std::size_t k = 0; k < eigenvalues.size(); ++k) {
    sum += eigenvalues[k];
    if (sum >= share * total) return k + 1;
  }
  return eigenvalues.size();
}

double PrincipalComponents::explained(std::size_t k) const {
  const auto last = eigenvalues.begin() + static_cast<std::ptrdiff_t>(std::min(k, eigenvalues.size()));
  return std::accumulate(eigenvalues.begin(), last, 0.0) / total;
}

double PrincipalComponents::effective_rank() const {
  if (!(total > 0)) return 0;
  double entropy = 0;
  for (const double value : eigenvalues) {
    if (value > 0) entropy -= value / total * std::log(value / total);
  }
  return std::exp(entropy);
}

Holdout holdout(std::span<const double> gram, std::span<const double> square_norms, double share,
                const Eigensolver& eigensolver) {
  const std::size_t m = square_norms.size(), train = m / 2;
  expects(gram.size() == m * m, "a Gram matrix must be square");
  if (m < 4) return {};
  // Inner products of samples less the training mean: g[i][j] - a[i] - a[j] + b, with means over the training samples.
  std::vector<double> mean(m);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t t = 0; t < train; ++t) mean[i] += gram[i * m + t] / static_cast<double>(train);
  }
  const double both = std::accumulate(mean.begin(), mean.begin() + static_cast<std::ptrdiff_t>(train), 0.0) /
                      static_cast<double>(train);
  const auto inner = [&](std::size_t i, std::size_t j) { return gram[i * m + j] - mean[i] - mean[j] + both; };

  std::vector<double> vectors(train * train);
  for (std::size_t i = 0; i < train; ++i) {
    for (std::size_t j = 0; j < train; ++j) vectors[i * train + j] = inner(i, j);
  }
  std::vector<double> values(train);
  eigensolver(vectors, values, true);
  const double zero = kRelativeZero * std::max(values.back(), 0.0);
  const double total = std::accumulate(values.begin(), values.end(), 0.0,
                                       [&](double sum, double value) { return sum + (value > zero ? value : 0.0); });
  Holdout result;
  for (std::size_t i = train; i < m; ++i) {
    double residual = inner(i, i), kept = 0;
    // u_j = X^T v_j / sqrt(lambda_j), hence <x_i, u_j> = sum_t <x_i, x_t> v_j[t] / sqrt(lambda_j).
    for (std::size_t j = train; j-- > 0 && values[j] > zero && kept < share * total;) {
      double along = 0;
      for (std::size_t t = 0; t < train; ++t) along += inner(i, t) * vectors[j * train + t];
      residual -= along * along / values[j];
      kept += values[j];
    }
    result.residual += std::max(residual, 0.0);
    result.energy += square_norms[i];
  }
  return result;
}

}  // namespace gradtool
