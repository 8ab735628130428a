#include "lib/codecs/adacomp_mark.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/host/marks.hpp"

namespace gradtool {
namespace {

using law::AdaComp;

/// G of one bin into `sums` (which may be what it was), its marks; returns the pattern of its largest.
[[gnu::always_inline]] inline std::uint32_t mark_bin(const float* g, float* sums, std::size_t count, AdaComp law,
                                                     std::uint32_t* words) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const float sum = sums[j] + g[j];
    sums[j] = sum;
    largest = std::max(largest, AdaComp::magnitude(sum));
  }
  std::array<std::uint32_t, 32> flags{};
  std::size_t at = 0;
  for (; at + 32 <= count; at += 32) {
    for (std::size_t j = 0; j < 32; ++j) flags[j] = law.sends(sums[at + j], g[at + j], largest) ? 1u : 0u;
    *words++ = host::word_of(flags.data());
  }
  if (at == count) return largest;
  flags.fill(0);
  for (std::size_t j = 0; at + j < count; ++j) flags[j] = law.sends(sums[at + j], g[at + j], largest) ? 1u : 0u;
  *words = host::word_of(flags.data());
  return largest;
}

GT_SIMD_CLONES AdaCompFound mark_bins(const float* g, float* sums, std::size_t count, std::size_t bin, AdaComp law,
                                      std::uint32_t* words) {
  AdaCompFound found;
  const std::size_t per_bin = (bin + 31) / 32;
  for (std::size_t at = 0; at < count; at += bin, words += per_bin) {
    const std::size_t here = std::min(bin, count - at);
    found.largest += static_cast<double>(law::float_of(mark_bin(g + at, sums + at, here, law, words)));
    for (std::size_t w = 0; w < (here + 31) / 32; ++w)
      found.count += static_cast<std::uint32_t>(std::popcount(words[w]));
  }
  return found;
}

}  // namespace

AdaCompFound adacomp_mark(const float* g, float* sums, std::size_t count, std::size_t bin, AdaComp law,
                          std::uint32_t* words) {
  return mark_bins(g, sums, count, bin, law, words);
}

}  // namespace gradtool
