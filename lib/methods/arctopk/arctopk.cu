// ARC-Top-K on a GPU: PowerSGD's first product, and the choice of rows.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/methods/arctopk/reducer.hpp"
#include "lib/methods/powersgd/cuda_steps.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;
using cuda::kWarpSize;

/// Scores of `rows` rows that are at least `least`; every thread gets it.
__device__ std::size_t at_least(const std::uint32_t* scores, std::size_t rows, std::uint32_t least) {
  double count = 0.0;
  for (std::size_t row = threadIdx.x; row < rows; row += kThreads) count += scores[row] >= least ? 1.0 : 0.0;
  return static_cast<std::size_t>(cuda::block_sum(count));
}

/// The rows with the largest scores, ascending; of equal ones the first. A block chooses for a matrix: bit by bit it
/// finds the k-th largest score, then it goes through the rows in their order. Rows are few beside elements.
__global__ void choose_kernel(const LowRankMatrix* matrices, const KeptRows* kept_rows, const float* p,
                              std::uint32_t* scores, std::uint32_t* chosen) {
  __shared__ std::uint32_t above_of_warp[kThreads / kWarpSize], ties_of_warp[kThreads / kWarpSize];
  const LowRankMatrix matrix = matrices[blockIdx.x];
  const KeptRows kept = kept_rows[blockIdx.x];
  std::uint32_t* own = scores + kept.score_first;
  for (std::size_t row = threadIdx.x; row < matrix.rows; row += kThreads) own[row] = format::row_score(matrix, p, row);
  __syncthreads();
  std::uint32_t threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t larger = threshold | 1u << bit;
    if (at_least(own, matrix.rows, larger) >= kept.count) threshold = larger;
  }
  const std::size_t ties = kept.count - at_least(own, matrix.rows, threshold + 1);
  std::size_t above_before = 0, ties_before = 0;
  for (std::size_t first = 0; first < matrix.rows; first += kThreads) {
    const std::size_t row = first + threadIdx.x;
    const bool above = row < matrix.rows && own[row] > threshold;
    const bool tie = row < matrix.rows && own[row] == threshold;
    const unsigned all_above = __ballot_sync(cuda::kAllLanes, above);
    const unsigned all_ties = __ballot_sync(cuda::kAllLanes, tie);
    const unsigned lane = cuda::lane_in_warp(), warp = threadIdx.x / kWarpSize;
    if (lane == 0) {
      above_of_warp[warp] = cuda::bits_set(all_above);
      ties_of_warp[warp] = cuda::bits_set(all_ties);
    }
    __syncthreads();
    std::size_t above_here = above_before + cuda::bits_set(all_above & cuda::lanes_below(lane));
    std::size_t ties_here = ties_before + cuda::bits_set(all_ties & cuda::lanes_below(lane));
    for (unsigned w = 0; w < kThreads / kWarpSize; ++w) {
      if (w < warp) {
        above_here += above_of_warp[w];
        ties_here += ties_of_warp[w];
      }
      above_before += above_of_warp[w];
      ties_before += ties_of_warp[w];
    }
    if (above || (tie && ties_here < ties))
      chosen[kept.first + above_here + (ties_here < ties ? ties_here : ties)] = static_cast<std::uint32_t>(row);
    __syncthreads();  // the counts are read before the next rows' are written
  }
}

/// message := the chosen rows. blockIdx.y is the matrix, as in the next ones.
__global__ void gather_rows_kernel(const LowRankMatrix* matrices, const KeptRows* kept_rows,
                                   const std::uint32_t* chosen, const float* m, float* message) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const KeptRows kept = kept_rows[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < kept.count * matrix.columns; i += cuda::threads_in_grid()) {
    const std::size_t row = chosen[kept.first + i / matrix.columns];
    message[kept.message_first + i] = m[matrix.first + row * matrix.columns + i % matrix.columns];
  }
}

__global__ void clear_kernel(const LowRankMatrix* matrices, float* out) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < matrix.rows * matrix.columns; i += cuda::threads_in_grid())
    out[matrix.first + i] = 0.0F;
}

