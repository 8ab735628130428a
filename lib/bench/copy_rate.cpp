#include "lib/bench/copy_rate.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/text.hpp"
#include "lib/model/statistics.hpp"

namespace gradtool {

double measure_copy_rate(Queue<Space::host> queue, std::size_t bytes) {
  Arena<Space::host> from{bytes};
  Arena<Space::host> to{bytes};
  const auto source = from.take_bytes(bytes);
  const auto target = to.take_bytes(bytes);
  std::memset(source.data(), 1, bytes);
  std::vector<double> rates;
  for (int repeat = 0; repeat < 7; ++repeat) {  // the first one makes the target's pages
    const auto start = std::chrono::steady_clock::now();
    parallel_for(queue, bytes, 4096, 1 << 18, [&](std::size_t first, std::size_t last) {
      std::memcpy(target.data() + first, source.data() + first, last - first);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (repeat > 0) rates.push_back(static_cast<double>(bytes) / seconds);
  }
  return summarise(rates).median;
}

std::size_t copy_block_bytes() {
  constexpr std::size_t kLeast = std::size_t{16} << 20, kMost = std::size_t{128} << 20;
  namespace fs = std::filesystem;
  std::map<std::string, std::size_t> caches;  // by the processors that share one
  std::error_code none;
  for (const auto& cpu : fs::directory_iterator{"/sys/devices/system/cpu", none}) {
    const auto word = [&](const char* name) {
      std::ifstream file{cpu.path() / "cache/index3" / name};
      std::string text;
      file >> text;
      return text;
    };
    const std::string size = word("size");
    if (!size.empty()) caches[word("shared_cpu_list")] = parse_bytes(size, "a cache");
  }
  std::size_t all = 0;
  for (const auto& [processors, bytes] : caches) all += bytes;
  return all == 0 ? kMost : std::clamp(2 * all, kLeast, kMost);
}

double measure_thread_bytes(TaskPool& pool) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 201; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(
        static_cast<std::size_t>(pool.threads()), [](void*, std::size_t) {}, nullptr);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 4.0 * summarise(seconds).median * measure_copy_rate({}, 16U << 20);
}

void evict_from_caches(HostView<const std::byte> view) {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < view.size(); i += kLine) _mm_clflush(view.data() + i);
  if (!view.empty()) _mm_clflush(view.data() + view.size() - 1);
  _mm_mfence();
#else
  static_cast<void>(view);
  thread_local std::vector<unsigned char> block(64U << 20);
  for (std::size_t i = 0; i < block.size(); i += 64) ++block[i];
#endif
}

}  // namespace gradtool
