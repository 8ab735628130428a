#pragma once

#include <string>

#include "lib/bench/bench.hpp"

namespace gradtool {

/// Where a replay runs: the communicator, and for CUDA which GPU.
struct ReplayDevice {
  std::string comm;  ///< threads, mpi, loopback, nccl
  bool cuda = false;
  int index = 0;                   ///< of the GPU that loopback uses
  bool across_processes = false;   ///< ranks are processes of mpirun
  double timeout_seconds = 120.0;  ///< how long ranks wait for one of them
};

/// Checks --comm against --device. Throws Fault::usage when they do not go together, Fault::unavailable for what is not
/// built in or not here.
[[nodiscard]] ReplayDevice choose_device(const BenchOptions& options);

/// Runs `plan` on all ranks; `result` is filled on the process that has rank 0.
void launch_replay(const ReplayDevice& device, const ReplayPlan& plan, ReplayResult& result);

/// memcpy with `threads` threads, or device-to-device: bytes copied a second.
[[nodiscard]] double copy_rate(const ReplayDevice& device, int threads);

}  // namespace gradtool
