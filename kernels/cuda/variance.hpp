#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/law/moments.hpp"
#include "lib/core/view.hpp"

/// What `gradtool analyze` counts over all elements of a gradient for its variance table, in one pass on the GPU.
namespace gradtool::cuda {

/// W gradients of the same elements, row r at values + r * stride; a multiple of 4 elements apart and 16-byte aligned,
/// so that rows are read in 16-byte accesses.
struct GradientRows {
  const float* values = nullptr;
  std::size_t rows = 0, elements = 0, stride = 0;
};

/// Where the samples behind an element's mean and variance come from: see lib/analysis/signal_ratio.hpp.
struct SignalSource {
  const float* second_moment = nullptr;  ///< of the one row, aligned as it is; null: none
  double micro_batches = 0;              ///< K >= 2, with a second moment
  bool over_rows = false;                ///< without: the rows of one step are the samples, W >= 2
};

/// The sums; joined in an order that the number of elements alone decides.
struct VarianceSums {
  law::Moments moments;
  std::uint64_t non_finite = 0;
  std::uint64_t samples = 0, undefined = 0, inconsistent = 0;
  std::uint64_t passed[3] = {};
};

/// Room that add_variance works in: this many VarianceSums.
inline constexpr std::size_t kVarianceBlocks = 1024;

/// Adds the rows to `sums` and their ratios to `bins` (law::kRatioBins counts); both lie on the GPU and begin as zero
/// bytes. Enqueued. An element passes alphas[a] when its mean squared is above alphas[a] times its noise. With values
/// that are not finite everything but `non_finite` is meaningless. Reads every value once from memory.
void add_variance(Queue<Space::cuda> queue, const GradientRows& gradients, const SignalSource& source,
                  const std::array<double, 3>& alphas, VarianceSums* partial, VarianceSums* sums, std::uint64_t* bins);

}  // namespace gradtool::cuda
