#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/bitpack.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/rotation.hpp"

/// Elements and their packed codes by one warp, in windows of 128 elements. Every lane has four neighbours of a window,
/// because one memory access moves four floats and one Philox counter makes four draws. For .cu files; whole warps call
/// these functions. An "Element" is that of a block format (kernels/block_format.hpp).
namespace gradtool::cuda {

inline constexpr std::uint32_t kWindow = 4 * kWarpSize;

/// Windows that a warp has in flight: their loads are under way together, and none of them waits for a store.
inline constexpr std::uint32_t kAhead = 4;
inline constexpr std::uint32_t kAheadElements = kAhead * kWindow;

/// Elements at..at+3 of x[0 .. count), zeros behind the end. `at` is a multiple of 4; `aligned` says that x is 16-byte
/// aligned.
__device__ inline Four<float> four_at(const float* x, std::size_t at, std::size_t count, bool aligned) {
  if (aligned && at + 4 <= count) return *reinterpret_cast<const Four<float>*>(x + at);
  Four<float> four{};
  for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) four.value[i] = x[at + i];
  return four;
}

/// out[at + i] += value[i], as far as out[0 .. count) goes.
__device__ inline void add_four(const Four<float>& value, std::size_t at, std::size_t count, float* out, bool aligned) {
  if (aligned && at + 4 <= count) {
    auto& to = *reinterpret_cast<Four<float>*>(out + at);
    Four<float> four = to;
    for (std::uint32_t i = 0; i < 4; ++i) four.value[i] += value.value[i];
    to = four;
  } else {
    for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) out[at + i] += value.value[i];
  }
}

/// Rotates the groups of a window that are whole among its `present` elements; the others stay as they are. The window
/// begins a group.
template <format::Way Direction, class Rotation>
class WindowTurn {
 public:
  __device__ explicit WindowTurn(const Rotation& rotation)
      : signs_{format::draw_at(rotation.signs, first() / 32) >> first() % 32}, on_{rotation.on} {}

  __device__ bool on() const { return on_; }
  __device__ Four<float> operator()(const Four<float>& x, std::uint32_t present) const {
    if (!on_) return x;
    Four<float> y;
    for (std::uint32_t i = 0; i < 4; ++i)
      y.value[i] = x.value[i] * Rotation::template factor<Direction, true>((signs_ >> i & 1u) != 0);
    for (std::uint32_t apart = 1; apart < 4; apart *= 2) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        if ((i & apart) != 0) continue;
        const float sum = y.value[i] + y.value[i + apart];
        y.value[i + apart] = y.value[i] - y.value[i + apart];
        y.value[i] = sum;
      }
    }
    const std::uint32_t lane = lane_in_warp();
#pragma unroll
    for (std::uint32_t lanes = 1; lanes < kSize / 4; lanes *= 2) {
      for (float& own : y.value) {
        const float other = __shfl_xor_sync(kAllLanes, own, static_cast<int>(lanes));
        own = (lane & lanes) != 0 ? other - own : own + other;
      }
    }
    for (std::uint32_t i = 0; i < 4; ++i)
      y.value[i] = y.value[i] * Rotation::template factor<Direction, false>((signs_ >> i & 1u) != 0);
    return (4 * lane / kSize + 1) * kSize <= present ? y : x;
  }

 private:
  static constexpr std::uint32_t kSize = Rotation::kSize;
  static_assert(kWindow % kSize == 0);
  /// The place of the lane's elements in their group.
  __device__ static std::uint32_t first() {
    return 4 * lane_in_warp() % kSize;
  }

  std::uint32_t signs_;  ///< of the lane's elements, from bit 0 on
  bool on_;
};

/// Has the place of WindowTurn where nothing is rotated.
struct NoTurn {
  __device__ static constexpr bool on() { return false; }
  const __device__ Four<float>& operator()(const Four<float>& x, std::uint32_t /*present*/) const { return x; }
};

/// A lane's elements of several whole windows, one window behind the other, in registers.
template <std::uint32_t Windows>
struct HeldWindows {
  Four<float> window[Windows];
};

/// The first windows of x, which is 16-byte aligned, turned.
template <std::uint32_t Windows, class Turn = NoTurn>
__device__ HeldWindows<Windows> load_windows(const float* x, const Turn& turn = {}) {
  HeldWindows<Windows> held;
#pragma unroll
  for (std::uint32_t w = 0; w < Windows; ++w)
    held.window[w] = *reinterpret_cast<const Four<float>*>(x + w * kWindow + 4 * lane_in_warp());
#pragma unroll
  for (Four<float>& window : held.window) window = turn(window, kWindow);
  return held;
}

