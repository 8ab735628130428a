#include "lib/bench/replay.hpp"

#include <algorithm>

#include "lib/bench/copy_rate.hpp"
#include "lib/bench/replay_rank.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

class HostPlace {
 public:
  HostPlace(const ReplayPlan& plan, Communicator<Space::host>& comm)
      : pool_{plan.threads},
        queue_{plan.threads > 1 ? &pool_ : nullptr},
        clock_{comm, plan.timing},
        throttle_{plan.clock_reasons},
        chunk_threads_{plan.pipeline} {}
  [[nodiscard]] Queue<Space::host> queue() const { return queue_; }
  [[nodiscard]] HostClock& clock() { return clock_; }
  [[nodiscard]] ThrottleWatch& throttle() { return throttle_; }
  [[nodiscard]] static std::string clock_note() { return {}; }
  [[nodiscard]] static bool allocates_alone() { return true; }
  [[nodiscard]] TaskPool& chunk_threads() { return chunk_threads_; }
  static void upload(std::span<const float> from, HostView<float> to) {
    std::copy(from.begin(), from.end(), to.data());
  }
  static void finish_uploads() {}
  static std::span<const float> download(HostView<const float> from) { return from.span(); }
  static HostView<const std::byte> look(HostView<const std::byte> bytes) { return bytes; }
  static void evict(HostView<float> buffer) { evict_from_caches(as_bytes(buffer)); }

 private:
  TaskPool pool_;
  Queue<Space::host> queue_;
  HostClock clock_;
  ThrottleWatch throttle_;
  TaskPool chunk_threads_;
};

}  // namespace

void replay_rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
                 ReplayResult& result) {
  HostPlace place{plan, comm};
  Rank<Space::host, HostPlace>{plan, comm, place, loader, shared_loader, result}.run();
}

}  // namespace gradtool
