#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

#include "emulation/dialect.hpp"

struct CUstream_st;

namespace emulation {

/// Work on a stream. Kept outside of operator new: gradtool counts what its timed regions allocate there.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  enum class State : unsigned char {
    done,
    begun,    ///< something happened, and more must
    waiting,  ///< for work on other streams that is not there yet
  };
  /// Called when all work before it is done, until it is done itself.
  virtual State run() = 0;
  /// Destroys and frees a task that make_task made.
  static void free(Task* task) {
    task->~Task();
    std::free(task);
  }
  Task* next = nullptr;
};

template <class F>
Task* make_task(F&& f) {
  class Of final : public Task {
   public:
    explicit Of(F&& body) : body_{std::forward<F>(body)} {}
    State run() override {
      body_();
      return State::done;
    }

   private:
    std::decay_t<F> body_;
  };
  void* memory = std::malloc(sizeof(Of));
  if (memory == nullptr) std::abort();
  return new (memory) Of{std::forward<F>(f)};
}

/// Appends to the stream's work; takes the task over.
void enqueue_task(CUstream_st* stream, Task* task);
template <class F>
void enqueue(CUstream_st* stream, F&& f) {
  enqueue_task(stream, make_task(std::forward<F>(f)));
}

/// Why such a launch cannot be, as a cudaError_t; 0 when it can.
[[nodiscard]] int refuse(const dim3& grid, const dim3& block, std::size_t shared_bytes);
void set_error(int error);
/// Plays one grid, now. `kernel` calls the kernel for the thread in threadIdx and blockIdx.
void run_grid(const char* name, const dim3& grid, const dim3& block, std::size_t shared_bytes,
              void (*kernel)(const void*), const void* arguments);

template <class Kernel>
void launch(CUstream_st* stream, const char* name, const dim3& grid, const dim3& block, std::size_t shared_bytes,
            Kernel kernel) {
  if (const int error = refuse(grid, block, shared_bytes); error != 0) return set_error(error);
  enqueue(stream, [=] {
    run_grid(
        name, grid, block, shared_bytes, [](const void* call) { (*static_cast<const Kernel*>(call))(); }, &kernel);
  });
}

[[nodiscard]] std::byte* dynamic_shared();

}  // namespace emulation
