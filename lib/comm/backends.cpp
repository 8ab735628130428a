#include <fmt/format.h>

#include <thread>

#include "lib/comm/launch.hpp"
#ifdef GT_WITH_CUDA
#include "kernels/cuda/runtime.hpp"
#endif
#ifdef GT_WITH_MPI
#include "lib/comm/mpi.hpp"
#endif
#ifdef GT_WITH_NCCL
#include "lib/comm/nccl.hpp"
#endif

namespace gradtool {
namespace {

BackendStatus threads_status() {
  return {"threads", true,
          fmt::format("ranks in this process, {} hardware threads", std::thread::hardware_concurrency())};
}

BackendStatus mpi_status() {
#ifdef GT_WITH_MPI
  const MpiPlace place = mpi_place();
  return {"mpi", true,
          fmt::format("{}, {} process{} (more with mpirun)", mpi_library_version(), place.size,
                      place.size == 1 ? "" : "es")};
#else
  return {"mpi", false, "built without MPI"};
#endif
}

#ifdef GT_WITH_CUDA
/// "2 GPUs" and true, or why there is none and false.
BackendStatus gpu_status(const char* name, const std::string& what) {
  const int count = cuda::device_count();
  if (count == 0) return {name, false, fmt::format("{}built in, no GPU here: {}", what, cuda::no_device_reason())};
  return {name, true,
          fmt::format("{}{} GPU{}, {}", what, count, count == 1 ? "" : "s", cuda::describe(cuda::device_info(0)))};
}
#endif

BackendStatus nccl_status() {
#ifdef GT_WITH_NCCL
  return gpu_status("nccl", nccl_library_version() + ", ");
#else
  return {"nccl", false, "built without NCCL"};
#endif
}

BackendStatus loopback_status() {
#ifdef GT_WITH_CUDA
  return gpu_status("loopback", "");
#else
  return {"loopback", false, "built without CUDA"};
#endif
}

}  // namespace

std::vector<BackendStatus> comm_backends() {
  return {threads_status(), mpi_status(), nccl_status(), loopback_status()};
}

}  // namespace gradtool