/// out[at + i] += value_of(at)[i] for the fours of out[0 .. count), each by its lane.
template <class ValueOf>
__device__ void add_values(std::size_t count, float* out, bool aligned, const ValueOf& value_of) {
  const std::size_t own = 4 * std::size_t{lane_in_warp()};
  std::size_t at = own;
  for (; aligned && at - own + kAheadElements <= count; at += kAheadElements) {
    Four<float> value[kAhead];
    Four<float> sum[kAhead];
#pragma unroll
    for (std::uint32_t w = 0; w < kAhead; ++w) {
      value[w] = value_of(at + w * kWindow);
      sum[w] = *reinterpret_cast<const Four<float>*>(out + at + w * kWindow);
    }
#pragma unroll
    for (std::uint32_t w = 0; w < kAhead; ++w) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) sum[w].value[i] += value[w].value[i];
      *reinterpret_cast<Four<float>*>(out + at + w * kWindow) = sum[w];
    }
  }
  for (; at < count; at += kWindow) add_four(value_of(at), at, count, out, aligned);
}

/// The largest magnitude of four elements as a bit pattern. Patterns without the sign bit are ordered as magnitudes
/// are, NaN above infinity above all numbers.
__device__ inline std::uint32_t largest_of_four(const Four<float>& four) {
  std::uint32_t largest = 0;
  for (const float value : four.value) {
    const std::uint32_t pattern = format::bits_of(value) & 0x7fffffffu;
    largest = pattern > largest ? pattern : largest;
  }
  return largest;
}

/// The largest pattern in windows that are held in registers, in all lanes.
template <std::uint32_t Windows>
__device__ std::uint32_t largest_pattern(const HeldWindows<Windows>& held) {
  std::uint32_t largest = 0;
#pragma unroll
  for (std::uint32_t w = 0; w < Windows; ++w) {
    const std::uint32_t of_four = largest_of_four(held.window[w]);
    largest = of_four > largest ? of_four : largest;
  }
  return __reduce_max_sync(kAllLanes, largest);
}

/// The largest magnitude of x[0 .. count), turned, as a bit pattern, the same in all lanes.
template <class Turn = NoTurn>
__device__ std::uint32_t largest_pattern(const float* x, std::size_t count, bool aligned, const Turn& turn = {}) {
  const std::size_t own = 4 * std::size_t{lane_in_warp()};
  std::uint32_t largest = 0;
  std::size_t at = own;
  for (; aligned && at - own + kAheadElements <= count; at += kAheadElements) {
    const auto ahead = load_windows<kAhead>(x + (at - own), turn);
#pragma unroll
    for (const Four<float>& four : ahead.window) {
      const std::uint32_t of_four = largest_of_four(four);
      largest = of_four > largest ? of_four : largest;
    }
  }
  // All lanes turn together, those without elements too.
  for (; at - (std::is_same_v<Turn, NoTurn> ? 0 : own) < count; at += kWindow) {
    const std::size_t left = count - (at - own);
    const auto present = static_cast<std::uint32_t>(left < kWindow ? left : kWindow);
    const std::uint32_t of_four = largest_of_four(turn(four_at(x, at, count, aligned), present));
    largest = of_four > largest ? of_four : largest;
  }
  return __reduce_max_sync(kAllLanes, largest);
}

/// Four codes, packed.
template <std::uint32_t Bits>
__device__ std::uint32_t packed_four(const Four<std::uint32_t>& code) {
  std::uint32_t four = 0;
  // A GPU shifts and adds in one instruction.
  for (std::uint32_t i = 0; i < 4; ++i) four += code.value[i] << (i * Bits);
  return four;
}

/// Writes the packed codes of a window, of which each lane has `four`, those of absent elements being 0; `present`
/// elements are there. `room` is kWarpSize words of the warp's own shared memory, which are used only where 8 is not a
/// multiple of Bits.
template <std::uint32_t Bits>
__device__ void store_window(std::uint32_t four, std::uint32_t present, std::uint32_t* room, std::uint32_t* words) {
  const std::uint32_t lane = lane_in_warp();
  const auto count = static_cast<std::uint32_t>(format::packed_words(present, Bits));
  if constexpr (8 % Bits == 0) {
    constexpr std::uint32_t kShare = 8 / Bits;  // lanes whose codes make up a word
    const std::uint32_t word = warp_or_among(kShare, four << (lane % kShare * 4 * Bits));
    if (lane % kShare == 0 && lane / kShare < count) words[lane / kShare] = word;
  } else {
    constexpr std::uint32_t kFour = 4 * Bits;  // bits of a lane's codes
    static_assert(kFour < 32, "no lane has the bits of more than two words");
    room[lane] = four;
    __syncwarp();
    if (lane < count) {
      const std::uint32_t first = 32 * lane / kFour;    // the lane whose bits the word starts with
      const std::uint32_t skipped = 32 * lane % kFour;  // bits of that lane which belong to the word before
      std::uint32_t word = room[first] >> skipped;
#pragma unroll
      for (std::uint32_t i = 1; i <= (kFour + 30) / kFour; ++i) {
        const std::uint32_t shift = i * kFour - skipped;
        if (shift < 32 && first + i < kWarpSize) word |= room[first + i] << shift;
      }
      words[lane] = word;
    }
    __syncwarp();  // The next window overwrites the room.
  }
}

