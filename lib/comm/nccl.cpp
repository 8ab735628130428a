#include "lib/comm/nccl.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "kernels/cuda/runtime.hpp"
#include "lib/comm/launch.hpp"
#include "lib/comm/nccl_communicator.hpp"
#include "lib/comm/threads.hpp"
#ifdef GT_WITH_MPI
#include "lib/comm/mpi.hpp"
#endif

namespace gradtool {
namespace nccl {

void check(ncclResult_t result, const char* call, const char* file, int line) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(nullptr);
  const bool said = detail != nullptr && *detail != '\0';
  throw Error{
      Fault::backend,
      fmt::format("NCCL: {} failed: {}{}{}", call, ncclGetErrorString(result), said ? ": " : "", said ? detail : ""),
      file, line};
}

void throw_aborted() {
  throw Error{Fault::backend, "NCCL: the communicator was aborted because another rank failed"};
}

}  // namespace nccl

namespace {

using nccl::Group;
using nccl::Handle;
using nccl::NcclCommunicator;

/// NCCL connects algorithms when a communicator is made and not when one is first used, which would be timed. Read
/// once; a user's own setting stays.
void connect_at_start() {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

/// Every pair of ranks has met, and rings and trees have been used, before anything is timed.
void meet_everybody(NcclCommunicator& communicator, Queue<Space::cuda> queue) {
  const auto each = 4 * static_cast<std::size_t>(communicator.size());
  const cuda::DeviceBuffer out{each};
  const cuda::DeviceBuffer in{each};
  cuda::fill(queue, out.bytes(), 0);
  communicator.all_to_all(queue, out.bytes(), in.bytes());
  communicator.all_reduce_sum(queue, in.bytes(), Dtype::f32, {});
  communicator.await(queue);
  communicator.reset_traffic();
}

/// The body, then the end of its work, on this thread and the current GPU.
void run_rank(NcclCommunicator& communicator, const CudaBody& body) {
  const cuda::Stream stream;
  meet_everybody(communicator, stream.queue());
  body(communicator, stream.queue());
  communicator.await(stream.queue());
}

}  // namespace

std::string nccl_library_version() {
  int version = 0;
  GT_NCCL(ncclGetVersion(&version));
  return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

void run_nccl(int gpus, const CudaBody& body, double timeout_seconds) {
  expects(gpus >= 1, "NCCL needs at least one GPU");
  cuda::require_device(gpus - 1, fmt::format("the NCCL communicator with {} rank{}", gpus, gpus == 1 ? "" : "s"));
  // In one group, so that NCCL ends all of them when one cannot start; a thread on its own would wait for ever.
  const auto handles = std::make_unique<Handle[]>(static_cast<std::size_t>(gpus));
  connect_at_start();
  ncclUniqueId id{};
  GT_NCCL(ncclGetUniqueId(&id));
  Group start;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cuda::set_device(gpu);
    GT_NCCL(ncclCommInitRank(handles[static_cast<std::size_t>(gpu)].address(), gpus, id, gpu));
  }
  start.end();

  RankGroup group{gpus, timeout_seconds};
  const auto abort_all = [&] {
    for (int gpu = 0; gpu < gpus; ++gpu) handles[static_cast<std::size_t>(gpu)].abort();
  };
  run_ranks(
      group,
      [&](int rank) {
        cuda::set_device(rank);
        ThreadsCommunicator host{group, rank};
        NcclCommunicator communicator{handles[static_cast<std::size_t>(rank)], host,
                                      [&group, rank](double waited) { group.check_wait(rank, waited); }};
        run_rank(communicator, body);
      },
      abort_all);
  Group end;  // one call for all: each may wait for the others
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cuda::set_device(gpu);
    handles[static_cast<std::size_t>(gpu)].destroy();
  }
  end.end();
}

#ifdef GT_WITH_MPI
void run_nccl_mpi(const CudaBody& body, double timeout_seconds) {
  const auto run_process = [&](MpiCommunicator& host) {
    const int gpu = host.rank_on_node();
    cuda::require_device(gpu, fmt::format("rank {} of the NCCL communicator", host.rank()));
    cuda::set_device(gpu);
    connect_at_start();
    ncclUniqueId id{};
    if (host.rank() == 0) GT_NCCL(ncclGetUniqueId(&id));
    host.share(std::as_writable_bytes(std::span{&id, 1}), 0);
    Handle handle;
    // A process that fails takes the whole job with it (run_mpi), so nobody is left waiting inside NCCL.
    {
      const MpiWatch::Call call{mpi_watch(), "ncclCommInitRank"};
      GT_NCCL(ncclCommInitRank(handle.address(), host.size(), id, host.rank()));
    }
    // The watch over the processes judges how long one keeps another waiting.
    std::optional<MpiWatch::Call> call;
    NcclCommunicator communicator{handle, host, [&](double waited) {
                                    if (waited == 0.0) call.reset();
                                    if (waited > 0.0 && !call) call.emplace(mpi_watch(), "NCCL");
                                  }};
    run_rank(communicator, body);
    handle.destroy();
  };
  run_mpi_job(run_process, {.stall = timeout_seconds});
}
#endif

}  // namespace gradtool
