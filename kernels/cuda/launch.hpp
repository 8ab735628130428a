#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/runtime.hpp"

/// The one place where kernels start. With nvcc that is a launch on a GPU; in an emulated build (emulation/README.md)
/// the same sources run on the CPU.
namespace gradtool::cuda {

/// How the threads of a kernel are laid out: blocks.x by blocks.y blocks of `threads` in a row, and the bytes that
/// dynamic_shared() gives every block. More than 48 KiB of them are asked for as the GPU wants it.
struct Grid {
  // NOLINTNEXTLINE(google-explicit-constructor): most kernels need a number of blocks and nothing else
  Grid(unsigned blocks, unsigned threads_in_block = kThreads, std::size_t shared = 0)
      : x{blocks}, threads{threads_in_block}, shared_bytes{shared} {}
  unsigned x;
  unsigned y = 1;
  unsigned threads;
  std::size_t shared_bytes;
};

/// Enqueues kernel(arguments...) on `queue`. Throws Fault::backend naming `name` when the launch is refused; does not
/// wait for the kernel. Arguments are converted to the kernel's parameters and copied.
template <class... Parameters>
void launch(Queue<Space::cuda> queue, const char* name, void (*kernel)(Parameters...), const Grid& grid,
            std::type_identity_t<Parameters>... arguments) {
#if defined(__CUDACC__)
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (grid.shared_bytes > kWithoutAsking) {
    GT_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(grid.shared_bytes)));
  }
  kernel<<<dim3{grid.x, grid.y}, grid.threads, grid.shared_bytes, queue.stream>>>(arguments...);
#else
  emulation::launch(queue.stream, name, {grid.x, grid.y, 1}, {grid.threads, 1, 1}, grid.shared_bytes,
                    [=] { kernel(arguments...); });
#endif
  check_launch(name);
}

/// The block's dynamic shared memory, 16-byte aligned, of the size that its launch asked for.
__device__ inline std::byte* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ uint4 gradtool_shared[];
  return reinterpret_cast<std::byte*>(gradtool_shared);
#else
  return emulation::dynamic_shared();
#endif
}

}  // namespace gradtool::cuda
