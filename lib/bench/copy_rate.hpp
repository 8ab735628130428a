#pragma once

#include <cstddef>

#include "lib/core/view.hpp"

namespace gradtool {

/// memcpy's rate: bytes copied a second (each is read and written once), median of several copies between buffers of
/// `bytes`, cut over the queue's threads. Buffers larger than the last-level cache give the memory's rate.
[[nodiscard]] double measure_copy_rate(Queue<Space::host> queue, std::size_t bytes);

/// The same between two buffers of a GPU. Only in builds with CUDA.
[[nodiscard]] double measure_device_copy_rate(int device, std::size_t bytes);

/// Reads and writes a block larger than the last-level cache, so that what follows finds its input in memory.
class CacheFlusher {
 public:
  CacheFlusher();
  ~CacheFlusher();
  void flush();

 private:
  std::size_t bytes_;
  unsigned char* block_;
};

}  // namespace gradtool
