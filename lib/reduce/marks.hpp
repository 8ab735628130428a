#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lib/core/task_pool.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Words of a bitmap over n elements: bit i mod 32 of word i div 32.
[[nodiscard]] constexpr std::size_t mark_words(std::size_t n) {
  return (n + 31) / 32;
}

/// 1 for a value that is neither 0 nor smaller than the threshold in magnitude; NaN is large.
[[nodiscard]] inline std::uint32_t is_large(float x, float threshold) {
  return (!(std::fabs(x) < threshold) && x != 0.0F) ? 1U : 0U;
}

/// The number of marked elements.
[[nodiscard]] std::size_t count_marks(HostView<const std::uint32_t> words);

/// words := a bitmap of the values that are large.
void mark_large(Queue<Space::host> queue, HostView<const float> values, float threshold, HostView<std::uint32_t> words);

/// body(at, i) for every marked element i, where `at` counts the marked ones before it; returns how many there are.
/// Runs on the queue's threads, so calls come in any order.
template <class F>
std::size_t for_each_mark(Queue<Space::host> queue, HostView<const std::uint32_t> words, F&& body) {
  constexpr std::size_t kMaxParts = 64;
  const std::size_t parts = std::min(kMaxParts, part_count(queue, words.size(), 1 << 9));
  std::array<std::size_t, kMaxParts> at{};
  parallel_parts(queue, words.size(), parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
    at[part] = count_marks(words.part(first, last - first));
  });
  std::size_t total = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t here = at[part];
    at[part] = total;
    total += here;
  }
  parallel_parts(queue, words.size(), parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
    std::size_t next = at[part];
    for (std::size_t word = first; word < last; ++word) {
      for (std::uint32_t rest = words[word]; rest != 0; rest &= rest - 1) {
        body(next++, 32 * word + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
  });
  return total;
}

}  // namespace gradtool
