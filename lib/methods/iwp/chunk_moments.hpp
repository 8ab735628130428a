#pragma once

#include <cstddef>

#include "kernels/sums.hpp"
#include "lib/core/view.hpp"

/// The GPU's version of gradtool::moments (kernels/vector.hpp), with the same bits, in the two steps that iwp uses.
namespace gradtool::cuda {

/// Doubles that moments_of_chunks writes for n values: a sum for each chunk of format::sum_cut, and behind these a sum
/// of squares for each.
[[nodiscard]] inline std::size_t moment_sums(std::size_t n) {
  return 2 * format::sum_cut(n).count;
}
/// sums := the sums of each chunk of `values`. Enqueued.
void moments_of_chunks(Queue<Space::cuda> queue, View<const float, Space::cuda> values, double* sums);

/// *factor := format::clip_factor(squares, largest_norm) for the n values that these sums belong to. Enqueued.
void clip_factor(Queue<Space::cuda> queue, const double* sums, std::size_t n, double largest_norm, float* factor);

}  // namespace gradtool::cuda
