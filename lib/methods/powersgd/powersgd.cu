// PowerSGD on a GPU: products by cuBLAS, matrix by matrix, the rest for all matrices of a bucket at once.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/blas.hpp"
#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/methods/powersgd/format.hpp"
#include "lib/methods/powersgd/reducer.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;

constexpr std::size_t kMostInGrid = 65535;  ///< blocks in the second dimension of a grid, by CUDA's limit
constexpr std::size_t kMostBlocks = 1024;   ///< for one stretch of tensors that are sent as they are

/// Draws a column of Q anew if it is zero or not finite, or if `redraw_all` is set. blockIdx is (column, matrix).
__global__ void draw_columns_kernel(const LowRankMatrix* matrices, format::DrawKey key, bool redraw_all, float* q) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  if (blockIdx.x >= matrix.rank) return;
  const std::size_t first = matrix.q_first + blockIdx.x * matrix.columns;
  if (!redraw_all) {
    double squares = 0.0;
    for (std::size_t k = threadIdx.x; k < matrix.columns; k += kThreads) {
      const auto x = static_cast<double>(q[first + k]);
      squares += x * x;
    }
    squares = cuda::block_sum(squares);
    if (squares > 0.0 && squares < std::numeric_limits<double>::infinity()) return;
  }
  for (std::size_t k = threadIdx.x; k < matrix.columns; k += kThreads) q[first + k] = format::normal(key, first + k);
}

/// Tensors that are sent as they are, from the gradient to the message. blockIdx.y is the stretch of tensors.
__global__ void gather_kernel(const PowerSgdPlan::Uncompressed* parts, const float* gradient, float* message) {
  const PowerSgdPlan::Uncompressed part = parts[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < part.count; i += cuda::threads_in_grid())
    message[part.message_first + i] = gradient[part.first + i];
}
/// The same back, times `share`.
__global__ void scatter_kernel(const PowerSgdPlan::Uncompressed* parts, const float* message, float share,
                               float* gradient) {
  const PowerSgdPlan::Uncompressed part = parts[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < part.count; i += cuda::threads_in_grid())
    gradient[part.first + i] = message[part.message_first + i] * share;
}

/// The steps of PowerSgdReducer on a GPU. The residual is brought up to date when the next gradient is added to it:
/// until then P and Q of the last step, which the state keeps, say what is still to be subtracted. So a step reads or
/// writes each element of a matrix six times (24 bytes): gradient and residual in, M out; M for P; M for Q; the result.
class CudaSteps {
 public:
  using State = PowerSgdState<Space::cuda>;

  CudaSteps(const PowerSgdPlan& plan, Queue<Space::cuda> queue)
      : plan_{plan},
        tables_{Tables{plan, Scratch<Space::cuda>{}}.bytes},
        blas_{plan.matrices.empty() ? nullptr : cuda::Blas::of_this_thread()} {
    expect_valid(plan.matrices.size() <= kMostInGrid && plan.uncompressed.size() <= kMostInGrid,
                 "codec powersgd: too many tensors in one bucket for a GPU");
    const Tables tables{plan, Scratch<Space::cuda>{tables_.take_bytes(tables_.capacity())}};
    cuda::copy_elements(queue, tables.matrices,
                        HostView<const LowRankMatrix>{plan.matrices.data(), plan.matrices.size()});
    cuda::copy_elements(queue, tables.uncompressed,
                        HostView<const PowerSgdPlan::Uncompressed>{plan.uncompressed.data(), plan.uncompressed.size()});
    cuda::synchronize(queue);
    uncompressed_ = tables.uncompressed.data();
    matrices_.matrices = tables.matrices;
    for (const LowRankMatrix& matrix : plan.matrices) {
      matrices_.largest = std::max(matrices_.largest, matrix.rows * matrix.columns);
      most_rank_ = std::max(most_rank_, matrix.rank);
    }
    for (const auto& part : plan.uncompressed) longest_ = std::max(longest_, part.count);
  }

  struct Workspace {
    Workspace(const CudaSteps& steps, Scratch<Space::cuda>& scratch)
        : orthonormalise{steps.plan_.squares, scratch},
          blas{scratch.take_bytes(steps.blas_ == nullptr ? 0 : steps.blas_->work_bytes())} {}
    cuda::OrthonormaliseWorkspace orthonormalise;
    View<std::byte, Space::cuda> blas;
  };

