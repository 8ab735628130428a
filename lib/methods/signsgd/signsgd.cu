#include <cuda_runtime.h>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "lib/codecs/sign_codec.hpp"
#include "lib/methods/signsgd/reducer.hpp"

namespace gradtool {
namespace cuda {
namespace {

/// A thread votes on a word, with the planes of its counters in registers. `Planes` is at least majority.planes().
template <unsigned Planes>
__global__ void vote_kernel(format::Votes votes, format::Majority majority) {
  for (std::size_t w = thread_in_grid(); w < votes.words; w += threads_in_grid()) {
    std::uint32_t plane[Planes];
#pragma unroll
    for (unsigned b = 0; b < Planes; ++b) plane[b] = majority.initial(b);
    for (std::size_t r = 0; r < votes.ranks; ++r) {
      std::uint32_t carry = votes.row(r)[w];
#pragma unroll
      for (unsigned b = 0; b < Planes; ++b) {
        const std::uint32_t next = plane[b] & carry;
        plane[b] ^= carry;
        carry = next;
      }
    }
    std::uint32_t winners = 0;
#pragma unroll
    for (unsigned b = 0; b < Planes; ++b) winners = b == majority.top ? plane[b] : winners;
    votes.own[w] = winners;
  }
}

/// Moves the first 4 * fours elements by accesses of four, and the others one by one.
__global__ void momentum_kernel(const float* g, float beta, float* m, std::size_t count, std::size_t fours) {
  const float share = 1.0f - beta;
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const Four<float> gradient = reinterpret_cast<const Four<float>*>(g)[i];
    Four<float> moved = reinterpret_cast<const Four<float>*>(m)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) moved.value[k] = format::one_nan(beta * moved.value[k] + share * gradient.value[k]);
    reinterpret_cast<Four<float>*>(m)[i] = moved;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < count; i += threads_in_grid())
    m[i] = format::one_nan(beta * m[i] + share * g[i]);
}

__global__ void divide_kernel(float* x, std::size_t count, float by) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) x[i] = x[i] / by;
}

}  // namespace
}  // namespace cuda

void vote(Queue<Space::cuda> queue, const format::Votes& votes) {
  expect_valid(votes.ranks < (1U << 16), "a vote of signs on a GPU is for fewer than 65536 ranks");
  if (votes.words == 0) return;
  const auto majority = format::Majority::of(static_cast<std::uint32_t>(votes.ranks));
  const auto kernel = majority.planes() <= 2   ? cuda::vote_kernel<2>
                      : majority.planes() <= 4 ? cuda::vote_kernel<4>
                                               : cuda::vote_kernel<17>;
  cuda::launch(queue, "vote", kernel, cuda::blocks_for(votes.words, cuda::kThreads), votes, majority);
}

void move_momentum(Queue<Space::cuda> queue, View<const float, Space::cuda> g, float beta, View<float, Space::cuda> m) {
  expects(g.size() == m.size(), "a momentum needs a gradient of its size");
  if (m.empty()) return;
  const std::size_t fours = cuda::aligned_to(g.data(), 16) && cuda::aligned_to(m.data(), 16) ? m.size() / 4 : 0;
  cuda::launch(queue, "momentum", cuda::momentum_kernel, cuda::blocks_for(m.size(), 4 * cuda::kThreads), g.data(), beta,
               m.data(), m.size(), fours);
}

void divide(Queue<Space::cuda> queue, View<float, Space::cuda> view, float by) {
  if (view.empty()) return;
  cuda::launch(queue, "divide", cuda::divide_kernel, cuda::blocks_for(view.size(), cuda::kThreads), view.data(),
               view.size(), by);
}

namespace {

std::unique_ptr<Codec<Space::cuda>> make_gpu_signsgd(const Params& params, const Layout& layout) {
  return make_gpu_sign_codec("signsgd", params, layout, params.is("scale", "mean"));
}

}  // namespace

extern constinit const GpuFactories signsgd_gpu{
    .codec = make_gpu_signsgd, .reducer = make_method_reducer<Space::cuda, SignSgdReducer<Space::cuda>>};

}  // namespace gradtool
