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
      : pool_{plan.threads}, queue_{plan.threads > 1 ? &pool_ : nullptr}, clock_{comm, plan.timing} {
    if (comm.rank() == 0 && !plan.hot) flusher_ = std::make_unique<CacheFlusher>();
  }
  [[nodiscard]] Queue<Space::host> queue() const { return queue_; }
  [[nodiscard]] HostClock& clock() { return clock_; }
  static void upload(std::span<const float> from, HostView<float> to) {
    std::copy(from.begin(), from.end(), to.data());
  }
  static std::span<const float> download(HostView<const float> from) { return from.span(); }
  void flush() {
    if (flusher_ != nullptr) flusher_->flush();
  }

 private:
  TaskPool pool_;
  Queue<Space::host> queue_;
  HostClock clock_;
  std::unique_ptr<CacheFlusher> flusher_;  ///< on rank 0: ranks of one machine share the last-level cache
};

}  // namespace

void replay_rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
                 ReplayResult& result) {
  HostPlace place{plan, comm};
  Rank<Space::host, HostPlace>{plan, comm, place, loader, shared_loader, result}.run();
}

}  // namespace gradtool
