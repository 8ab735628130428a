#include "lib/bench/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#if GT_HAS_CUDA
#include "kernels/cuda/runtime.hpp"
#endif
#include "lib/bench/copy_rate.hpp"
#include "lib/bench/rank_replay.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/device.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// Host clock for one rank. A communicating phase may be open beside another one (lib/codecs/pipelined.hpp), with
/// concurrent timing: phases then add up to more than the total.
class HostClock final : public PhaseClock<Space::host> {
 public:
  explicit HostClock(Communicator<Space::host>& comm) : comm_{comm} {}

  /// Before and after a reduce.
  void start(Timing timing) {
    timing_ = timing;
    times_ = {};
    level_ = Level::whole;
    comm_.barrier({});
    started_ = Clock::now();
  }
  PhaseTimes stop() {
    times_.total = since(started_);
    return times_;
  }

  void begin(Phase phase, Queue<Space::host> /*queue*/) override {
    if (timing_ == Timing::isolated) {
      // Everybody is done with the phase before; then ranks take turns: rank r waits for r others and lets p-r pass.
      const int turns = phase == Phase::communicate ? 1 : 1 + comm_.rank();
      for (int i = 0; i < turns; ++i) comm_.barrier({});
    }
    begun_[static_cast<std::size_t>(phase)] = Clock::now();
  }
  void end(Phase phase, Queue<Space::host> /*queue*/) override {
    const auto which = static_cast<std::size_t>(phase);
    const double seconds = since(begun_[which]);
    times_.phase[which] += seconds;
    if (phase == Phase::decode && level_ == Level::across) times_.decode_across += seconds;
    if (timing_ == Timing::isolated && phase != Phase::communicate) {
      for (int i = comm_.rank(); i < comm_.size(); ++i) comm_.barrier({});
    }
  }

  void level(Level level) override { level_ = level; }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

  Communicator<Space::host>& comm_;
  Timing timing_ = Timing::isolated;
  PhaseTimes times_;
  Clock::time_point started_;
  std::array<Clock::time_point, 3> begun_{};
  Level level_ = Level::whole;
};

class HostProcessor {
 public:
  HostProcessor(const ReplayPlan& plan, Communicator<Space::host>& comm)
      : thread_bytes_{plan.thread_bytes}, clock_{comm}, throttle_{plan.clock_reasons}, chunk_threads_{plan.pipeline()} {
    for (int threads = plan.threads; threads > 1; threads /= 2) pools_.push_back(std::make_unique<TaskPool>(threads));
  }
  [[nodiscard]] Queue<Space::host> queue() const { return {pools_.empty() ? nullptr : pools_.front().get()}; }
  /// With no more threads than so many elements feed.
  [[nodiscard]] Queue<Space::host> queue(std::size_t elements) const {
    for (const auto& pool : pools_) {
      if (4.0 * static_cast<double>(elements) >= thread_bytes_ * pool->threads()) return {pool.get()};
    }
    return {};
  }
  [[nodiscard]] HostClock& clock() { return clock_; }
  [[nodiscard]] ThrottleWatch& throttle() { return throttle_; }
  [[nodiscard]] static std::string clock_note() { return {}; }
  [[nodiscard]] static bool allocates_alone() { return true; }
  [[nodiscard]] TaskPool& chunk_threads() { return chunk_threads_; }
  static void upload(std::span<const float> from, HostView<float> to) {
    if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.data());
  }
  static void finish_uploads() {}
  static std::span<const float> download(HostView<const float> from) { return from.span(); }
  static HostView<const std::byte> look(HostView<const std::byte> bytes) { return bytes; }
  static void evict(HostView<float> buffer) { evict_from_caches(as_bytes(buffer)); }
  /// Reads it on this rank's core: where ranks are threads, another one loaded it.
  static void warm(HostView<float> buffer) {
    constexpr std::size_t kLine = 16;  // floats
    const volatile float* const values = buffer.data();
    for (std::size_t i = 0; i < buffer.size(); i += kLine) static_cast<void>(values[i]);
  }

 private:
  std::vector<std::unique_ptr<TaskPool>> pools_;  ///< of all threads of the rank, of half of them, and so on
  double thread_bytes_;
  HostClock clock_;
  ThrottleWatch throttle_;
  TaskPool chunk_threads_;
};

}  // namespace

void replay_rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
                 ReplayResult& result) {
  HostProcessor processor{plan, comm};
  RankReplay<Space::host, HostProcessor>{plan, comm, processor, loader, shared_loader, result}.run();
}

ReplayDevice choose_device(const BenchOptions& options) {
  const DeviceChoice wanted = parse_device(options.device);
  const bool for_cuda = options.comm == "loopback" || options.comm == "nccl";
  if (wanted.cuda != for_cuda) {
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
  if (wanted.cuda) cuda::require_device(wanted.index, fmt::format("--device {}", options.device));
#endif
  return {.cuda = wanted.cuda,
          .index = wanted.index,
          .across_processes =
              options.comm == "mpi" || options.comm == "udp" || (options.comm == "nccl" && mpi_place().size > 1)};
}

ReplayResult run_replay(const ReplayDevice& device, const ReplayPlan& plan) {
  std::size_t largest = 0;
  for (const auto& unit : plan.units) largest = std::max(largest, unit.elements);
  const CodecDescriptor& codec = *plan.codec.descriptor;
  FloatAllocator allocate = pageable_floats;
#if GT_HAS_CUDA
  if (device.cuda) allocate = pinned_floats;
#endif
  StepLoader loader{plan.reader,
                    plan.ranks,
                    largest,
                    {.weight = codec.needs_weight, .second_moment = codec.needs_second_moment},
                    allocate};
  // Each rank that is a thread needs a result of its own to write to; rank 0's is the one that counts.
  const bool shared = !device.across_processes;
  std::vector<ReplayResult> results(shared ? static_cast<std::size_t>(plan.ranks) : 1);
  const auto result_of = [&](int rank) -> ReplayResult& {
    return results[shared ? static_cast<std::size_t>(rank) : 0];
  };
  const std::string& comm_name = plan.options.comm;
  const double timeout = plan.options.comm_timeout;
  const HostBody host_body = [&](Communicator<Space::host>& comm) {
    replay_rank(plan, comm, loader, shared, result_of(comm.rank()));
  };
  if (comm_name == "threads") run_threads(plan.ranks, host_body, timeout);
  if (comm_name == "mpi" || comm_name == "udp") run_processes(plan.options.processes(), host_body, timeout);
#if GT_HAS_CUDA
  const CudaBody cuda_body = [&](Communicator<Space::cuda>& comm, Queue<Space::cuda> queue) {
    replay_rank(plan, comm, queue, loader, shared, result_of(comm.rank()));
  };
  if (comm_name == "loopback") run_loopback(plan.ranks, device.index, cuda_body, timeout);
  if (comm_name == "nccl" && shared) run_nccl(plan.ranks, cuda_body, timeout);
  if (comm_name == "nccl" && !shared) run_nccl_mpi(cuda_body, timeout);
#endif
  return std::move(results.front());
}

}  // namespace gradtool
