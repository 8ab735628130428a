#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/analysis/principal.hpp"
#include "lib/analysis/slice_grams.hpp"

namespace gradtool {

inline constexpr std::array<std::size_t, 6> kExplained{1, 2, 4, 8, 16, 32};
/// 1 - lambda of GradiVeQ: the share of the variance that the kept components must hold.
inline constexpr double kGradiveqShare = 0.99;

/// What the eigenvalues of slices add up to, over the slices of one tensor or of many. All additive.
struct SliceTotals {
  std::size_t slices = 0;
  std::uint64_t elements = 0;                         ///< K, summed
  std::uint64_t components = 0;                       ///< d, summed
  std::uint64_t limit = 0;                            ///< min(K, M - 1), summed: what d cannot exceed
  double effective_rank = 0;                          ///< summed over the `varying` slices
  std::size_t varying = 0;                            ///< slices whose samples differ
  double variance = 0;                                ///< summed
  std::array<double, kExplained.size()> explained{};  ///< variance in the first k components, summed
  Holdout holdout;

  void add(std::uint64_t slice_elements, const PrincipalComponents& found, const Holdout& left);
  SliceTotals& operator+=(const SliceTotals& other);
};

}  // namespace gradtool