__global__ void place_rows_kernel(const LowRankMatrix* matrices, const KeptRows* kept_rows, const std::uint32_t* chosen,
                                  const float* message, float share, float* out, float* residual) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const KeptRows kept = kept_rows[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < kept.count * matrix.columns; i += cuda::threads_in_grid()) {
    const std::size_t row = chosen[kept.first + i / matrix.columns];
    const std::size_t place = matrix.first + row * matrix.columns + i % matrix.columns;
    out[place] = message[kept.message_first + i] * share;
    if (residual != nullptr) residual[place] = 0.0F;
  }
}

class CudaArcSteps : public CudaLowRankSteps {
 public:
  CudaArcSteps(const LowRankPlan& plan, const std::vector<KeptRows>& kept, Queue<Space::cuda> queue)
      : CudaLowRankSteps{plan, queue},
        table_{std::max<std::size_t>(kept.size(), 1) * sizeof(KeptRows)},
        kept_{table_.take<KeptRows>(kept.size())} {
    for (std::size_t m = 0; m < kept.size(); ++m) {
      rows_ += plan.matrices[m].rows;
      rows_kept_ += kept[m].count;
      most_kept_ = std::max(most_kept_, kept[m].count * plan.matrices[m].columns);
    }
    cuda::copy_elements(queue, kept_, HostView<const KeptRows>{kept.data(), kept.size()});
    cuda::synchronize(queue);
  }

  struct Choice {
    Choice(const CudaArcSteps& steps, Scratch<Space::cuda>& scratch)
        : scores{scratch.take<std::uint32_t>(steps.rows_)}, rows{scratch.take<std::uint32_t>(steps.rows_kept_)} {}
    View<std::uint32_t, Space::cuda> scores, rows;
  };

  void choose(const Choice& choice, Queue<Space::cuda> queue, ConstFloats p) const {
    cuda::launch(queue, "arctopk choose", choose_kernel, cuda::Grid{static_cast<unsigned>(kept_.size())}, table(),
                 kept_.data(), p.data(), choice.scores.data(), choice.rows.data());
  }
  void gather(const Choice& choice, Queue<Space::cuda> queue, ConstFloats m, Floats message) const {
    cuda::launch(queue, "arctopk gather", gather_rows_kernel, grid(most_kept_), table(), kept_.data(),
                 choice.rows.data(), m.data(), message.data());
  }
  void place(const Choice& choice, Queue<Space::cuda> queue, ConstFloats message, float share, Floats out,
             Floats residual) const {
    cuda::launch(queue, "arctopk clear", clear_kernel, grid(matrices().largest), table(), out.data());
    cuda::launch(queue, "arctopk place", place_rows_kernel, grid(most_kept_), table(), kept_.data(), choice.rows.data(),
                 message.data(), share, out.data(), residual.empty() ? nullptr : residual.data());
  }

 private:
  static constexpr std::size_t kMostBlocks = 1024;  ///< for a matrix

  [[nodiscard]] const LowRankMatrix* table() const { return matrices().matrices.data(); }
  [[nodiscard]] cuda::Grid grid(std::size_t elements) const {
    cuda::Grid grid{cuda::blocks_for(elements, kThreads, kMostBlocks)};
    grid.y = static_cast<unsigned>(kept_.size());
    return grid;
  }

  Arena<Space::cuda> table_;
  View<KeptRows, Space::cuda> kept_;
  std::size_t rows_ = 0, rows_kept_ = 0;  ///< of all matrices
  std::size_t most_kept_ = 0;             ///< elements of the most that is kept of a matrix
};

std::unique_ptr<Reducer<Space::cuda>> make_gpu_reducer(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<ArcTopKReducer<Space::cuda, CudaArcSteps>>(setup);
}

}  // namespace

extern constinit const GpuFactories arctopk_gpu{.reducer = make_gpu_reducer};

}  // namespace gradtool
