#include "lib/capture/torch_device.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

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

}  // namespace

torch::Device open_device(const std::string& name, int operator_threads) {
  keep_freed_memory();
  at::set_num_threads(operator_threads);
  // OpenBLAS keeps threads of its own, which LibTorch does not know of. Where another BLAS is used there is no such
  // name.
  if (void* setter = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(setter)(operator_threads);
  }
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  if (name == "cpu") return torch::kCPU;
  if (torch::cuda::is_available()) return torch::kCUDA;
  throw Error{Fault::unavailable, "--device cuda: LibTorch finds no CUDA device here, or was built without CUDA"};
}

void join_device() {
  thread_local bool joined = false;
  if (!joined) at::init_num_threads();
  joined = true;
}

}  // namespace gradtool
