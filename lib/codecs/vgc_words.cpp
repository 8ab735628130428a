#include "lib/codecs/vgc_words.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/host/marks.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

using law::Vgc;

/// What up to 32 elements would send, in `words`, and the state of the marked ones after it. Bit j of the result is set
/// where element j is not too small for a word.
template <bool Hybrid>
[[gnu::always_inline]] inline std::uint32_t settle_block(const VgcChosen& piece, std::size_t at, std::uint32_t count,
                                                         std::uint32_t marked, std::uint32_t* words) {
  const bool finite = piece.exponent != Vgc::kNotFinite;
  const std::uint32_t first = piece.first_index + static_cast<std::uint32_t>(at);
  const float* values = piece.values + at;
  std::array<std::uint32_t, 32> fits{};
  for (std::uint32_t j = 0; j < count; ++j) {
    const std::uint32_t steps = !Hybrid && finite ? Vgc::steps_down(values[j], piece.exponent) : 0u;
    fits[j] = steps < Vgc::kSteps ? 1u : 0u;
    words[j] = Vgc::word(values[j], steps, first + j);
  }
  const std::uint32_t result = host::word_of(fits.data());
  if (piece.r == nullptr || (Hybrid && finite)) return result;  // the first pass has settled what is finite
  float* r = piece.r + at;
  float* v = piece.v + at;
  for (std::uint32_t j = 0; j < count; ++j) {
    const Vgc::State now{r[j], v[j]};
    const Vgc::State left = piece.law.settle<Hybrid>(now, fits[j] != 0, piece.keeps_dropped);
    const bool sent = (marked >> j & 1u) != 0;
    r[j] = sent ? left.r : now.r;
    v[j] = sent ? left.v : now.v;
  }
  return result;
}

/// Writes the words of a piece's marked elements and settles their state. Returns how many words there are.
template <bool Hybrid>
GT_SIMD_CLONES std::uint32_t write_words(VgcChosen piece, const std::uint32_t* marks, std::size_t count,
                                         std::uint32_t* out) {
  const std::uint32_t* const begin = out;
  std::array<std::uint32_t, 32> words{};
  for (std::size_t at = 0; at < count; at += 32) {
    const std::uint32_t marked = marks[at / 32];
    if (marked == 0) continue;
    const auto here = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - at));
    std::uint32_t rest = here == 32 ? settle_block<Hybrid>(piece, at, 32, marked, words.data())
                                    : settle_block<Hybrid>(piece, at, here, marked, words.data());
    for (rest &= marked; rest != 0; rest &= rest - 1) *out++ = words[static_cast<std::size_t>(std::countr_zero(rest))];
  }
  return static_cast<std::uint32_t>(out - begin);
}

/// True when words name ascending elements of a group, by exponents that exist.
GT_SIMD_CLONES bool is_group(const std::uint32_t* words, std::size_t count, std::uint32_t mask, std::uint32_t steps) {
  std::uint32_t wrong = 0;
  for (std::size_t j = 1; j < count; ++j) wrong |= (words[j - 1] & mask) >= (words[j] & mask) ? 1u : 0u;
  for (std::size_t j = 0; j < count; ++j) wrong |= (words[j] >> 28 & 7u) >= steps ? 1u : 0u;
  return wrong == 0;
}

}  // namespace

std::uint32_t vgc_write_words(const VgcChosen& piece, const std::uint32_t* marks, std::size_t count,
                              std::uint32_t* out) {
  return piece.law.tau > 0.0F ? write_words<true>(piece, marks, count, out)
                              : write_words<false>(piece, marks, count, out);
}

void vgc_add_words(Queue<Space::host> queue, const Vgc& law, const std::uint32_t* words, std::size_t count,
                   std::uint32_t exponent, std::size_t elements, float weight, float* to) {
  const bool hybrid = law.tau > 0.0F;
  const std::uint32_t mask = hybrid ? 0x7fffffffu : 0x0fffffffu;
  const std::uint32_t steps = hybrid || exponent == Vgc::kNotFinite ? Vgc::kSteps : exponent;
  if (!is_group(words, count, mask, steps) || (words[count - 1] & mask) >= elements) {
    throw Error{Fault::data,
                "vgc payload: its words do not ascend, go past the end of a group or below the smallest number"};
  }
  parallel_for(queue, count, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    if (exponent == Vgc::kNotFinite) {
      for (; first < last; ++first) to[words[first] & mask] += law::float_of(0x7fc00000u);
    } else if (hybrid) {
      const std::uint32_t size = law::bits_of(weight * law.tau);
      for (; first < last; ++first) to[words[first] & mask] += law::float_of(size ^ (words[first] & ~mask));
    } else {
      for (; first < last; ++first) to[words[first] & mask] += weight * Vgc::value_of(words[first], exponent);
    }
  });
}

}  // namespace gradtool
