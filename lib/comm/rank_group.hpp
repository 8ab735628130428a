#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace gradtool {

/// The objects that ranks share as threads of one process: a mailbox for every ordered pair of ranks, a barrier, and
/// the first failure. Waiting ranks sleep on condition variables, because there may be more ranks than cores. After
/// construction no call allocates unless it throws.
///
/// A rank that waits is released by an exception when another rank has failed (Fault::backend naming it and its
/// message), has left for good (Fault::backend), or has not come after `timeout_seconds` (Fault::backend naming it; in
/// a chain of waiting ranks, the one at its end).
class RankGroup {
 public:
  RankGroup(int size, double timeout_seconds);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  [[nodiscard]] int size() const noexcept { return size_; }

  /// The function with which the receiver takes the data from the sender's memory. It runs on the receiver's thread,
  /// and the sender waits until it has returned.
  struct Take {
    void (*call)(void* context, const std::byte* data, std::size_t size);
    void* context;
  };

  /// Offers `out` to rank `to` and takes `in_size` bytes from rank `from`; returns when both have happened. When a side
  /// is empty, its rank is ignored. Throws Fault::usage when the sender's size is not `in_size`.
  void exchange(int rank, int to, std::span<const std::byte> out, int from, std::size_t in_size, Take take);

  /// Returns when every rank has called it; `values` become their maximum over ranks (all of the same size, or empty).
  void meet(int rank, std::span<double> values);

  /// For a rank that waits for others by other means than this group. It calls this repeatedly with the seconds that it
  /// has waited so far, and with 0 once it does not wait any more. Throws as a wait in this group does.
  void check_wait(int rank, double seconds);

  /// Stores `failure` if it is the first one, and wakes every waiting rank.
  void fail(int rank, std::exception_ptr failure) noexcept;
  /// Declares that rank `rank` makes no more calls; every rank that waits for it, now or later, gets Fault::backend.
  void leave(int rank) noexcept;
  /// Throws Fault::backend when a rank has failed.
  void check() const;
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// Rethrows the first failure, if there is one. To be called when all ranks have ended.
  void rethrow() const;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  enum class State : unsigned char { empty, posted, taking };

  struct alignas(64) Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    const std::byte* data = nullptr;
    std::size_t size = 0;
    State state = State::empty;
  };

  [[nodiscard]] Mailbox& mailbox(int from, int to) {
    return mailboxes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(to)];
  }
  [[nodiscard]] bool has_left(int rank) const noexcept {
    return left_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  [[nodiscard]] Deadline deadline() const { return std::chrono::steady_clock::now() + timeout_; }
  void receive(int rank, int from, std::size_t size, Take take);
  void await_taken(int rank, int to);
  static void withdraw(Mailbox& box) noexcept;
  static void wake(std::mutex& mutex, std::condition_variable& changed) noexcept;
  void mark_waiting(int rank, bool waiting) noexcept {
    waiting_[static_cast<std::size_t>(rank)].store(waiting, std::memory_order_relaxed);
  }
  [[nodiscard]] int held_up_by(int rank, int awaited) const noexcept;
  [[noreturn]] void explain_wait(int rank, int awaited) const;

  int size_;
  double timeout_seconds_;
  std::chrono::steady_clock::duration timeout_;
  std::unique_ptr<Mailbox[]> mailboxes_;
  std::unique_ptr<std::atomic<bool>[]> left_;
  std::unique_ptr<std::atomic<bool>[]>
      waiting_;  ///< whether a rank waits; stays true when the wait ends in an exception

  std::mutex meeting_mutex_;
  std::condition_variable meeting_changed_;
  std::vector<std::span<double>> meeting_values_;
  std::vector<char> meeting_here_;
  int meeting_count_ = 0;
  unsigned meeting_number_ = 0;

  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::string failure_text_;
};

/// Runs body(rank) on one thread for each rank of `group`, waits for all of them and rethrows the first failure.
/// `on_failure`, when given, runs on the failing rank's thread after the group knows of the failure.
void run_ranks(RankGroup& group, const std::function<void(int)>& body, const std::function<void()>& on_failure = {});

}  // namespace gradtool
