#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "kernels/cuda/cache_flush.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool {

/// The one way in which work on a GPU is timed here, codecs and the libraries beside them alike. What comes before an
/// execution and a flush of the L2 cache are enqueued, then an event, the work and another event, for a whole batch
/// before the host waits: while the GPU flushes, the host enqueues the work, so that no launch gap is in a sample
/// unless the work has more launches than the flush takes time, or waits for the GPU itself. Five batches; the time is
/// the median of their means.
class DeviceTimer {
 public:
  struct Times {
    double seconds = 0.0;  ///< of one execution
    double spread = 0.0;   ///< from the shortest to the longest batch, over the median
  };

  explicit DeviceTimer(Queue<Space::cuda> queue) : queue_{queue}, flush_{queue} {}
  /// From now on everything is executed once and not repeated: for a profiler, which repeats each kernel by itself.
  static void execute_once();
  /// `prepare` enqueues what comes before each execution and is not timed.
  [[nodiscard]] Times time(
      const std::function<void()>& work, const std::function<void()>& prepare = [] {}) const;

 private:
  Queue<Space::cuda> queue_;
  cuda::CacheFlush flush_;
};

/// Reports `times` as those of a benchmark over `raw` bytes of fp32 gradient: counters raw and spread, and of_copy
/// where `traffic`, the bytes that one execution moves at least, is known (not 0), at twice the `copy_rate`.
void report(benchmark::State& state, const DeviceTimer::Times& times, double raw, double traffic, double copy_rate);

/// Registers a benchmark that times for itself: its body runs once. An Error of it is the benchmark's, and the others
/// go on. Other errors than too little memory make failed_on_device() true.
void register_on_device(const std::string& name, std::function<void(benchmark::State&)> body);

[[nodiscard]] bool failed_on_device();

}  // namespace gradtool
