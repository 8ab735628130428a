#pragma once

#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {

/// Drives everything out of the L2 cache of the calling thread's GPU, so that what is timed next reads from memory, and
/// leaves no line there that has still to be written: a cache that was only overwritten would write its lines back
/// while the next kernel runs, up to 50 MB beside a bucket of 25. Holds four times the cache in device memory.
class CacheFlush {
 public:
  explicit CacheFlush(Queue<Space::cuda> queue);
  /// Enqueues the writes, then as many reads of other memory.
  void operator()(Queue<Space::cuda> queue) const;

 private:
  DeviceBuffer written_, read_;
};

}  // namespace gradtool::cuda