  void first_product(const Workspace& work, Queue<Space::cuda> queue, const State& state,
                     View<float, Space::cuda> gradient, const format::DrawKey& key, bool redraw_all) const {
    if (!state.residual.empty()) {
      cuda::update_residual(queue, matrices_, subtract_ ? state.p.data() : nullptr,
                            subtract_ ? state.q.data() : nullptr, gradient.data(), state.residual.data());
    }
    cuda::Grid columns{static_cast<unsigned>(most_rank_)};
    columns.y = static_cast<unsigned>(plan_.matrices.size());
    cuda::launch(queue, "powersgd draw columns", draw_columns_kernel, columns, matrices_.matrices.data(), key,
                 redraw_all, state.q.data());
    if (!plan_.uncompressed.empty()) {
      cuda::launch(queue, "powersgd gather", gather_kernel, uncompressed_grid(), uncompressed_, gradient.data(),
                   state.p.data());
    }
    const float* m = state.matrices(gradient);
    for (const LowRankMatrix& matrix : plan_.matrices) {  // a row-major M is Mᵀ to cuBLAS
      blas_->multiply(queue, work.blas, matrix.rows, matrix.rank, matrix.columns, 1.0F,
                      {m + matrix.first, matrix.columns, true}, {state.q.data() + matrix.q_first, matrix.columns}, 0.0F,
                      state.p.data() + matrix.p_first, matrix.rows);
    }
  }

  void second_product(const Workspace& work, Queue<Space::cuda> queue, const State& state,
                      View<float, Space::cuda> gradient) const {
    cuda::orthonormalise(queue, matrices_, work.orthonormalise, state.p.data());
    const float* m = state.matrices(gradient);
    for (const LowRankMatrix& matrix : plan_.matrices) {
      blas_->multiply(queue, work.blas, matrix.columns, matrix.rank, matrix.rows, 1.0F,
                      {m + matrix.first, matrix.columns}, {state.p.data() + matrix.p_first, matrix.rows}, 0.0F,
                      state.q.data() + matrix.q_first, matrix.columns);
    }
  }

  /// Not by cuBLAS, which may add in another order on another rank's GPU: all ranks must get the same bits.
  void rebuild(Queue<Space::cuda> queue, const State& state, View<float, Space::cuda> gradient, float share) {
    scale(queue, state.q, share);
    if (!plan_.uncompressed.empty()) {
      cuda::launch(queue, "powersgd scatter", scatter_kernel, uncompressed_grid(), uncompressed_, state.p.data(), share,
                   gradient.data());
    }
    cuda::rebuild_low_rank(queue, matrices_, state.p.data(), state.q.data(), gradient.data());
    subtract_ = !state.residual.empty();
  }

  void settle(Queue<Space::cuda> queue, const State& state) {
    if (!subtract_) return;
    cuda::update_residual(queue, matrices_, state.p.data(), state.q.data(), nullptr, state.residual.data());
    subtract_ = false;
  }
  void forget() { subtract_ = false; }

 private:
  /// The plan in device memory.
  struct Tables {
    Tables(const PowerSgdPlan& plan, Scratch<Space::cuda> scratch)
        : matrices{scratch.take<LowRankMatrix>(plan.matrices.size())},
          uncompressed{scratch.take<PowerSgdPlan::Uncompressed>(plan.uncompressed.size())},
          bytes{scratch.bytes()} {}
    View<LowRankMatrix, Space::cuda> matrices;
    View<PowerSgdPlan::Uncompressed, Space::cuda> uncompressed;
    std::size_t bytes;
  };

  [[nodiscard]] cuda::Grid uncompressed_grid() const {
    cuda::Grid grid{cuda::blocks_for(longest_, kThreads, kMostBlocks)};
    grid.y = static_cast<unsigned>(plan_.uncompressed.size());
    return grid;
  }

  const PowerSgdPlan& plan_;
  Arena<Space::cuda> tables_;
  std::shared_ptr<cuda::Blas> blas_;
  cuda::LowRankTable matrices_;
  const PowerSgdPlan::Uncompressed* uncompressed_ = nullptr;  ///< in device memory
  std::size_t most_rank_ = 0;
  std::size_t longest_ = 0;  ///< elements of the longest stretch of tensors that are sent as they are
  bool subtract_ = false;    ///< the residual still contains P Qᵀ of the last step
};

std::unique_ptr<Reducer<Space::cuda>> make_gpu_reducer(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<PowerSgdReducer<Space::cuda, CudaSteps>>(setup);
}

}  // namespace

extern constinit const GpuFactories powersgd_gpu{.reducer = make_gpu_reducer};

}  // namespace gradtool
