#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

/// Sums over elements of x (exact) and y (reconstruction), in float64: of what one call observes in four lanes, element
/// i in lane i mod 4, whatever the processor. Rows that cover several tensors or steps add their sums. Definitions:
/// docs/measuring.md, "Errors".
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
  /// Share of the elements that come with another sign than theirs: as 0, turned, or as a value in the place of 0.
  [[nodiscard]] double lost_signs() const;
  [[nodiscard]] std::optional<double> nrmse() const;    ///< root mean square error / range of x
  [[nodiscard]] std::optional<double> psnr_db() const;  ///< -20 log10 nrmse
};

/// One rank's codec alone, on worker 0's gradients of the first captured step, without residual or collective.
struct CodecQuality {
  std::optional<double> nmse;           ///< of one encode, pooled over units; empty: it is no codec of one rank
  std::optional<double> bias_nmse;      ///< unbiased codecs: |mean over seeds - x|^2 / |x|^2, less its sampling error
  std::optional<double> variance_nmse;  ///< unbiased codecs: mean |y - mean y|^2 / |x|^2
  std::size_t seed_units = 0;           ///< so many units are what these two are of
};

/// Elements on which several seeds are tried, unless the first unit alone has more.
constexpr std::uint64_t kSeedElements = std::uint64_t{1} << 22;

/// One encode of every unit; where the codec claims to be unbiased, 30 seeds of the first unit and of the following
/// ones that fit into kSeedElements with it. Not timed.
[[nodiscard]] CodecQuality measure_quality(const GradientSource& reader, const std::vector<Unit>& units,
                                           const CodecSpec& spec, std::uint64_t seed);

}  // namespace gradtool
