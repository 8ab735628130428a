#include "kernels/cuda/vote.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/law/majority.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;

/// Counters of 32 positions lie in registers; `Planes` is at least law.planes().
template <unsigned Planes>
__global__ void vote_kernel(law::Votes votes, law::Majority law) {
  for (std::size_t w = thread_in_grid(); w < votes.words; w += threads_in_grid()) {
    std::uint32_t plane[Planes];
#pragma unroll
    for (unsigned b = 0; b < Planes; ++b) plane[b] = law.initial(b);
    for (std::size_t r = 0; r < votes.ranks; ++r) {
      std::uint32_t carry = votes.row(r)[w];
#pragma unroll
      for (unsigned b = 0; b < Planes; ++b) {
        const std::uint32_t next = plane[b] & carry;
        plane[b] ^= carry;
        carry = next;
      }
    }
    std::uint32_t majority = 0;
#pragma unroll
    for (unsigned b = 0; b < Planes; ++b) majority = b == law.top ? plane[b] : majority;
    votes.own[w] = majority;
  }
}

/// The first 4 * fours elements by fours, the rest one by one.
__global__ void momentum_kernel(const float* g, float beta, float* m, std::size_t count, std::size_t fours) {
  const float share = 1.0f - beta;
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const Four<float> gradient = reinterpret_cast<const Four<float>*>(g)[i];
    Four<float> moved = reinterpret_cast<const Four<float>*>(m)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) moved.value[k] = law::one_nan(beta * moved.value[k] + share * gradient.value[k]);
    reinterpret_cast<Four<float>*>(m)[i] = moved;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < count; i += threads_in_grid())
    m[i] = law::one_nan(beta * m[i] + share * g[i]);
}

__global__ void divide_kernel(float* x, std::size_t count, float by) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) x[i] = x[i] / by;
}

}  // namespace

void vote(Queue<Space::cuda> queue, const law::Votes& votes) {
  expects(votes.ranks < (1U << 16), "a vote of signs on a GPU is for fewer than 65536 ranks");
  if (votes.words == 0) return;
  const auto law = law::Majority::of(static_cast<std::uint32_t>(votes.ranks));
  const auto kernel = law.planes() <= 2 ? vote_kernel<2> : law.planes() <= 4 ? vote_kernel<4> : vote_kernel<17>;
  launch(queue, "vote", kernel, blocks_for(votes.words, kThreads), votes, law);
}

void move_momentum(Queue<Space::cuda> queue, View<const float, Space::cuda> g, float beta, View<float, Space::cuda> m) {
  expects(g.size() == m.size(), "a momentum needs a gradient of its size");
  if (m.empty()) return;
  const std::size_t fours = aligned_to(g.data(), 16) && aligned_to(m.data(), 16) ? m.size() / 4 : 0;
  launch(queue, "momentum", momentum_kernel, blocks_for(m.size(), 4 * kThreads), g.data(), beta, m.data(), m.size(),
         fours);
}

void divide(Queue<Space::cuda> queue, View<float, Space::cuda> view, float by) {
  if (view.empty()) return;
  launch(queue, "divide", divide_kernel, blocks_for(view.size(), kThreads), view.data(), view.size(), by);
}

}  // namespace gradtool::cuda
