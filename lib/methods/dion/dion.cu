// Dion on a GPU: PowerSGD's steps, and the lengths of columns.
#include <cuda_runtime.h>

#include <memory>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/codecs/cuda_low_rank_steps.hpp"
#include "lib/methods/dion/format.hpp"
#include "lib/methods/dion/reducer.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;

/// lengths[j] := the length of column j of Q. blockIdx is (column, matrix), as in the next ones.
__global__ void lengths_kernel(const LowRankMatrix* matrices, const float* q, double* lengths) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  if (blockIdx.x >= matrix.rank) return;
  const float* column = q + matrix.q_first + blockIdx.x * matrix.columns;
  double squares = 0.0;
  for (std::size_t k = threadIdx.x; k < matrix.columns; k += kThreads) {
    const auto x = static_cast<double>(column[k]);
    squares += x * x;
  }
  squares = cuda::block_sum(squares);
  if (threadIdx.x == 0) lengths[matrix.column_first + blockIdx.x] = sqrt(squares);
}

__global__ void normalise_kernel(const LowRankMatrix* matrices, const double* lengths, double keep, bool scaled,
                                 float* q, float* lost) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  if (blockIdx.x >= matrix.rank) return;
  const double length = format::dion_taken(lengths + matrix.column_first, matrix.rank, blockIdx.x);
  const double factor = length == 0.0 ? 0.0 : format::dion_length(matrix, scaled) / length;
  const std::size_t first = matrix.q_first + blockIdx.x * matrix.columns;
  for (std::size_t k = first + threadIdx.x; k < first + matrix.columns; k += kThreads) {
    const auto value = static_cast<double>(q[k]);
    lost[k] = static_cast<float>(value * keep);
    q[k] = static_cast<float>(value * factor);
  }
}

__global__ void divide_kernel(const LowRankMatrix* matrices, const double* lengths, bool scaled, float* t) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  if (blockIdx.x >= matrix.rank) return;
  const double length = format::dion_taken(lengths + matrix.column_first, matrix.rank, blockIdx.x);
  const double factor = length == 0.0 ? 0.0 : 1.0 / (length * format::dion_length(matrix, scaled));
  float* column = t + matrix.p_first + blockIdx.x * matrix.rows;
  for (std::size_t i = threadIdx.x; i < matrix.rows; i += kThreads)
    column[i] = static_cast<float>(static_cast<double>(column[i]) * factor);
}

class CudaDionSteps : public CudaLowRankSteps {
 public:
  using CudaLowRankSteps::CudaLowRankSteps;

  void normalise(Queue<Space::cuda> queue, Floats q, double keep, bool scaled, View<double, Space::cuda> lengths,
                 Floats lost) const {
    if (matrices().matrices.empty()) return;
    const LowRankMatrix* all = matrices().matrices.data();
    cuda::launch(queue, "dion lengths", lengths_kernel, columns(), all, q.data(), lengths.data());
    cuda::launch(queue, "dion normalise", normalise_kernel, columns(), all, lengths.data(), keep, scaled, q.data(),
                 lost.data());
  }
  void divide(Queue<Space::cuda> queue, View<const double, Space::cuda> lengths, bool scaled, Floats t) const {
    if (matrices().matrices.empty()) return;
    cuda::launch(queue, "dion divide", divide_kernel, columns(), matrices().matrices.data(), lengths.data(), scaled,
                 t.data());
  }

 private:
  [[nodiscard]] cuda::Grid columns() const {
    cuda::Grid grid{static_cast<unsigned>(most_rank())};
    grid.y = static_cast<unsigned>(matrices().matrices.size());
    return grid;
  }
};

}  // namespace

extern constinit const GpuFactories dion_gpu{
    .reducer = make_method_reducer<Space::cuda, DionReducer<Space::cuda, CudaDionSteps>>};

}  // namespace gradtool
