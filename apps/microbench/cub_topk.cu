#include "apps/microbench/cub_topk.hpp"

#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#include <cuda/iterator>
#include <cuda/std/execution>
#include <cuda/stream_ref>

namespace gradtool {
namespace {

struct Magnitude {
  __host__ __device__ float operator()(float x) const { return x < 0.0f ? -x : x; }
};

void run(void* temporary, std::size_t& bytes, const float* x, std::size_t n, std::size_t k, float* magnitudes,
         std::uint32_t* places, cudaStream_t stream) {
  // The only kind that CCCL 3.3 has: any of equal keys, in any order.
  const auto any = ::cuda::execution::require(::cuda::execution::determinism::not_guaranteed,
                                              ::cuda::execution::output_ordering::unsorted);
  GT_CUDA(cub::DeviceTopK::MaxPairs(temporary, bytes, ::cuda::transform_iterator{x, Magnitude{}}, magnitudes,
                                    ::cuda::counting_iterator<std::uint32_t>{0}, places, static_cast<std::int64_t>(n),
                                    static_cast<std::int64_t>(k),
                                    ::cuda::std::execution::env{::cuda::stream_ref{stream}, any}));
}

}  // namespace

bool has_cub_topk() {
  return true;
}

std::size_t cub_topk_bytes(std::size_t n, std::size_t k) {
  std::size_t bytes = 0;
  run(nullptr, bytes, nullptr, n, k, nullptr, nullptr, nullptr);
  return bytes;
}

void cub_topk(Queue<Space::cuda> queue, View<std::byte, Space::cuda> temporary, const float* x, std::size_t n,
              std::size_t k, float* magnitudes, std::uint32_t* places) {
  std::size_t bytes = temporary.size();
  run(temporary.data(), bytes, x, n, k, magnitudes, places, queue.stream);
}

}  // namespace gradtool

#else  // the CCCL of CUDA 13.0 is older, and the emulated GPU has none
namespace gradtool {
namespace {

constexpr const char* kMissing = "this gradtool_microbench was built without cub::DeviceTopK";

}  // namespace

bool has_cub_topk() {
  return false;
}

std::size_t cub_topk_bytes(std::size_t /*n*/, std::size_t /*k*/) {
  throw Error{Fault::unavailable, kMissing};
}

void cub_topk(Queue<Space::cuda> /*queue*/, View<std::byte, Space::cuda> /*temporary*/, const float* /*x*/,
              std::size_t /*n*/, std::size_t /*k*/, float* /*magnitudes*/, std::uint32_t* /*places*/) {
  throw Error{Fault::unavailable, kMissing};
}

}  // namespace gradtool
#endif
