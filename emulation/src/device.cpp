// The emulated GPU: one thread that plays the tasks of all streams. It is lazy. A stream's work is played when somebody
// waits for it, and work of other streams only where that work was told to wait for it, so that a missing wait between
// streams, or between a stream and the host, shows as wrong data.
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

/// A task that waits for a mark: known by its type, since it is for the player of tasks and not run.
struct Hold final : emulation::Task {
  explicit Hold(const emulation::Mark& m) : mark{m} {}
  void run() override {}
  emulation::Mark mark;
};

}  // namespace

struct CUstream_st {
  emulation::Task* first = nullptr;
  emulation::Task** last = &first;
  std::uint64_t enqueued = 0, played = 0;
  std::uint64_t wanted = 0;  ///< somebody waits for it to be played up to here
  CUstream_st* next_wanted = nullptr;
  bool listed = false;  ///< among those of which something is wanted
};

namespace emulation {
namespace {

class Device {
 public:
  Device() : thread_{[this] { serve(); }} { thread_.detach(); }

  std::mutex mutex;
  std::condition_variable asked, done;

  void ask(CUstream_st* stream, std::uint64_t position, std::unique_lock<std::mutex>& lock) {
    while (stream->played < position) {
      stream->wanted = std::max(stream->wanted, position);
      if (!stream->listed) {
        stream->next_wanted = wanted_;
        wanted_ = stream;
        stream->listed = true;
      }
      asked.notify_one();
      done.wait(lock);
    }
  }

 private:
  void serve() {
    std::unique_lock lock{mutex};
    for (;;) {
      asked.wait(lock, [&] { return wanted_ != nullptr; });
      CUstream_st* const stream = std::exchange(wanted_, wanted_->next_wanted);
      stream->listed = false;
      play_until(stream, stream->wanted, lock);
    }
  }
  void play_until(CUstream_st* stream, std::uint64_t position, std::unique_lock<std::mutex>& lock) {
    while (stream->played < position) {
      Task* task = stream->first;
      if (const auto* held = dynamic_cast<const Hold*>(task)) {
        play_until(held->mark.stream, held->mark.position, lock);
      } else {
        lock.unlock();
        task->run();
        lock.lock();
      }
      stream->first = task->next;
      if (stream->first == nullptr) stream->last = &stream->first;
      Task::free(task);
      ++stream->played;
      done.notify_all();
    }
  }

  CUstream_st* wanted_ = nullptr;  ///< a list through next_wanted; nothing is allocated while somebody waits
  std::thread thread_;
};

Device& device() {
  static auto* const instance = new Device;  // never destroyed: its thread runs to the end of the process
  return *instance;
}

/// Streams that exist, the default one first. Destroyed ones stay, because marks may point to them.
std::vector<CUstream_st*>& streams() {
  static auto* const all = new std::vector<CUstream_st*>{new CUstream_st};
  return *all;
}
CUstream_st* real(CUstream_st* stream) {
  return stream == nullptr ? streams().front() : stream;
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

void finish(CUstream_st* stream) {
  if (stream != nullptr) return finish(mark_here(stream));
  std::size_t count = 0;
  {
    const std::lock_guard lock{device().mutex};
    count = streams().size();
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::unique_lock lock{device().mutex};
    CUstream_st* const one = streams()[i];
    device().ask(one, one->enqueued, lock);
  }
}

bool advance(CUstream_st* stream) {
  std::unique_lock lock{device().mutex};
  stream = real(stream);
  if (stream->played == stream->enqueued) return true;
  device().ask(stream, stream->played + 1, lock);
  return stream->played == stream->enqueued;
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
  emulation::streams().push_back(made);
  *stream = made;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulation::finish(stream);
  return cudaSuccess;
}
