#include "lib/bench/memory.hpp"

#include <fmt/format.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <fstream>

namespace gradtool {
namespace {

constexpr std::uint64_t kMostRangeBytes = std::uint64_t{256} << 20;  ///< unless a unit takes more: see MemoryPlan

}  // namespace

std::uint64_t machine_memory() {
  std::uint64_t memory =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::uint64_t limit = 0;  // the file says "max" where there is none
  if (std::ifstream{"/sys/fs/cgroup/memory.max"} >> limit) memory = std::min(memory, limit);
  return memory;
}

std::uint64_t bench_memory() {
  return machine_memory() / 8;
}

std::string too_large_for(std::uint64_t memory, std::uint64_t elements, int ranks) {
  const std::uint64_t least = elements * (24 + 4 * static_cast<std::uint64_t>(ranks));
  if (least <= memory) return "";
  constexpr double kGigabyte = 1e9;
  return fmt::format(
      "{} elements are reduced at once, which takes {:.0f} GB at least with {} rank{} on this machine, and it has "
      "{:.0f} GB",
      elements, static_cast<double>(least) / kGigabyte, ranks, ranks == 1 ? "" : "s",
      static_cast<double>(memory) / kGigabyte);
}

MemoryPlan plan_memory(std::uint64_t bytes, const std::vector<Unit>& units, int ranks, std::uint64_t update_bytes) {
  const auto of_ranks = static_cast<std::uint64_t>(ranks);
  const std::uint64_t range_element = 16 + update_bytes + 8 * of_ranks;
  const std::uint64_t unit_element = 8 + 9 * of_ranks;
  MemoryPlan plan;
  plan.range_elements = std::max<std::uint64_t>(1, std::min(bytes / 2, kMostRangeBytes) / range_element);
  std::uint64_t needed = 0;
  for (const auto& unit : units) needed = std::max(needed, unit_element * unit.elements);
  std::uint64_t largest_range = 0;
  for (const UnitRange range : make_unit_ranges(units, plan.range_elements)) {
    std::uint64_t elements = 0;
    for (const auto& unit : range.of(units)) elements += unit.elements;
    largest_range = std::max(largest_range, elements);
  }
  needed += range_element * largest_range;
  plan.cache_bytes = bytes - std::min(bytes, needed);
  return plan;
}

void return_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

}  // namespace gradtool
