#pragma once

#include <cstddef>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// ATOMO (Wang et al., NeurIPS 2018, section 3): probabilities p_j = min(1, c value_j) with c such that their sum is
/// the budget; 1 for every value above zero where there are no more than that. `count` values, which descend.
GT_HD inline void atomic_probabilities(const double* values, std::size_t count, double budget, double* probabilities) {
  double sum = 0.0;
  for (std::size_t j = 0; j < count; ++j) sum += values[j];
  std::size_t certain = 0;  // the largest values, whose share of what is left of the budget is 1 or more
  double left = budget;
  while (certain < count && values[certain] > 0.0 && left * values[certain] >= sum) {
    sum -= values[certain];
    left -= 1.0;
    ++certain;
  }
  // Values are taken off the sum one by one; what remains is added up anew, free of cancellation.
  sum = 0.0;
  for (std::size_t j = certain; j < count; ++j) sum += values[j];
  left = left > 0.0 ? left : 0.0;
  for (std::size_t j = 0; j < count; ++j) {
    const double share = sum > 0.0 ? left * values[j] / sum : 0.0;
    probabilities[j] = j < certain || share > 1.0 ? 1.0 : share;
  }
}

}  // namespace gradtool::law
