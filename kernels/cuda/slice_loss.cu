#include "kernels/cuda/slice_loss.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/unit_launch.hpp"

namespace gradtool::cuda {
namespace {

/// A block has a unit: the coefficients of a layer are few.
struct SumSquares {
  double* sums;

  [[nodiscard]] static std::size_t blocks(std::size_t /*n*/) { return 1; }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& /*place*/) const {
    const auto* x = static_cast<const float*>(unit.to);
    double sum = 0.0;
    for (std::size_t i = threadIdx.x; i < unit.n; i += kThreads) {
      const double value = static_cast<double>(x[i]);
      sum += value * value;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[index] = sum;
  }
};

/// One block.
__global__ void vote_kernel(const double* norms, std::size_t pieces, const double* kept, std::size_t layers,
                            double worst, float* vote) {
  double energy = 0.0;
  double left = 0.0;
  double in_coefficients = 0.0;
  for (std::size_t k = threadIdx.x; k < pieces; k += kThreads) {
    energy += norms[2 * k];
    left += norms[2 * k + 1];
  }
  for (std::size_t k = threadIdx.x; k < layers; k += kThreads) in_coefficients += kept[k];
  energy = block_sum(energy);
  left = block_sum(left) - block_sum(in_coefficients);
  const double loss = energy > 0.0 ? sqrt((left > 0.0 ? left : 0.0) / energy) : 0.0;
  if (threadIdx.x == 0) *vote = loss > worst ? 1.0f : 0.0f;
}

}  // namespace

void sum_squares(Queue<Space::cuda> queue, std::span<const Unit> units, double* sums) {
  launch_units(queue, "sum squares", SumSquares{sums}, units);
}

void vote_on_loss(Queue<Space::cuda> queue, const double* norms, std::size_t pieces, const double* kept,
                  std::size_t layers, double worst, float* vote) {
  launch(queue, "vote", vote_kernel, 1, norms, pieces, kept, layers, worst, vote);
}

}  // namespace gradtool::cuda
