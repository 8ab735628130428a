#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/model/units.hpp"

namespace gradtool {

/// The machine's memory in bytes, or the control group's where that is limited to less.
[[nodiscard]] std::uint64_t machine_memory();

/// The bytes that a bench may take in all: an eighth of machine_memory(). What one unit needs it takes all the same.
[[nodiscard]] std::uint64_t bench_memory();

/// A sentence where reducing `elements` at once takes more at least than `memory`: for each element 4 bytes of gradient
/// on each of `ranks`, 8 of the exact mean and 16 of running sums. The system would end the process without a word.
/// Empty where it may fit.
[[nodiscard]] std::string too_large_for(std::uint64_t memory, std::uint64_t elements, int ranks);

/// How a process of a bench divides `bytes` of memory. For every element of a range of units it keeps 16 bytes of
/// running sums (rank 0) and, for each of its `ranks`, what methods keep between steps, for which 8 bytes are reckoned:
/// a residual and a momentum. For every element of the largest unit, 8 bytes of the exact mean and, for each rank, 4 of
/// the gradient and about 5 to encode and exchange it. What is left serves as a cache of the capture.
struct MemoryPlan {
  /// The most that make_unit_ranges() is asked for: a range may take half of the memory, and 256 MiB. A larger one
  /// saves nothing, because what is kept for it is made anew for each codec all the same.
  std::size_t range_elements = 0;
  std::uint64_t cache_bytes = 0;
};
/// `update_bytes`: of each element of a range what UpdateErrors keeps, where it is asked for.
[[nodiscard]] MemoryPlan plan_memory(std::uint64_t bytes, const std::vector<Unit>& units, int ranks,
                                     std::uint64_t update_bytes = 0);

/// Makes malloc give blocks of a megabyte or more back to the system as soon as they are freed. By default it learns to
/// keep them, in a heap for each thread: after some codecs, whose ranks are threads, a bench would hold twice what it
/// uses. Nothing allocates where time is measured.
void return_freed_memory();

}  // namespace gradtool
