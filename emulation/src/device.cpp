// The emulated GPU: one thread that runs the tasks of all streams. It is lazy. A stream's tasks run only when somebody
// waits for them, and tasks of another stream only when an event says that they come first. So a missing wait between
// streams, or between a stream and the host, shows as wrong data. While a collective waits for its other ranks, all
// available tasks run, as on a GPU.
#include "src/device.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "emulation/api.hpp"
#include "emulation/launch.hpp"

namespace {

/// A task that waits for a mark. The thread recognises it by its type, because it is not run like other tasks.
struct Hold final : emulation::Task {
  explicit Hold(const emulation::Mark& m) : mark{m} {}
  State run() override { return State::done; }
  emulation::Mark mark;
};

}  // namespace

struct CUstream_st {
  emulation::Task* first = nullptr;
  emulation::Task** last = &first;
  std::uint64_t enqueued = 0, played = 0;
  std::uint64_t wanted = 0;  ///< somebody waits until this many of its tasks have run
  CUstream_st* next_wanted = nullptr;
  int device = emulation::current_device();
  bool listed = false;  ///< whether it is in the list of streams that somebody waits for
};

namespace emulation {
namespace {

class Device {
 public:
  Device() : thread_{[this] { serve(); }} { thread_.detach(); }

  std::mutex mutex;
  std::condition_variable asked, done;
  std::vector<CUstream_st*> streams{new CUstream_st};  ///< default stream first; destroyed streams stay for marks
  std::uint64_t news = 0;                              ///< counts changes that may let a task or the thread go on

  void tell() {
    ++news;
    asked.notify_one();
  }

  void ask(CUstream_st* stream, std::uint64_t position, std::unique_lock<std::mutex>& lock) {
    while (stream->played < position) {
      want(stream, position);
      tell();
      done.wait(lock);
    }
  }
  /// Lets the stream's next task run but does not wait long for it, because the task may wait for a rank whose host
  /// thread is the caller.
  void nudge(CUstream_st* stream, std::unique_lock<std::mutex>& lock) {
    const std::uint64_t before = stream->played;
    want(stream, before + 1);
    tell();
    done.wait_for(lock, std::chrono::milliseconds{1}, [&] { return stream->played > before; });
  }

 private:
  /// Puts the stream into the list of those that somebody waits for. Returns true when it was not in it. An intrusive
  /// list is used so that waiting does not allocate.
  bool want(CUstream_st* stream, std::uint64_t position) {
    const bool more = position > stream->wanted && position > stream->played;
    stream->wanted = std::max(stream->wanted, position);
    if (stream->listed) return more;
    stream->next_wanted = wanted_;
    wanted_ = stream;
    return stream->listed = true;
  }

  void serve() {
    std::unique_lock lock{mutex};
    for (;;) {
      const std::uint64_t known = news;  // tasks run without the lock, so the count may change meanwhile
      bool moved = false;
      for (CUstream_st** at = &wanted_; *at != nullptr;) {
        CUstream_st* const stream = *at;
        if (stream->played >= stream->wanted) {
          *at = stream->next_wanted;
          stream->listed = false;
        } else {
          moved = step(stream, lock) || moved;
          at = &stream->next_wanted;
        }
      }
      for (std::size_t i = 0; !moved && wanted_ != nullptr && i < streams.size(); ++i)
        moved = streams[i]->first != nullptr && step(streams[i], lock);
      if (!moved) asked.wait(lock, [&] { return news != known; });
    }
  }

  /// Runs the stream's next task, or asks for the work that it waits for. Returns false when neither was possible.
  bool step(CUstream_st* stream, std::unique_lock<std::mutex>& lock) {
    Task* task = stream->first;
    if (const auto* held = dynamic_cast<const Hold*>(task)) {
      const Mark& mark = held->mark;
      if (mark.stream->played < mark.position) return want(mark.stream, mark.position);
    }
    lock.unlock();
    const Task::State state = task->run();
    lock.lock();
    if (state != Task::State::done) return state == Task::State::begun;
    stream->first = task->next;
    if (stream->first == nullptr) stream->last = &stream->first;
    Task::free(task);
    ++stream->played;
    done.notify_all();
    return true;
  }

  CUstream_st* wanted_ = nullptr;
  std::thread thread_;
};

Device& device() {
  static auto* const instance = new Device;  // never destroyed, because its thread runs until the process ends
  return *instance;
}

CUstream_st* real(CUstream_st* stream) {
  return stream == nullptr ? device().streams.front() : stream;
}

}  // namespace

std::uint32_t order_seed() {
  const char* text = std::getenv("GRADTOOL_EMULATION_SEED");
  return text == nullptr ? 1 : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

void enqueue_task(CUstream_st* stream, Task* task) {
  Device& gpu = device();
  const std::lock_guard lock{gpu.mutex};
  stream = real(stream);
  *stream->last = task;
  stream->last = &task->next;
  ++stream->enqueued;
  gpu.tell();
}

Mark mark_here(CUstream_st* stream) {
  const std::lock_guard lock{device().mutex};
  stream = real(stream);
  return {stream, stream->enqueued};
}

void finish(const Mark& mark) {
  std::unique_lock lock{device().mutex};
  device().ask(mark.stream, mark.position, lock);
}

bool reached(const Mark& mark) {
  const std::lock_guard lock{device().mutex};
  return mark.stream->played >= mark.position;
}

void finish_device() {
  std::unique_lock lock{device().mutex};
  for (std::size_t i = 0; i < device().streams.size(); ++i) {
    CUstream_st* const stream = device().streams[i];
    if (stream->device == current_device()) device().ask(stream, stream->enqueued, lock);
  }
}

bool advance(CUstream_st* stream) {
  std::unique_lock lock{device().mutex};
  stream = real(stream);
  if (stream->played == stream->enqueued) return true;
  device().nudge(stream, lock);
  return stream->played == stream->enqueued;
}

void wake() {
  const std::lock_guard lock{device().mutex};
  device().tell();
}

void hold(CUstream_st* stream, const Mark& mark) {
  void* memory = std::malloc(sizeof(Hold));
  if (memory == nullptr) std::abort();
  enqueue_task(stream, new (memory) Hold{mark});
}

}  // namespace emulation

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  auto* made = new CUstream_st;
  const std::lock_guard lock{emulation::device().mutex};
  emulation::device().streams.push_back(made);
  *stream = made;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulation::finish(emulation::mark_here(stream));
  return cudaSuccess;
}
