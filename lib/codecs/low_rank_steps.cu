// Steps between the collectives of methods that spread a power iteration over ranks, on a GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/cuda_low_rank_steps.hpp"

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
__global__ void gather_kernel(const LowRankPlan::Uncompressed* parts, const float* gradient, float* message) {
  const LowRankPlan::Uncompressed part = parts[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < part.count; i += cuda::threads_in_grid())
    message[part.message_first + i] = gradient[part.first + i];
}
/// Copies back from the message, times `share`.
__global__ void scatter_kernel(const LowRankPlan::Uncompressed* parts, const float* message, float share,
                               float* gradient) {
  const LowRankPlan::Uncompressed part = parts[blockIdx.y];
  for (std::size_t i = cuda::thread_in_grid(); i < part.count; i += cuda::threads_in_grid())
    gradient[part.first + i] = message[part.message_first + i] * share;
}

/// For the two kernels above: `longest` elements in the longest of `stretches`.
cuda::Grid grid_of(std::size_t longest, std::size_t stretches) {
  cuda::Grid grid{cuda::blocks_for(longest, kThreads, kMostBlocks)};
  grid.y = static_cast<unsigned>(stretches);
  return grid;
}

}  // namespace

CudaLowRankSteps::CudaLowRankSteps(const LowRankPlan& plan, Queue<Space::cuda> queue)
    : plan_{plan},
      tables_{planned<Tables>(plan)},
      blas_{std::all_of(plan.matrices.begin(), plan.matrices.end(), format::is_skinny) ? nullptr
                                                                                       : cuda::Blas::of_this_thread()},
      skinny_{plan.matrices, plan.q_size} {
  expect_valid(plan.matrices.size() <= kMostInGrid && plan.uncompressed.size() <= kMostInGrid,
               "too many tensors in one bucket for low-rank factors on a GPU");
  products_.reserve(plan.matrices.size());
  const Tables tables{plan, Scratch<Space::cuda>{tables_.take_bytes(tables_.capacity())}};
  cuda::copy_elements(queue, tables.matrices,
                      HostView<const LowRankMatrix>{plan.matrices.data(), plan.matrices.size()});
  cuda::copy_elements(queue, tables.uncompressed,
                      HostView<const LowRankPlan::Uncompressed>{plan.uncompressed.data(), plan.uncompressed.size()});
  cuda::synchronize(queue);
  uncompressed_ = tables.uncompressed.data();
  matrices_.matrices = tables.matrices;
  for (const LowRankMatrix& matrix : plan.matrices) {
    matrices_.largest = std::max(matrices_.largest, matrix.rows * matrix.columns);
    most_rank_ = std::max(most_rank_, matrix.rank);
  }
  for (const auto& part : plan.uncompressed) longest_ = std::max(longest_, part.count);
}

void CudaLowRankSteps::first_product(const Workspace& work, Queue<Space::cuda> queue, const State& state,
                                     Floats gradient, const format::DrawKey& key, bool redraw_all) {
  if (!plan_.uncompressed.empty()) {
    cuda::launch(queue, "powersgd gather", gather_kernel, grid_of(longest_, plan_.uncompressed.size()), uncompressed_,
                 gradient.data(), state.p.data());
  }
  if (plan_.matrices.empty()) return;
  if (!state.residual.empty()) {
    cuda::update_residual(queue, matrices_, lost_ == nullptr ? nullptr : state.p.data(), lost_, gradient.data(),
                          state.residual.data());
    lost_ = nullptr;
  }
  cuda::Grid columns{static_cast<unsigned>(most_rank_)};
  columns.y = static_cast<unsigned>(plan_.matrices.size());
  cuda::launch(queue, "powersgd draw columns", draw_columns_kernel, columns, matrices_.matrices.data(), key, redraw_all,
               state.q.data());
  project(work, queue, state.matrices(gradient), state.q, state.p);
}

void CudaLowRankSteps::second_product(const Workspace& work, Queue<Space::cuda> queue, const State& state,
                                      Floats gradient) {
  cuda::orthonormalise(queue, matrices_, work.orthonormalise, state.p.data());
  const float* m = state.matrices(gradient).data();
  skinny_.project_columns(queue, matrices_, m, state.p.data(), work.sums, state.q.data());
  if (blas_ == nullptr) return;
  products_.clear();
  for (const LowRankMatrix& matrix : plan_.matrices) {
    if (format::is_skinny(matrix)) continue;
    products_.push_back({matrix.columns,
                         matrix.rank,
                         matrix.rows,
                         {m + matrix.first, matrix.columns},
                         {state.p.data() + matrix.p_first, matrix.rows},
                         state.q.data() + matrix.q_first,
                         matrix.columns});
  }
  blas_->multiply(queue, work.blas, 1.0F, products_);
}

void CudaLowRankSteps::scatter(Queue<Space::cuda> queue, ConstFloats message, float share, Floats out) const {
  if (plan_.uncompressed.empty()) return;
  cuda::launch(queue, "powersgd scatter", scatter_kernel, grid_of(longest_, plan_.uncompressed.size()), uncompressed_,
               message.data(), share, out.data());
}

void CudaLowRankSteps::rebuild(Queue<Space::cuda> queue, const State& state, Floats gradient, ConstFloats lost) {
  product(queue, state.p, state.q, gradient);
  lost_ = state.residual.empty() ? nullptr : lost.data();
}

void CudaLowRankSteps::project(const Workspace& work, Queue<Space::cuda> queue, ConstFloats m, ConstFloats q,
                               Floats p) {
  skinny_.project(queue, matrices_, m.data(), q.data(), p.data());
  if (blas_ == nullptr) return;
  products_.clear();
  for (const LowRankMatrix& matrix : plan_.matrices) {  // a row-major M is Mᵀ to cuBLAS
    if (format::is_skinny(matrix)) continue;
    products_.push_back({matrix.rows,
                         matrix.rank,
                         matrix.columns,
                         {m.data() + matrix.first, matrix.columns, true},
                         {q.data() + matrix.q_first, matrix.columns},
                         p.data() + matrix.p_first,
                         matrix.rows});
  }
  blas_->multiply(queue, work.blas, 1.0F, products_);
}

void CudaLowRankSteps::product(Queue<Space::cuda> queue, ConstFloats p, ConstFloats q, Floats out) const {
  cuda::rebuild_low_rank(queue, matrices_, p.data(), q.data(), out.data());
}

void CudaLowRankSteps::settle(Queue<Space::cuda> queue, const State& state) {
  if (lost_ == nullptr) return;
  cuda::update_residual(queue, matrices_, state.p.data(), lost_, nullptr, state.residual.data());
  lost_ = nullptr;
}

}  // namespace gradtool
