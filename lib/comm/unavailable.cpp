// The launchers of what was left out at configure time: one sentence, exit 77.
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

#ifndef GT_WITH_MPI
namespace {
[[noreturn]] void lacks_mpi() {
  throw Error{Fault::unavailable,
              "this gradtool was built without MPI; configure it where an MPI compiler wrapper is "
              "found (Debian: libopenmpi-dev)"};
}
}  // namespace

void run_mpi(const HostBody& /*body*/, double /*timeout_seconds*/) {
  lacks_mpi();
}
MpiPlace mpi_world(double /*timeout_seconds*/) {
  lacks_mpi();
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
