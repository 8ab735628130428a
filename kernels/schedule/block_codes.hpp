#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/schedule/windows.hpp"

/// Packed codes of windows by one warp.
namespace gradtool::schedule {

/// Writes a window's codes: `code` holds four of every lane, those of absent elements 0; `here` elements are there.
/// `room`: kLanes words, shared by the lanes; only used where four codes are no power of two bits.
template <std::uint32_t Bits, class Warp>
GT_SCHEDULE void store_window(const Warp& warp, const typename Warp::template Own<Four<std::uint32_t>>& code,
                              std::uint32_t here, std::uint32_t* room, std::uint32_t* words) {
  const auto out = static_cast<std::uint32_t>(law::packed_words(here, Bits));
  if constexpr (8 % Bits == 0) {
    constexpr std::uint32_t kShare = 8 / Bits;  // lanes that fill a word together
    typename Warp::template Own<std::uint32_t> part;
    warp.each([&](std::uint32_t lane) {
      std::uint32_t four = 0;
      for (std::uint32_t i = 0; i < 4; ++i) four |= code[lane].value[i] << (i * Bits);
      part[lane] = four << (lane % kShare * 4 * Bits);
    });
    const auto word = warp.or_among(kShare, part);
    warp.each([&](std::uint32_t lane) {
      if (lane % kShare == 0 && lane / kShare < out) words[lane / kShare] = word[lane];
    });
  } else {
    constexpr std::uint32_t kFour = 4 * Bits;  // bits of a lane: fewer than a word, so that no lane has two words
    static_assert(kFour < 32);
    warp.each([&](std::uint32_t lane) {
      std::uint32_t four = 0;
      for (std::uint32_t i = 0; i < 4; ++i) four |= code[lane].value[i] << (i * Bits);
      room[lane] = four;
    });
    warp.each([&](std::uint32_t lane) {
      if (lane >= out) return;
      const std::uint32_t first = 32 * lane / kFour;  // whose bits the word starts with
      const std::uint32_t gone = 32 * lane % kFour;   // of them, in the word before
      std::uint32_t word = room[first] >> gone;
      GT_UNROLL
      for (std::uint32_t i = 1; i <= (kFour + 30) / kFour; ++i) {
        const std::uint32_t shift = i * kFour - gone;
        if (shift < 32 && first + i < kLanes) word |= room[first + i] << shift;
      }
      words[lane] = word;
    });
  }
}

/// Codes at..at+3 of a stream of `count` codes that starts at `words`.
template <std::uint32_t Bits>
GT_SCHEDULE Four<std::uint32_t> load_codes(const std::uint32_t* words, std::size_t at, std::size_t count) {
  // Four codes are at most 32 bits, so they lie in two neighbouring words of their group.
  const std::size_t group = at / law::kPackGroup;
  const auto bit = static_cast<std::uint32_t>(at % law::kPackGroup) * Bits;
  const std::uint32_t* from = words + group * Bits;
  std::conditional_t<8 % Bits == 0, std::uint32_t, std::uint64_t> two = from[bit / 32];
  if constexpr (8 % Bits != 0) {
    const std::size_t left = count - group * law::kPackGroup;
    const std::size_t available = law::packed_words(left < law::kPackGroup ? left : law::kPackGroup, Bits);
    if (bit / 32 + 1 < available) two |= static_cast<std::uint64_t>(from[bit / 32 + 1]) << 32;
  }
  two >>= bit % 32;
  Four<std::uint32_t> code;
  for (std::uint32_t i = 0; i < 4; ++i)
    code.value[i] = static_cast<std::uint32_t>(two >> (i * Bits)) & ((1u << Bits) - 1u);
  return code;
}

/// One element's code; without draws it is rounded to nearest.
template <class Element, bool Stochastic>
GT_SCHEDULE std::uint32_t code_of(float factor, float x, std::uint32_t draw) {
  if constexpr (Stochastic) return Element::encode(factor, x, draw);
  return Element::encode(factor, x);
}

/// Codes of a window that a lane has four elements and one factor for. Its first element has index `first` in the
/// gradient (a multiple of 4).
template <class Element, bool Stochastic, class Warp>
GT_SCHEDULE void encode_window(const Warp& warp, const typename Warp::template Own<Four<float>>& x,
                               const typename Warp::template Own<float>& factor, std::size_t first, std::uint32_t here,
                               const law::DrawKey& key, std::uint32_t* room, std::uint32_t* words) {
  typename Warp::template Own<Four<std::uint32_t>> code;
  warp.each([&](std::uint32_t lane) {
    const std::uint32_t at = 4 * lane;
    law::Draws draws{};
    if (Stochastic && at < here) draws = law::draw4(key, (first + at) / 4);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t one = code_of<Element, Stochastic>(factor[lane], x[lane].value[i], draws.bits[i]);
      code[lane].value[i] = at + i < here ? one : 0u;
    }
  });
  store_window<Element::kBits>(warp, code, here, room, words);
}

