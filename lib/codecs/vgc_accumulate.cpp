#include "lib/codecs/vgc_accumulate.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/host/marks.hpp"

namespace gradtool {
namespace {

using law::Vgc;

/// One step of up to 32 elements; a NaN square never hides: v becomes NaN and the element is sent.
template <bool Hybrid>
inline VgcFound update_word(const float* g, const float* square, float* r, float* v, std::uint32_t count,
                            const Vgc& law, bool over_all, std::uint32_t* word) {
  std::array<std::uint32_t, 32> flags{};
  std::array<std::uint32_t, 32> sizes{};
  for (std::uint32_t j = 0; j < count; ++j) {
    const Vgc::Taken taken = law.take<Hybrid>(r[j] + g[j], v[j] + square[j]);
    r[j] = taken.r;
    v[j] = taken.v;
    flags[j] = taken.sent ? 1u : 0u;
    sizes[j] = taken.sent || over_all ? taken.size : 0u;
  }
  *word = host::word_of(flags.data());
  VgcFound found{static_cast<std::uint32_t>(std::popcount(*word)), 0};
  for (std::uint32_t j = 0; j < 32; ++j) found.largest = std::max(found.largest, sizes[j]);
  return found;
}

template <bool Hybrid>
GT_SIMD_CLONES VgcFound update(const float* g, const float* moment, float* r, float* v, std::size_t count, Vgc law,
                               bool over_all, std::uint32_t* words) {
  std::array<float, 32> square{};
  VgcFound all;
  for (std::size_t at = 0; at < count; at += 32) {
    const auto here = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - at));
    if (moment == nullptr) {
      if (here == 32) {
        for (std::uint32_t j = 0; j < 32; ++j) square[j] = g[at + j] * g[at + j];
      } else {
        for (std::uint32_t j = 0; j < here; ++j) square[j] = g[at + j] * g[at + j];
      }
    }
    const float* squares = moment == nullptr ? square.data() : moment + at;
    const VgcFound found =
        here == 32 ? update_word<Hybrid>(g + at, squares, r + at, v + at, 32, law, over_all, words + at / 32)
                   : update_word<Hybrid>(g + at, squares, r + at, v + at, here, law, over_all, words + at / 32);
    all.count += found.count;
    all.largest = std::max(all.largest, found.largest);
  }
  return all;
}

}  // namespace

VgcFound vgc_accumulate(const float* g, const float* moment, float* r, float* v, std::size_t count, const Vgc& law,
                        bool over_all, std::uint32_t* marks) {
  return law.tau > 0.0F ? update<true>(g, moment, r, v, count, law, over_all, marks)
                        : update<false>(g, moment, r, v, count, law, over_all, marks);
}

}  // namespace gradtool
