#include "lib/bench/launch_replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#if GT_HAS_CUDA
#include "kernels/cuda/runtime.hpp"
#endif
#include "lib/bench/copy_rate.hpp"
#include "lib/core/device.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// Where ranks are threads, each needs a result of its own to write to; rank 0's is the one that counts.
class Results {
 public:
  Results(int ranks, ReplayResult& first) : first_{first}, others_(static_cast<std::size_t>(ranks)) {}
  ReplayResult& of(int rank) { return rank == 0 ? first_ : others_[static_cast<std::size_t>(rank)]; }

 private:
  ReplayResult& first_;
  std::vector<ReplayResult> others_;
};

}  // namespace

ReplayDevice choose_device(const BenchOptions& options) {
  const DeviceChoice wanted = parse_device(options.device);
  ReplayDevice device{
      .comm = options.comm, .cuda = wanted.cuda, .index = wanted.index, .timeout_seconds = options.comm_timeout};
  const bool for_cuda = options.comm == "loopback" || options.comm == "nccl";
  if (device.cuda != for_cuda) {
    throw Error{Fault::usage, for_cuda
                                  ? fmt::format("--comm {} needs --device cuda", options.comm)
                                  : fmt::format("--device {} needs --comm loopback (ranks share a GPU) or nccl, not {}",
                                                options.device, options.comm)};
  }
  for (const auto& backend : comm_backends()) {
    if (backend.name == options.comm && !backend.available) {
      throw Error{Fault::unavailable, fmt::format("--comm {}: {}", options.comm, backend.detail)};
    }
  }
  if (options.comm == "nccl" && options.device != "cuda") {
    throw Error{Fault::usage, fmt::format("--comm nccl gives every rank a GPU of its own: write --device cuda, not {}",
                                          options.device)};
  }
#if GT_HAS_CUDA
  if (device.cuda) cuda::require_device(device.index, fmt::format("--device {}", options.device));
#endif
  device.across_processes = options.comm == "mpi" || (options.comm == "nccl" && mpi_place().size > 1);
  return device;
}

void launch_replay(const ReplayDevice& device, const ReplayPlan& plan, ReplayResult& result) {
  std::size_t largest = 0;
  for (const auto& unit : *plan.units) largest = std::max(largest, unit.elements);
  const CodecDescriptor& codec = *plan.codec.descriptor;
  TakeFloats take = plain_floats;
#if GT_HAS_CUDA
  if (device.cuda) take = pinned_floats;
#endif
  StepLoader loader{*plan.reader,
                    plan.ranks,
                    largest,
                    {.weight = codec.needs_weight, .second_moment = codec.needs_second_moment},
                    take};
  Results results{plan.ranks, result};
  if (device.comm == "threads") {
    run_threads(
        plan.ranks,
        [&](Communicator<Space::host>& comm) { replay_rank(plan, comm, loader, true, results.of(comm.rank())); },
        device.timeout_seconds);
    return;
  }
  if (device.comm == "mpi") {
    run_mpi([&](Communicator<Space::host>& comm) { replay_rank(plan, comm, loader, false, result); },
            device.timeout_seconds);
    return;
  }
#if GT_HAS_CUDA
  const bool shared = !device.across_processes;
  const CudaBody body = [&](Communicator<Space::cuda>& comm, Queue<Space::cuda> queue) {
    replay_rank(plan, comm, queue, loader, shared, shared ? results.of(comm.rank()) : result);
  };
  if (device.comm == "loopback")
    run_loopback(plan.ranks, device.index, body, device.timeout_seconds);
  else if (shared)
    run_nccl(plan.ranks, body, device.timeout_seconds);
  else
    run_nccl_mpi(body, device.timeout_seconds);
#endif
}

double copy_rate(const ReplayDevice& device, int threads) {
#if GT_HAS_CUDA
  if (device.cuda) return measure_device_copy_rate(device.index, 256U << 20);
#endif
  static_cast<void>(device);
  TaskPool pool{threads};
  return measure_copy_rate({&pool}, 128U << 20);
}

}  // namespace gradtool
