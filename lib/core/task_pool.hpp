#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "lib/core/view.hpp"

namespace gradtool {

/// A fixed set of worker threads for the loops of a codec. Created before the clock starts: `run` allocates nothing.
///
/// One thread at a time may call `run`; a pool belongs to one rank. Exceptions thrown by a task are rethrown by `run`
/// (the first one) after every task has ended.
class TaskPool {
 public:
  /// `threads` counts the calling thread, so 1 starts no thread.
  explicit TaskPool(int threads);
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  [[nodiscard]] int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  /// Calls task(context, i) once for every i in [0, count), in any order, on any thread; returns when all are done.
  using Task = void (*)(void* context, std::size_t index);
  void run(std::size_t count, Task task, void* context);

 private:
  struct Job;
  void work(std::size_t worker);
  static void drain(Job& job) noexcept;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  std::size_t busy_ = 0;
  bool stop_ = false;
};

/// How many parts a loop over `items` is cut into: one without a pool, else a few for every thread.
[[nodiscard]] inline std::size_t part_count(Queue<Space::host> queue, std::size_t items, std::size_t grain) {
  if (queue.pool == nullptr || queue.pool->threads() == 1) return 1;
  const auto wanted = static_cast<std::size_t>(queue.pool->threads());
  return std::clamp<std::size_t>(items / std::max<std::size_t>(grain, 1), 1, wanted);
}

/// body(part, first, last) over [0, items) cut into `parts` ranges whose borders are multiples of `align`.
/// The cut depends only on (items, parts, align), so several passes see the same ranges.
template <class F>
void parallel_parts(Queue<Space::host> queue, std::size_t items, std::size_t parts, std::size_t align, F&& body) {
  const std::size_t units = (items + align - 1) / align;
  auto range = [&](std::size_t part) {
    const std::size_t first = std::min(items, units * part / parts * align);
    const std::size_t last = std::min(items, units * (part + 1) / parts * align);
    body(part, first, last);
  };
  if (parts == 1 || queue.pool == nullptr) {
    for (std::size_t part = 0; part < parts; ++part) range(part);
    return;
  }
  using Range = decltype(range);
  queue.pool->run(
      parts, [](void* context, std::size_t part) { (*static_cast<Range*>(context))(part); }, &range);
}

/// body(first, last) over [0, items); ranges start at multiples of `align` and hold at least about `grain` items.
template <class F>
void parallel_for(Queue<Space::host> queue, std::size_t items, std::size_t align, std::size_t grain, F&& body) {
  if (items == 0) return;
  parallel_parts(queue, items, part_count(queue, items, grain), align,
                 [&](std::size_t, std::size_t first, std::size_t last) { body(first, last); });
}

}  // namespace gradtool
