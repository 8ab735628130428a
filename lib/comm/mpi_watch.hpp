#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/watch_verdict.hpp"

namespace gradtool {

/// Ends the job, with a line that says why, when a process dies or stalls while others wait for it. This is needed
/// because MPI cannot tell a dead peer from a slow one, and a launcher notices only processes that end. A thread in
/// every process reports to rank 0 once a second, over a communicator of its own, and rank 0 answers. Rank 0 judges the
/// other ranks (judge_silence, StallJudge); the others judge whether rank 0 is silent. Time counts only while the
/// thread itself runs, so a job that was stopped as a whole and continued later is not ended because of that pause.
///
/// Needs MPI_THREAD_MULTIPLE. The judging process prints one line and calls MPI_Abort with status 4; a process that
/// this does not end ends by itself within seconds.
class MpiWatch {
 public:
  /// Called by all processes of MPI_COMM_WORLD together.
  MpiWatch();
  /// Called by all processes too. Returns when every process has called it, and watches until then.
  ~MpiWatch();
  MpiWatch(const MpiWatch&) = delete;
  MpiWatch& operator=(const MpiWatch&) = delete;

  void set_limits(const WatchLimits& limits);
  void set_phase(WatchPhase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }

  /// Marks this process as inside a call that waits for others, until the end of the scope. It costs a few stores and
  /// reads no clock: the watch measures how long the call takes. There is one at a time.
  class Call {
   public:
    /// `watch` may be null. `name` is a string literal. `awaits` has the meaning that it has in WatchReport.
    Call(MpiWatch* watch, const char* name, int awaits = -1) noexcept : watch_{watch} {
      if (watch_ == nullptr) return;
      watch_->call_.store(name, std::memory_order_relaxed);
      watch_->awaits_.store(awaits, std::memory_order_relaxed);
      watch_->move();
    }
    ~Call() {
      if (watch_ != nullptr) watch_->move();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    MpiWatch* watch_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Lines;  ///< the communicator of the watch and the messages that are under way on it

  void move() noexcept { moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void run();
  [[nodiscard]] WatchLimits limits() const;
  [[nodiscard]] bool sleep(double seconds);
  void observe_self(double elapsed);
  [[nodiscard]] std::optional<std::string> judge();
  [[noreturn]] void end_job(const std::string& reason);

  std::unique_ptr<Lines> lines_;
  StallJudge stalls_;
  std::vector<WatchedRank>
      ranks_;  ///< used by the thread alone; on ranks above 0 only rank 0 and the own entry are current
  std::atomic<std::uint64_t> moves_{0};
  std::atomic<const char*> call_{""};
  std::atomic<int> awaits_{-1};
  std::atomic<WatchPhase> phase_{WatchPhase::between_jobs};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  WatchLimits limits_;
  bool leaving_ = false;
  std::thread thread_;
};

/// Ends the process with `status`, after printing `reason`, unless the object is destroyed within `seconds`. It covers
/// what the watch cannot: the time before the watch has started, and the end of the job itself.
class ExitTimer {
 public:
  ExitTimer(double seconds, std::string reason, int status = 4);
  ~ExitTimer();
  ExitTimer(const ExitTimer&) = delete;
  ExitTimer& operator=(const ExitTimer&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace gradtool
