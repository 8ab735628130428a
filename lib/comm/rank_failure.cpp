// How ranks of one process learn that another one has failed, has left or does not come.
#include <fmt/format.h>

#include <thread>

#include "lib/comm/rank_group.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

/// The awaited rank may itself wait for another one: then it is a rank that waits for nobody that holds all of them up.
int RankGroup::held_up_by(int rank, int awaited) const noexcept {
  const auto waits = [this](int r) { return waiting_[static_cast<std::size_t>(r)].load(std::memory_order_relaxed); };
  if (!waits(awaited)) return awaited;
  for (int r = 0; r < size_; ++r) {
    if (r != rank && !waits(r) && !has_left(r)) return r;
  }
  return awaited;
}

void RankGroup::explain_wait(int rank, int awaited) const {
  check();
  if (has_left(awaited)) {
    throw Error{Fault::backend,
                fmt::format("rank {} waits for rank {}, which has already finished: the ranks' calls do "
                            "not match",
                            rank, awaited)};
  }
  throw Error{Fault::backend,
              fmt::format("rank {} waited {:g} s for rank {}, which did not come: it is stalled, or the "
                          "ranks' calls do not match",
                          rank, timeout_seconds_, held_up_by(rank, awaited))};
}

void RankGroup::check_wait(int rank, double seconds) {
  check();
  mark_waiting(rank, seconds > 0);
  if (seconds > timeout_seconds_) explain_wait(rank, rank == 0 ? size_ - 1 : 0);
}

void RankGroup::wake(std::mutex& mutex, std::condition_variable& changed) noexcept {
  // Passing through the mutex makes sure that a rank between its check and its wait hears of it.
  { const std::lock_guard lock{mutex}; }
  changed.notify_all();
}

void RankGroup::fail(int rank, std::exception_ptr failure) noexcept {
  {
    const std::lock_guard lock{failure_mutex_};
    if (failure_) return;
    failure_ = std::move(failure);
    failure_text_ = fmt::format("rank {} failed: {}", rank, text_of(failure_));
    failed_.store(true, std::memory_order_release);
  }
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) wake(mailbox(from, to).mutex, mailbox(from, to).changed);
  }
  wake(meeting_mutex_, meeting_changed_);
}

void RankGroup::leave(int rank) noexcept {
  left_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  for (int other = 0; other < size_; ++other) {
    wake(mailbox(rank, other).mutex, mailbox(rank, other).changed);
    wake(mailbox(other, rank).mutex, mailbox(other, rank).changed);
  }
  wake(meeting_mutex_, meeting_changed_);
}

void RankGroup::check() const {
  if (!failed()) return;
  const std::lock_guard lock{failure_mutex_};
  throw Error{Fault::backend, failure_text_};
}

void RankGroup::rethrow() const {
  const std::lock_guard lock{failure_mutex_};
  if (failure_) std::rethrow_exception(failure_);
}

void run_ranks(RankGroup& group, const std::function<void(int)>& body, const std::function<void()>& on_failure) {
  const auto run_one = [&](int rank) {
    try {
      body(rank);
      group.leave(rank);
    } catch (...) {
      group.fail(rank, std::current_exception());
      if (on_failure) on_failure();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    try {
      threads.emplace_back(run_one, rank);
    } catch (...) {
      group.fail(rank, std::current_exception());
      break;
    }
  }
  for (auto& thread : threads) thread.join();
  group.rethrow();
}

}  // namespace gradtool
