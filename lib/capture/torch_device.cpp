#include "lib/capture/torch_device.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "lib/core/device.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

// Every step allocates the same megabytes again. Given back to the system in between, they cost a fifth of the time of
// a ResNet-20 step in page faults.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

void repeatable_float32() {
  auto& context = at::globalContext();
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowTF32CuBLAS(false);
  // cuBLAS adds in one order only with a workspace of fixed size; it looks here when it is first used.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
}

}  // namespace

torch::Device open_device(const std::string& name, int operator_threads) {
  keep_freed_memory();
  at::set_num_threads(operator_threads);
  // OpenBLAS keeps threads of its own, which LibTorch does not know of. Where another BLAS is used there is no such
  // name.
  if (void* setter = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(setter)(operator_threads);
  }
  const DeviceChoice wanted = parse_device(name);
  if (!wanted.cuda) return torch::kCPU;
  if (!torch::cuda::is_available()) {
    throw Error{Fault::unavailable, fmt::format("--device {}: LibTorch finds no CUDA device here, or was built without "
                                                "CUDA",
                                                name)};
  }
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (wanted.index >= count) {
    throw Error{Fault::unavailable,
                fmt::format("--device {}: LibTorch sees GPUs 0 to {} on this machine", name, count - 1)};
  }
  repeatable_float32();
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(wanted.index)};
}

void wait_for(const torch::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

void join_device() {
  thread_local bool joined = false;
  if (!joined) at::init_num_threads();
  joined = true;
}

}  // namespace gradtool
