// The row selection of Dion2 on a GPU: what rows are chosen by.
#include <cuda_runtime.h>

#include <memory>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/methods/dion2/reducer.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;

__global__ void norm_keys_kernel(const float* norms, std::size_t rows, std::uint32_t* keys) {
  for (std::size_t i = cuda::thread_in_grid(); i < rows; i += cuda::threads_in_grid())
    keys[i] = format::row_key(norms[i]);
}
__global__ void drawn_keys_kernel(format::DrawKey key, std::size_t rows, std::uint32_t* keys) {
  for (std::size_t i = cuda::thread_in_grid(); i < rows; i += cuda::threads_in_grid())
    keys[i] = format::drawn_row_key(key, i);
}

}  // namespace

void row_keys(Queue<Space::cuda> queue, View<const float, Space::cuda> norms, View<std::uint32_t, Space::cuda> keys) {
  if (keys.empty()) return;
  cuda::launch(queue, "dion2 keys", norm_keys_kernel, cuda::Grid{cuda::blocks_for(keys.size(), kThreads)}, norms.data(),
               keys.size(), keys.data());
}
void row_keys(Queue<Space::cuda> queue, const format::DrawKey& key, View<std::uint32_t, Space::cuda> keys) {
  if (keys.empty()) return;
  cuda::launch(queue, "dion2 draws", drawn_keys_kernel, cuda::Grid{cuda::blocks_for(keys.size(), kThreads)}, key,
               keys.size(), keys.data());
}

extern constinit const GpuFactories dion2_gpu{.reducer = make_method_reducer<Space::cuda, Dion2Reducer<Space::cuda>>};

}  // namespace gradtool
