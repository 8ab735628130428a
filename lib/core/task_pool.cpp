#include "lib/core/task_pool.hpp"

#include <exception>

#include "lib/core/error.hpp"

namespace gradtool {

struct TaskPool::Job {
  std::size_t count;
  Task task;
  void* context;
  std::atomic<std::size_t> next{0};
  std::mutex mutex{};
  std::exception_ptr failure{};
};

TaskPool::TaskPool(int threads) {
  expect_valid(threads >= 1, "a task pool needs at least one thread");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (std::size_t i = 1; i < static_cast<std::size_t>(threads); ++i) workers_.emplace_back([this, i] { work(i); });
}

TaskPool::~TaskPool() {
  {
    const std::lock_guard lock{mutex_};
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void TaskPool::drain(Job& job) noexcept {
  for (;;) {
    const std::size_t index = job.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= job.count) return;
    try {
      job.task(job.context, index);
    } catch (...) {
      const std::lock_guard lock{job.mutex};
      if (!job.failure) job.failure = std::current_exception();
    }
  }
}

void TaskPool::run(std::size_t count, Task task, void* context) {
  Job job{.count = count, .task = task, .context = context};
  if (!workers_.empty() && count > 1) {
    {
      const std::lock_guard lock{mutex_};
      job_ = &job;
      busy_ = workers_.size();
      ++generation_;
    }
    wake_.notify_all();
    drain(job);
    std::unique_lock lock{mutex_};
    done_.wait(lock, [this] { return busy_ == 0; });
    job_ = nullptr;
  } else {
    drain(job);
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

void TaskPool::work(std::size_t /*worker*/) {
  std::uint64_t seen = 0;
  std::unique_lock lock{mutex_};
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    Job* job = job_;
    lock.unlock();
    drain(*job);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace gradtool
