#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/schedule/warp.hpp"

/// Packed codes by one warp: windows of 128 elements, four neighbours for every lane, because one access moves four
/// floats and one Philox counter draws for four.
namespace gradtool::schedule {

inline constexpr std::uint32_t kWindow = 4 * kLanes;

/// Elements at..at+3 of x[0 .. count); zeros behind the end. `aligned`: x is 16-byte aligned; `at` is a multiple of 4.
GT_SCHEDULE inline Four<float> four_at(const float* x, std::size_t at, std::size_t count, bool aligned) {
  if (aligned && at + 4 <= count) return *reinterpret_cast<const Four<float>*>(x + at);
  Four<float> four{};
  for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) four.value[i] = x[at + i];
  return four;
}

/// out[at + i] += value[i], as far as out[0 .. count) goes.
GT_SCHEDULE inline void add_four(const Four<float>& value, std::size_t at, std::size_t count, float* out,
                                 bool aligned) {
  if (aligned && at + 4 <= count) {
    auto& to = *reinterpret_cast<Four<float>*>(out + at);
    Four<float> four = to;
    for (std::uint32_t i = 0; i < 4; ++i) four.value[i] += value.value[i];
    to = four;
  } else {
    for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) out[at + i] += value.value[i];
  }
}

/// The largest pattern without sign of four elements.
GT_SCHEDULE inline std::uint32_t largest_of_four(const Four<float>& four) {
  std::uint32_t largest = 0;
  for (const float value : four.value) {
    const std::uint32_t pattern = law::bits_of(value) & 0x7fffffffu;
    largest = pattern > largest ? pattern : largest;
  }
  return largest;
}

/// The largest pattern without sign of x[0 .. count), the same in all lanes: NaN above infinity above all numbers.
template <class Warp>
GT_SCHEDULE std::uint32_t largest_pattern(const Warp& warp, const float* x, std::size_t count, bool aligned) {
  typename Warp::template Own<std::uint32_t> largest;
  warp.each([&](std::uint32_t lane) {
    std::uint32_t most = 0;
    for (std::size_t at = 4 * std::size_t{lane}; at < count; at += kWindow) {
      const std::uint32_t four = largest_of_four(four_at(x, at, count, aligned));
      most = four > most ? four : most;
    }
    largest[lane] = most;
  });
  return warp.max(largest);
}

/// Writes a window's codes: `code` holds four of every lane, those of absent elements 0; `here` elements are there.
/// `room`: for kWindow codes, 16-byte aligned, shared by the lanes; only used where four codes are no power of two
/// bits.
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
    warp.each([&](std::uint32_t lane) { *reinterpret_cast<Four<std::uint32_t>*>(room + 4 * lane) = code[lane]; });
    warp.each([&](std::uint32_t lane) {
      constexpr auto kGroup = static_cast<std::uint32_t>(law::kPackGroup);
      for (std::uint32_t w = lane; w < out; w += kLanes) {
        const std::uint32_t group = w / Bits * kGroup;
        const std::uint32_t in_group = here - group < kGroup ? here - group : kGroup;
        words[w] = law::packed_word(room + group, in_group, Bits, w % Bits);
      }
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
  std::uint64_t two = from[bit / 32];
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

/// Codes of x[0 .. count), all with one factor, into `words`. Element 0 has index `first` in the gradient (a multiple
/// of 32).
template <class Element, bool Stochastic, class Warp>
GT_SCHEDULE void encode_elements(const Warp& warp, const float* x, std::size_t first, std::size_t count, bool aligned,
                                 float factor, const law::DrawKey& key, std::uint32_t* room, std::uint32_t* words) {
  typename Warp::template Own<float> factors;
  warp.each([&](std::uint32_t lane) { factors[lane] = factor; });
  for (std::size_t window = 0; window < count; window += kWindow) {
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
  warp.each([&](std::uint32_t lane) {
    for (std::size_t at = 4 * std::size_t{lane}; at < count; at += kWindow) {
      const Four<std::uint32_t> code = load_codes<Element::kBits>(words, at, count);
      const float unit = unit_of(at);
      Four<float> value;
      for (std::uint32_t i = 0; i < 4; ++i) value.value[i] = weight * (Element::decode(code.value[i]) * unit);
      add_four(value, at, count, out, aligned);
    }
  });
}

}  // namespace gradtool::schedule