/// Codes of held windows, all with one factor; otherwise as encode_elements.
template <class Element, bool Stochastic, std::uint32_t Windows, class Warp>
GT_SCHEDULE void encode_held(const Warp& warp, const Held<Windows, Warp>& held, std::size_t first, float factor,
                             const law::DrawKey& key, std::uint32_t* room, std::uint32_t* words) {
  typename Warp::template Own<float> factors;
  warp.each([&](std::uint32_t lane) { factors[lane] = factor; });
  GT_UNROLL
  for (std::uint32_t w = 0; w < Windows; ++w) {
    encode_window<Element, Stochastic>(warp, held.window[w], factors, first + w * kWindow, kWindow, key, room,
                                       words + w * (kWindow / 32 * Element::kBits));
  }
}

/// Codes of x[0 .. count), all with one factor, into `words`. Element 0 has index `first` in the gradient (a multiple
/// of 32).
template <class Element, bool Stochastic, class Warp>
GT_SCHEDULE void encode_elements(const Warp& warp, const float* x, std::size_t first, std::size_t count, bool aligned,
                                 float factor, const law::DrawKey& key, std::uint32_t* room, std::uint32_t* words) {
  typename Warp::template Own<float> factors;
  warp.each([&](std::uint32_t lane) { factors[lane] = factor; });
  std::size_t window = 0;
  for (; aligned && window + kAheadElements <= count; window += kAheadElements) {
    encode_held<Element, Stochastic>(warp, load_windows<kAhead>(warp, x + window), first + window, factor, key, room,
                                     words + window / law::kPackGroup * Element::kBits);
  }
  for (; window < count; window += kWindow) {
    const auto here = static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
    typename Warp::template Own<Four<float>> four;
    warp.each([&](std::uint32_t lane) { four[lane] = four_at(x + window, 4 * lane, here, aligned); });
    encode_window<Element, Stochastic>(warp, four, factors, first + window, here, key, room,
                                       words + window / law::kPackGroup * Element::kBits);
  }
}

/// out[0 .. count) += weight * (decoded * unit_of(element)). `words` starts at a group; elements of a lane's four share
/// a unit; `aligned`: out is 16-byte aligned.
template <class Element, class Warp, class UnitOf>
GT_SCHEDULE void decode_elements(const Warp& warp, const std::uint32_t* words, std::size_t count, const UnitOf& unit_of,
                                 float weight, float* out, bool aligned) {
  add_values(warp, count, out, aligned, [&](std::size_t at) {
    const Four<std::uint32_t> code = load_codes<Element::kBits>(words, at, count);
    const float unit = unit_of(at);
    Four<float> value;
    for (std::uint32_t i = 0; i < 4; ++i) value.value[i] = weight * (Element::decode(code.value[i]) * unit);
    return value;
  });
}

}  // namespace gradtool::schedule
