// ARC-Top-K on a GPU: PowerSGD's first product, and the keys of rows.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/codecs/cuda_low_rank_steps.hpp"
#include "lib/methods/arctopk/reducer.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;

/// blockIdx.y is the matrix, of which every one has keys.
__global__ void keys_kernel(const LowRankMatrix* matrices, const RowMatrix* rows, const float* p, std::uint32_t* keys) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  std::uint32_t* own = keys + rows[blockIdx.y].key_first;
  for (std::size_t row = cuda::thread_in_grid(); row < matrix.rows; row += cuda::threads_in_grid())
    own[row] = format::projected_key(matrix, p, row);
}

class CudaArcSteps : public CudaLowRankSteps {
 public:
  using CudaLowRankSteps::CudaLowRankSteps;

  void keys(const RowSelection<Space::cuda>& rows, Queue<Space::cuda> queue, ConstFloats p,
            View<std::uint32_t, Space::cuda> keys) const {
    std::size_t most = 0;
    for (const RowMatrix& matrix : rows.plan().matrices) most = std::max(most, matrix.rows);
    cuda::Grid grid{cuda::blocks_for(most, kThreads)};
    grid.y = static_cast<unsigned>(rows.table().size());
    cuda::launch(queue, "arctopk keys", keys_kernel, grid, matrices().matrices.data(), rows.table().data(), p.data(),
                 keys.data());
  }
};

}  // namespace

extern constinit const GpuFactories arctopk_gpu{
    .reducer = make_method_reducer<Space::cuda, ArcTopKReducer<Space::cuda, CudaArcSteps>>};

}  // namespace gradtool
