#include "lib/comm/launch.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include "lib/core/error.hpp"
#include "lib/core/parse.hpp"

#ifdef GT_WITH_CUDA
#include "kernels/cuda/runtime.hpp"
#endif
#ifdef GT_WITH_MPI
#include "lib/comm/mpi.hpp"
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

BackendStatus udp_status() {
  return {"udp", true, "bounded-loss transport over UDP, started by mpirun or by RANK, WORLD_SIZE, MASTER_ADDR"};
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

/// The value of an environment variable that holds a whole number; nothing when it is not set or holds anything else.
std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  return number_of<int>(text);
}

}  // namespace

std::vector<BackendStatus> comm_backends() {
  return {threads_status(), mpi_status(), udp_status(), nccl_status(), loopback_status()};
}

MpiPlace mpi_place() {
  // These are the variables that Open MPI, MPICH and Intel MPI (PMI), MVAPICH2 and Slurm's srun set. SLURM_NTASKS does
  // not serve: Slurm also sets it in a batch script, which no launcher started. SLURM_STEP_NUM_TASKS belongs to a step
  // of srun.
  constexpr const char* kVariables[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                           {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank_name, size_name] : kVariables) {
    const auto rank = number_in(rank_name);
    const auto size = number_in(size_name);
    if (rank && size && *rank >= 0 && *rank < *size) return {*rank, *size};
  }
  const auto rank = number_in("RANK");
  const auto size = number_in("WORLD_SIZE");
  if (std::getenv("MASTER_ADDR") != nullptr && rank && size && *rank >= 0 && *rank < *size)
    return {.rank = *rank, .size = *size, .by_environment = true};
  return {};
}

// The launchers below stand in for those of backends that were left out at configure time. Each throws
// Fault::unavailable, which is exit status 77.

#ifndef GT_WITH_MPI
namespace {
[[noreturn]] void lacks_mpi() {
  throw Error{Fault::unavailable,
              "this gradtool was built without MPI; configure it where an MPI compiler wrapper is found (Debian: "
              "libopenmpi-dev)"};
}
}  // namespace

void run_mpi(const HostBody& /*body*/, double /*timeout_seconds*/) {
  lacks_mpi();
}
MpiPlace mpi_world(double /*timeout_seconds*/) {
  lacks_mpi();
}
bool mpi_started() noexcept {
  return false;
}
#endif

#ifndef GT_WITH_CUDA
void run_loopback(int /*ranks*/, int /*device*/, const CudaBody& /*body*/, double /*timeout_seconds*/) {
  throw Error{Fault::unavailable, "the loopback communicator needs CUDA, and this gradtool was built without it"};
}
#endif

#ifndef GT_WITH_NCCL
void run_nccl(int /*gpus*/, const CudaBody& /*body*/, double /*timeout_seconds*/) {
  throw Error{Fault::unavailable, "this gradtool was built without NCCL; configure it where nvcc and nccl.h are found"};
}
#endif

#if !defined(GT_WITH_NCCL) || !defined(GT_WITH_MPI)
void run_nccl_mpi(const CudaBody& /*body*/, double /*timeout_seconds*/) {
  throw Error{Fault::unavailable,
              "NCCL between processes needs both NCCL and MPI, and this gradtool was built without "
#ifndef GT_WITH_NCCL
              "NCCL"
#else
              "MPI"
#endif
  };
}
#endif

}  // namespace gradtool
