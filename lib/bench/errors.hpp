#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace gradtool {

/// Sums over elements of x (exact) and y (reconstruction), in float64 and in index order. Rows that cover several
/// tensors or steps add their sums. Definitions: docs/measuring.md, section 2.
struct ErrorSums {
  std::uint64_t elements = 0;
  double xx = 0.0;     ///< sum x^2
  double yy = 0.0;     ///< sum y^2
  double xy = 0.0;     ///< sum x y
  double error = 0.0;  ///< sum (x-y)^2
  double largest_error = 0.0;
  double x_min = 0.0, x_max = 0.0;
  std::uint64_t sign_agreements = 0;  ///< y != 0 and sign(x) == sign(y)
  std::uint64_t kept = 0;             ///< y != 0
  std::uint64_t zeroed = 0;           ///< y == 0 and x != 0

  void observe(std::span<const double> x, std::span<const float> y);
  void merge(const ErrorSums& other);

  [[nodiscard]] double nmse() const;  ///< 0 for x = y = 0, infinite for x = 0, y != 0
  [[nodiscard]] double snr_db() const;
  [[nodiscard]] std::optional<double> cosine() const;
  [[nodiscard]] std::optional<double> relative_bias() const;
  [[nodiscard]] std::optional<double> sign_agreement() const;
  [[nodiscard]] double zeroed_fraction() const;
  [[nodiscard]] std::optional<double> nrmse() const;    ///< root mean square error / range of x
  [[nodiscard]] std::optional<double> psnr_db() const;  ///< -20 log10 nrmse
};

}  // namespace gradtool
