#include "lib/comm/rank_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "lib/core/throw_error.hpp"

namespace gradtool {
RankGroup::RankGroup(int size, double timeout_seconds) : size_{size}, timeout_seconds_{timeout_seconds} {
  expect_valid(size >= 1 && size <= 1024, "one process runs 1 to 1024 ranks");
  expect_valid(timeout_seconds > 0, "the timeout of a rank group is a positive number of seconds");
  const std::chrono::duration<double> seconds{std::min(timeout_seconds, 1e9)};
  timeout_ = std::chrono::duration_cast<std::chrono::steady_clock::duration>(seconds);
  const auto count = static_cast<std::size_t>(size);
  mailboxes_ = std::make_unique<Mailbox[]>(count * count);
  left_ = std::make_unique<std::atomic<bool>[]>(count);
  waiting_ = std::make_unique<std::atomic<bool>[]>(count);
  meeting_values_.resize(count);
  meeting_here_.resize(count);
}

void RankGroup::exchange(int rank, int to, std::span<const std::byte> out, int from, std::size_t in_size, Take take) {
  check();
  if (out.empty()) {
    if (in_size > 0) receive(rank, from, in_size, take);
    return;
  }
  Mailbox& box = mailbox(rank, to);
  {
    const std::lock_guard lock{box.mutex};
    box.data = out.data();
    box.size = out.size();
    box.state = State::posted;
  }
  box.changed.notify_all();
  try {
    if (in_size > 0) receive(rank, from, in_size, take);
    await_taken(rank, to);
  } catch (...) {
    withdraw(box);
    throw;
  }
}

void RankGroup::receive(int rank, int from, std::size_t size, Take take) {
  Mailbox& box = mailbox(from, rank);
  mark_waiting(rank, true);
  std::unique_lock lock{box.mutex};
  const bool woken = box.changed.wait_until(lock, deadline(),
                                            [&] { return box.state == State::posted || failed() || has_left(from); });
  if (!woken || box.state != State::posted) {
    lock.unlock();
    explain_wait(rank, from);
  }
  if (box.size != size) {
    throw_error(Fault::usage, "rank {} sent {} bytes to rank {}, which expected {}: the ranks' calls do not match",
                from, box.size, rank, size);
  }
  mark_waiting(rank, false);
  box.state = State::taking;
  const std::byte* data = box.data;
  lock.unlock();
  // The sender waits until the state is empty again, so its memory stays alive; it must see that even if this throws.
  const auto give_back = [&] {
    lock.lock();
    box.state = State::empty;
    lock.unlock();
    box.changed.notify_all();
  };
  try {
    take.call(take.context, data, size);
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
}

void RankGroup::await_taken(int rank, int to) {
  Mailbox& box = mailbox(rank, to);
  mark_waiting(rank, true);
  std::unique_lock lock{box.mutex};
  const bool woken = box.changed.wait_until(lock, deadline(), [&] {
    return box.state == State::empty || (box.state == State::posted && (failed() || has_left(to)));
  });
  if (woken && box.state == State::empty) return mark_waiting(rank, false);
  lock.unlock();
  explain_wait(rank, to);
}

void RankGroup::withdraw(Mailbox& box) noexcept {
  std::unique_lock lock{box.mutex};
  // The receiver is reading memory that the caller is about to release; taking is a bounded copy, so wait it out.
  box.changed.wait(lock, [&] { return box.state != State::taking; });
  box.state = State::empty;
}

void RankGroup::meet(int rank, std::span<double> values) {
  check();
  const auto self = static_cast<std::size_t>(rank);
  std::unique_lock lock{meeting_mutex_};
  meeting_values_[self] = values;
  if (meeting_count_ + 1 == size_) {
    for (const auto& other : meeting_values_) {
      expects(other.size() == values.size(), "every rank agrees on the same number of values");
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (const auto& other : meeting_values_) values[i] = std::max(values[i], other[i]);
      for (const auto& other : meeting_values_) other[i] = values[i];
    }
    std::fill(meeting_here_.begin(), meeting_here_.end(), char{0});
    meeting_count_ = 0;
    ++meeting_number_;
    lock.unlock();
    meeting_changed_.notify_all();
    return;
  }
  meeting_here_[self] = 1;
  ++meeting_count_;
  mark_waiting(rank, true);
  const unsigned number = meeting_number_;
  const auto absent_left = [&] {
    for (int r = 0; r < size_; ++r) {
      if (meeting_here_[static_cast<std::size_t>(r)] == 0 && has_left(r)) return true;
    }
    return false;
  };
  meeting_changed_.wait_until(lock, deadline(), [&] { return meeting_number_ != number || failed() || absent_left(); });
  if (meeting_number_ != number) return mark_waiting(rank, false);
  // This rank gives up, so it takes itself out of the meeting: its values are about to go out of scope.
  meeting_here_[self] = 0;
  --meeting_count_;
  int awaited = rank == 0 ? size_ - 1 : 0;
  for (int r = size_ - 1; r >= 0; --r) {
    const bool absent = r != rank && meeting_here_[static_cast<std::size_t>(r)] == 0;
    if (absent && (has_left(r) || !has_left(awaited))) awaited = r;
  }
  lock.unlock();
  explain_wait(rank, awaited);
}

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

/// The rank that keeps `rank` waiting. When the awaited rank itself waits for another one, the culprit is a rank that
/// waits for nobody.
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
    throw_error(Fault::backend, "rank {} waits for rank {}, which has already finished: the ranks' calls do not match",
                rank, awaited);
  }
  throw_error(Fault::backend,
              "rank {} waited {:g} s for rank {}, which did not come: it is stalled, or the ranks' calls do not match",
              rank, timeout_seconds_, held_up_by(rank, awaited));
}

void RankGroup::check_wait(int rank, double seconds) {
  check();
  mark_waiting(rank, seconds > 0);
  if (seconds > timeout_seconds_) explain_wait(rank, rank == 0 ? size_ - 1 : 0);
}

void RankGroup::wake(std::mutex& mutex, std::condition_variable& changed) noexcept {
  // Locking the mutex once makes sure that a rank between its check and its wait does not miss the notification.
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
