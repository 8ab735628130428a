#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

#include "emulation/dialect.hpp"

struct CUstream_st;

namespace emulation {

/// Work on a stream. Not allocated by operator new, whose calls gradtool counts in its timed regions.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  enum class State : unsigned char {
    done,
    begun,    ///< it has done a part and must be called again
    waiting,  ///< it needs work on other streams that has not arrived
  };
  /// Called when all work before it is done, and again until it returns done.
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

/// Appends a task to the stream and takes ownership of it.
void enqueue_task(CUstream_st* stream, Task* task);
template <class F>
void enqueue(CUstream_st* stream, F&& f) {
  enqueue_task(stream, make_task(std::forward<F>(f)));
}

/// The cudaError_t with which CUDA would refuse such a launch; 0 when it is valid.
[[nodiscard]] int refuse(const dim3& grid, const dim3& block, std::size_t shared_bytes);
void set_error(int error);
/// Runs one grid at once. `kernel` calls the kernel for the thread in threadIdx and blockIdx.
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
