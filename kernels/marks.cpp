#include "kernels/marks.hpp"

#include "kernels/float_bits.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;

GT_SIMD_CLONES void mark_words_of(const float* x, float threshold, std::uint32_t* words, std::size_t count) {
  for (std::size_t w = 0; w < count; ++w) {
    std::uint32_t word = 0;
    for (std::uint32_t bit = 0; bit < 32; ++bit) word |= is_large(x[32 * w + bit], threshold) << bit;
    words[w] = word;
  }
}

/// Cloned because the baseline has no instruction for it.
GT_SIMD_CLONES std::size_t count_bits(const std::uint32_t* words, std::size_t count) {
  std::size_t bits = 0;
  for (std::size_t w = 0; w < count; ++w) bits += static_cast<std::size_t>(std::popcount(words[w]));
  return bits;
}

}  // namespace

std::size_t count_marks(HostView<const std::uint32_t> words) {
  return count_bits(words.data(), words.size());
}

void mark_large(Queue<Space::host> queue, HostView<const float> values, float threshold,
                HostView<std::uint32_t> words) {
  const std::size_t whole = values.size() / 32;
  parallel_for(queue, whole, 1, kGrain / 32, [&](std::size_t first, std::size_t last) {
    mark_words_of(values.data() + 32 * first, threshold, words.data() + first, last - first);
  });
  if (values.size() % 32 == 0) return;
  words[whole] = 0;
  for (std::size_t i = 32 * whole; i < values.size(); ++i) words[whole] |= is_large(values[i], threshold) << i % 32;
}

}  // namespace gradtool
