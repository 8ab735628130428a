#include "kernels/chunk_select.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "kernels/float_bits.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kBlock = 16;  ///< numbers of which the largest key is kept
constexpr std::size_t kBlocks = kChunkMost / kBlock;

/// Patterns of magnitudes are below 2^31, and vector units compare signed integers best.
using Key = std::int32_t;

/// keys := the patterns of the magnitudes, with -1 up to a whole block; maxima := the largest of each block.
GT_SIMD_CLONES void find_keys(const float* numbers, std::size_t count, Key* keys, Key* maxima) {
  for (std::size_t i = 0; i < count; ++i) keys[i] = static_cast<Key>(format::bits_of(numbers[i]) & 0x7fffffffU);
  const std::size_t blocks = (count + kBlock - 1) / kBlock;
  for (std::size_t i = count; i < blocks * kBlock; ++i) keys[i] = -1;
  for (std::size_t b = 0; b < blocks; ++b) {
    Key largest = -1;
    for (std::size_t j = 0; j < kBlock; ++j) largest = std::max(largest, keys[b * kBlock + j]);
    maxima[b] = largest;
  }
}

GT_SIMD_CLONES std::size_t count_at_least(const Key* keys, std::size_t count, Key floor) {
  std::uint32_t reached = 0;
  for (std::size_t i = 0; i < count; ++i) reached += keys[i] >= floor ? 1U : 0U;
  return reached;
}

/// A key that at least k of the keys reach, and few more than k where keys are spread out.
Key floor_for(const Key* keys, std::size_t count, std::size_t k) {
  Key low = 0;  // reached by all
  Key high = *std::max_element(keys, keys + count);
  while (low < high) {
    const Key middle = low + (high - low + 1) / 2;
    const std::size_t reached = count_at_least(keys, count, middle);
    if (reached < k)
      high = middle - 1;
    else
      low = middle;
    if (reached >= k && reached <= k + k / 8) break;
  }
  return low;
}

}  // namespace

void largest_of_chunk(const float* numbers, std::size_t count, std::size_t k, std::uint16_t* positions) {
  alignas(64) std::array<Key, kChunkMost> keys;
  alignas(64) std::array<Key, kBlocks> maxima;
  find_keys(numbers, count, keys.data(), maxima.data());
  const std::size_t blocks = (count + kBlock - 1) / kBlock;
  // At least k numbers reach any bound that at least k of the blocks' largest reach. Searching among the blocks'
  // largest is cheaper.
  const Key floor = k <= blocks ? floor_for(maxima.data(), blocks, k) : floor_for(keys.data(), count, k);

  std::array<std::uint16_t, kChunkMost> candidates;
  std::array<Key, kChunkMost> order;
  std::size_t found = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    if (maxima[b] < floor) continue;
    for (std::size_t i = b * kBlock; i < std::min(count, (b + 1) * kBlock); ++i) {
      candidates[found] = static_cast<std::uint16_t>(i);
      order[found] = keys[i];
      found += keys[i] >= floor ? 1 : 0;
    }
  }
  if (found > k)
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k - 1),
                     order.begin() + static_cast<std::ptrdiff_t>(found), std::greater<>{});
  const Key threshold = found > k ? order[k - 1] : floor - 1;
  const auto above = static_cast<std::size_t>(std::count_if(candidates.begin(),
                                                            candidates.begin() + static_cast<std::ptrdiff_t>(found),
                                                            [&](std::uint16_t i) { return keys[i] > threshold; }));
  std::size_t ties = k - above;
  for (std::size_t c = 0, chosen = 0; c < found && chosen < k; ++c) {
    const Key key = keys[candidates[c]];
    if (key < threshold || (key == threshold && ties == 0)) continue;
    if (key == threshold) --ties;
    positions[chosen++] = candidates[c];
  }
}

}  // namespace gradtool::host