/// Two windows of a pair of lanes, as halves or bytes of `own`, become one window of both lanes: the upper lane's
/// behind the lower lane's, in each of them. The lower lane keeps the windows in the lower half of `own`, the upper
/// lane the others. `apart` is the distance of the two lanes, `Bytes`, 1 or 2, what a window has in `own`.
template <std::uint32_t Bytes>
__device__ std::uint32_t kept_windows(std::uint32_t own, std::uint32_t apart) {
  const bool upper = (lane_in_warp() & apart) != 0;
  const std::uint32_t other = __shfl_xor_sync(kAllLanes, own, static_cast<int>(apart));
  return __byte_perm(own, other, Bytes == 1 ? (upper ? 0x3726u : 0x5140u) : (upper ? 0x3276u : 0x5410u));
}

/// Writes the packed codes of kAhead whole windows, of which each lane has fours[w]. A word of codes of 1 or 2 bits has
/// those of several lanes, which share the windows out among them, so that three shuffles do for all windows. `room` is
/// that of store_window.
template <std::uint32_t Bits>
__device__ void store_ahead(const std::uint32_t (&fours)[kAhead], std::uint32_t* room, std::uint32_t* words) {
  static_assert(kAhead == 4);
  constexpr std::uint32_t kWords = kWindow / 32 * Bits;  // of a window
  const std::uint32_t lane = lane_in_warp();
  const std::uint32_t bytes = fours[0] + (fours[1] << 8) + (fours[2] << 16) + (fours[3] << 24);
  if constexpr (Bits == 1) {
    const std::uint32_t halves = bytes << (lane & 1u) * 4;
    const std::uint32_t pairs = halves | __shfl_xor_sync(kAllLanes, halves, 1);
    const std::uint32_t word = kept_windows<2>(kept_windows<1>(pairs, 2), 4);
    if ((lane & 1u) == 0) words[((lane & 2u) + (lane & 4u) / 4) * kWords + lane / 8] = word;
  } else if constexpr (Bits == 2) {
    const std::uint32_t word = kept_windows<2>(kept_windows<1>(bytes, 1), 2);
    words[((lane & 1u) * 2 + (lane & 2u) / 2) * kWords + lane / 4] = word;
  } else {
#pragma unroll
    for (std::uint32_t w = 0; w < kAhead; ++w) store_window<Bits>(fours[w], kWindow, room, words + w * kWords);
  }
}

/// Codes at..at+3 of a stream of `count` codes that starts at `words`; `at` is a multiple of 4. Reads no word behind
/// the stream's last.
template <std::uint32_t Bits>
__device__ Four<std::uint32_t> load_codes(const std::uint32_t* words, std::size_t at, std::size_t count) {
  // Four codes are at most 32 bits, so they lie in two neighbouring words of their group.
  const std::size_t group = at / format::kPackGroup;
  const auto bit = static_cast<std::uint32_t>(at % format::kPackGroup) * Bits;
  const std::uint32_t* from = words + group * Bits;
  std::conditional_t<8 % Bits == 0, std::uint32_t, std::uint64_t> bits = from[bit / 32];
  if constexpr (8 % Bits != 0) {
    const std::size_t left = count - group * format::kPackGroup;
    const std::size_t available = format::packed_words(left < format::kPackGroup ? left : format::kPackGroup, Bits);
    if (bit / 32 + 1 < available) bits |= static_cast<std::uint64_t>(from[bit / 32 + 1]) << 32;
  }
  bits >>= bit % 32;
  Four<std::uint32_t> code;
  for (std::uint32_t i = 0; i < 4; ++i)
    code.value[i] = static_cast<std::uint32_t>(bits >> (i * Bits)) & ((1u << Bits) - 1u);
  return code;
}

/// The packed codes of a lane's four elements, as many of them as are `there`.
template <class Element, bool Stochastic>
__device__ std::uint32_t encode_four(const Four<float>& x, float factor, const format::Draws& draws,
                                     std::uint32_t there = 4) {
  Four<std::uint32_t> code{};
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (i >= there) continue;
    if constexpr (Stochastic)
      code.value[i] = Element::encode(factor, x.value[i], draws.bits[i]);
    else
      code.value[i] = Element::encode(factor, x.value[i]);
  }
  return packed_four<Element::kBits>(code);
}

