#include "kernels/vector.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/float_bits.hpp"
#include "kernels/sums.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 15;

GT_SIMD_CLONES void add_range(const float* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = format::one_nan(out[i] + in[i]);
}

GT_SIMD_CLONES void subtract_range(const float* left, const float* right, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = format::one_nan(left[i] - right[i]);
}

GT_SIMD_CLONES void approach_range(const float* to, float share, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = format::one_nan(out[i] + share * (to[i] - out[i]));
}

GT_SIMD_CLONES void scale_range(float* view, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) view[i] *= factor;
}

/// Patterns without the sign bit are ordered as magnitudes are, NaN above infinity above numbers.
GT_SIMD_CLONES std::uint32_t largest_pattern(const float* view, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, format::bits_of(view[i]) & 0x7fffffffu);
  return largest;
}

}  // namespace

Moments moments(Queue<Space::host> queue, View<const float, Space::host> view) {
  const format::SumCut cut = format::sum_cut(view.size());
  std::array<double, format::kMostChunks> sums;  // as far as there are chunks
  std::array<double, format::kMostChunks> squares;
  std::array<std::uint32_t, format::kMostChunks> largest;
  parallel_for(queue, cut.count, 1, kGrain / format::kSumChunk, [&](std::size_t first, std::size_t last) {
    for (std::size_t c = first; c < last; ++c) {
      const std::size_t begin = c * cut.chunk;
      const auto chunk = host::moments_of(view.data() + begin, std::min(cut.chunk, view.size() - begin));
      sums[c] = chunk.sum;
      squares[c] = chunk.squares;
      largest[c] = chunk.largest;
    }
  });
  format::GroupedSum sum, square_sum;
  std::uint32_t most = 0;
  for (std::size_t c = 0; c < cut.count; ++c) {
    sum.add(sums[c]);
    square_sum.add(squares[c]);
    most = std::max(most, largest[c]);
  }
  return {sum.value(), square_sum.value(), most};
}

float largest_magnitude(Queue<Space::host> queue, View<const float, Space::host> view) {
  std::atomic<std::uint32_t> largest{0};
  parallel_for(queue, view.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    const std::uint32_t own = largest_pattern(view.data() + first, last - first);
    std::uint32_t seen = largest.load(std::memory_order_relaxed);
    while (own > seen && !largest.compare_exchange_weak(seen, own, std::memory_order_relaxed)) {
    }
  });
  return format::float_of(largest.load(std::memory_order_relaxed));
}

void fill_zero(Queue<Space::host> queue, View<float, Space::host> view) {
  parallel_for(queue, view.size(), 16, kGrain,
               [&](std::size_t first, std::size_t last) { std::fill(view.data() + first, view.data() + last, 0.0F); });
}

void add(Queue<Space::host> queue, View<const float, Space::host> in, View<float, Space::host> out) {
  parallel_for(queue, out.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    add_range(in.data() + first, out.data() + first, last - first);
  });
}

void subtract(Queue<Space::host> queue, View<const float, Space::host> left, View<const float, Space::host> right,
              View<float, Space::host> out) {
  parallel_for(queue, out.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    subtract_range(left.data() + first, right.data() + first, out.data() + first, last - first);
  });
}

void approach(Queue<Space::host> queue, View<const float, Space::host> to, float share, View<float, Space::host> out) {
  parallel_for(queue, out.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    approach_range(to.data() + first, share, out.data() + first, last - first);
  });
}

void scale(Queue<Space::host> queue, View<float, Space::host> view, float factor) {
  parallel_for(queue, view.size(), 16, kGrain,
               [&](std::size_t first, std::size_t last) { scale_range(view.data() + first, last - first, factor); });
}

void read_back(Queue<Space::host> /*queue*/, View<const std::byte, Space::host> from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

template <>
struct ReadBack<Space::host>::Memory {
  std::vector<std::uint64_t> numbers;
};
template <>
ReadBack<Space::host>::ReadBack(std::size_t most) : memory_{new Memory{std::vector<std::uint64_t>(most)}} {}
template <>
ReadBack<Space::host>::~ReadBack() = default;
template <>
void ReadBack<Space::host>::fetch(Queue<Space::host> queue, View<const std::byte, Space::host> from, std::size_t at) {
  expects(8 * at + from.size() <= 8 * memory_->numbers.size(), "more numbers are read back than there is room for");
  read_back(queue, from, memory_->numbers.data() + at);
}
template <>
std::span<const std::uint64_t> ReadBack<Space::host>::wait(Queue<Space::host> /*queue*/) {
  return memory_->numbers;
}

void write_size(Queue<Space::host> /*queue*/, std::uint64_t size, View<std::byte, Space::host> to) {
  std::memcpy(to.data(), &size, sizeof size);
}

}  // namespace gradtool
