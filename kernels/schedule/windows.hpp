#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/schedule/warp.hpp"

/// Elements by one warp in windows of 128, four neighbours for every lane, because one access moves four floats and one
/// Philox counter draws for four.
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

/// Windows that a warp has in flight: their loads are under way together, and none waits for a store.
inline constexpr std::uint32_t kAhead = 4;
inline constexpr std::uint32_t kAheadElements = kAhead * kWindow;

/// Whole windows, one behind the other: four elements of each for every lane, in registers.
template <std::uint32_t Windows, class Warp>
struct Held {
  typename Warp::template Own<Four<float>> window[Windows];
};

/// Of x, which is 16-byte aligned.
template <std::uint32_t Windows, class Warp>
GT_SCHEDULE Held<Windows, Warp> load_windows(const Warp& warp, const float* x) {
  Held<Windows, Warp> held;
  warp.each([&](std::uint32_t lane) {
    GT_UNROLL
    for (std::uint32_t w = 0; w < Windows; ++w)
      held.window[w][lane] = *reinterpret_cast<const Four<float>*>(x + w * kWindow + 4 * lane);
  });
  return held;
}

/// out[at + i] += value_of(at)[i] for every lane's fours of out[0 .. count).
template <class Warp, class ValueOf>
GT_SCHEDULE void add_values(const Warp& warp, std::size_t count, float* out, bool aligned, const ValueOf& value_of) {
  warp.each([&](std::uint32_t lane) {
    std::size_t at = 4 * std::size_t{lane};
    for (; aligned && at - 4 * lane + kAheadElements <= count; at += kAheadElements) {
      Four<float> value[kAhead];
      Four<float> sum[kAhead];
      GT_UNROLL
      for (std::uint32_t w = 0; w < kAhead; ++w) {
        value[w] = value_of(at + w * kWindow);
        sum[w] = *reinterpret_cast<const Four<float>*>(out + at + w * kWindow);
      }
      GT_UNROLL
      for (std::uint32_t w = 0; w < kAhead; ++w) {
        GT_UNROLL
        for (std::uint32_t i = 0; i < 4; ++i) sum[w].value[i] += value[w].value[i];
        *reinterpret_cast<Four<float>*>(out + at + w * kWindow) = sum[w];
      }
    }
    for (; at < count; at += kWindow) add_four(value_of(at), at, count, out, aligned);
  });
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
    std::size_t at = 4 * std::size_t{lane};
    for (; aligned && at - 4 * lane + kAheadElements <= count; at += kAheadElements) {
      Four<float> ahead[kAhead];
      GT_UNROLL
      for (std::uint32_t w = 0; w < kAhead; ++w) ahead[w] = *reinterpret_cast<const Four<float>*>(x + at + w * kWindow);
      GT_UNROLL
      for (std::uint32_t w = 0; w < kAhead; ++w) {
        const std::uint32_t four = largest_of_four(ahead[w]);
        most = four > most ? four : most;
      }
    }
    for (; at < count; at += kWindow) {
      const std::uint32_t four = largest_of_four(four_at(x, at, count, aligned));
      most = four > most ? four : most;
    }
    largest[lane] = most;
  });
  return warp.max(largest);
}

/// The same of held windows.
template <std::uint32_t Windows, class Warp>
GT_SCHEDULE std::uint32_t largest_pattern(const Warp& warp, const Held<Windows, Warp>& held) {
  typename Warp::template Own<std::uint32_t> largest;
  warp.each([&](std::uint32_t lane) {
    std::uint32_t most = 0;
    GT_UNROLL
    for (std::uint32_t w = 0; w < Windows; ++w) {
      const std::uint32_t four = largest_of_four(held.window[w][lane]);
      most = four > most ? four : most;
    }
    largest[lane] = most;
  });
  return warp.max(largest);
}

}  // namespace gradtool::schedule