/// Encodes a window, of which a lane has four elements and the factor of their block. The window's first element has
/// index `first` in the gradient, a multiple of 4, which its draws follow from.
template <class Element, bool Stochastic>
__device__ void encode_window(const Four<float>& x, float factor, std::size_t first, std::uint32_t present,
                              const format::DrawKey& key, std::uint32_t* room, std::uint32_t* words) {
  const std::uint32_t at = 4 * lane_in_warp();
  format::Draws draws{};
  if (Stochastic && at < present) draws = format::draw4(key, (first + at) / 4);
  const std::uint32_t four = encode_four<Element, Stochastic>(x, factor, draws, at < present ? present - at : 0);
  store_window<Element::kBits>(four, present, room, words);
}

/// Encodes held windows, whose blocks have the factors factor_of(window); otherwise as encode_elements. The last
/// element lies below format::kLowElements.
template <class Element, bool Stochastic, std::uint32_t Windows, class FactorOf>
__device__ void encode_held(const HeldWindows<Windows>& held, std::size_t first, const FactorOf& factor_of,
                            const format::DrawKey& key, std::uint32_t* room, std::uint32_t* words) {
  static_assert(Windows % kAhead == 0);
  constexpr std::uint32_t kBits = Element::kBits;
  constexpr std::uint32_t kWords = kWindow / 32 * kBits;  // of a window
  const std::uint32_t index = static_cast<std::uint32_t>(first / 4) + lane_in_warp();
  std::uint32_t fours[kAhead];
#pragma unroll
  for (std::uint32_t w = 0; w < Windows; ++w) {
    format::Draws draws{};
    if constexpr (Stochastic) draws = format::draw4_low(key, index + w * kWarpSize);
    fours[w % kAhead] = encode_four<Element, Stochastic>(held.window[w], factor_of(w), draws);
    // Words that take one shuffle or none are written at once, which leaves registers to the next window.
    if constexpr (kBits == 4 || kBits == 8) {
      store_window<kBits>(fours[w % kAhead], kWindow, room, words + w * kWords);
    } else if (w % kAhead == kAhead - 1) {
      store_ahead<kBits>(fours, room, words + (w - w % kAhead) * kWords);
    }
  }
}

/// Encodes x[0 .. count), turned, all with one factor, into `words`. Element 0 has index `first` in the gradient, a
/// multiple of 32. `aligned` says that x is 16-byte aligned and ends below format::kLowElements.
template <class Element, bool Stochastic, class Turn = NoTurn>
__device__ void encode_elements(const float* x, std::size_t first, std::uint32_t count, bool aligned, float factor,
                                const format::DrawKey& key, std::uint32_t* room, std::uint32_t* words,
                                const Turn& turn = {}) {
  std::uint32_t window = 0;
  for (; aligned && window + kAheadElements <= count; window += kAheadElements) {
    encode_held<Element, Stochastic>(
        load_windows<kAhead>(x + window, turn), first + window, [factor](std::uint32_t) { return factor; }, key, room,
        words + window / format::kPackGroup * Element::kBits);
  }
  for (; window < count; window += kWindow) {
    const std::uint32_t present = count - window < kWindow ? count - window : kWindow;
    const Four<float> four = turn(four_at(x + window, 4 * lane_in_warp(), present, aligned), present);
    encode_window<Element, Stochastic>(four, factor, first + window, present, key, room,
                                       words + window / format::kPackGroup * Element::kBits);
  }
}

/// out[0 .. count) += weight * (decoded * unit_of(element)), turned. `words` starts at a group of codes; the four
/// elements of a lane share a unit; `aligned` says that out is 16-byte aligned.
template <class Element, class UnitOf, class Turn = NoTurn>
__device__ void decode_elements(const std::uint32_t* words, std::size_t count, const UnitOf& unit_of, float weight,
                                float* out, bool aligned, const Turn& turn = {}) {
  const auto value_of = [&](std::size_t at, float factor) {
    const Four<std::uint32_t> code = load_codes<Element::kBits>(words, at, count);
    const float unit = unit_of(at);
    Four<float> value;
    for (std::uint32_t i = 0; i < 4; ++i) value.value[i] = factor * (Element::decode(code.value[i]) * unit);
    return value;
  };
  if constexpr (!std::is_same_v<Turn, NoTurn>) {
    for (std::size_t window = 0; turn.on() && window < count; window += kWindow) {  // by all lanes, which turn together
      const std::size_t at = window + 4 * lane_in_warp();
      const auto present = static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
      Four<float> four = turn(at < count ? value_of(at, 1.0f) : Four<float>{}, present);
      for (float& value : four.value) value = weight * value;
      add_four(four, at, count, out, aligned);
    }
    if (turn.on()) return;
  }
  add_values(count, out, aligned, [&](std::size_t at) { return value_of(at, weight); });
}

}  // namespace gradtool::cuda
