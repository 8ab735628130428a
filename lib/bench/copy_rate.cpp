#include "lib/bench/copy_rate.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "lib/bench/statistics.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

double measure_copy_rate(Queue<Space::host> queue, std::size_t bytes) {
  Arena<Space::host> from{bytes};
  Arena<Space::host> to{bytes};
  const auto source = from.take_bytes(bytes);
  const auto target = to.take_bytes(bytes);
  std::memset(source.data(), 1, bytes);
  std::memset(target.data(), 2, bytes);
  std::vector<double> rates;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(queue, bytes, 4096, 1 << 18, [&](std::size_t first, std::size_t last) {
      std::memcpy(target.data() + first, source.data() + first, last - first);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (repeat > 0) rates.push_back(static_cast<double>(bytes) / seconds);
  }
  return summarise(rates).median;
}

CacheFlusher::CacheFlusher() {
  const long reported = sysconf(_SC_LEVEL3_CACHE_SIZE);
  // Twice the cache, within reason: virtual machines report the whole socket's.
  bytes_ = std::clamp<std::size_t>(reported > 0 ? 2 * static_cast<std::size_t>(reported) : 0, 16U << 20, 64U << 20);
  block_ = new unsigned char[bytes_]{};
}

CacheFlusher::~CacheFlusher() {
  delete[] block_;
}

void CacheFlusher::flush() {
  for (std::size_t i = 0; i < bytes_; i += 64) ++block_[i];
}

}  // namespace gradtool
