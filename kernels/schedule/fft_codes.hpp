#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/fft_payload.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/law/range_float.hpp"
#include "kernels/schedule/warp.hpp"

/// The codes of an fft payload by warps; the bytes are those of kernels/host/fft_pack.cpp.
namespace gradtool::schedule {

inline constexpr std::uint32_t kCodeWindow = kLanes * law::kPackGroup;  ///< values that a warp quantises at a time
/// Words that the lanes share for a window: a row for each group, such that neither a row nor a column is in one bank.
inline constexpr std::uint32_t kCodeRow = law::kPackGroup + 1;
inline constexpr std::uint32_t kCodeRoom = kLanes * kCodeRow;

/// What turns an unnormalised component into the number that is coded, and back.
struct Scaling {
  float factor;  ///< component times this is coded
  float scale;   ///< what the header says
};
GT_HD inline Scaling scaling_of(std::uint32_t largest, float unit, bool quantised, bool scaled) {
  const bool finite = largest < 0x7f800000u;
  if (!quantised || !scaled || !finite) return {unit, finite ? 1.0f : law::float_of(0x7fc00000u)};
  const float peak = law::float_of(largest);
  if (peak < law::kSmallestScale) return {0.0f, 0.0f};
  return {1.0f / peak, peak * unit};
}

/// The codes of values[0 .. here) into rows of a window; zeros behind the last.
template <class Warp>
GT_SCHEDULE void encode_window(const Warp& warp, const float* values, std::uint32_t here, float factor,
                               const law::RangeFloat& format, std::uint32_t* room) {
  constexpr std::uint32_t kFours = kCodeWindow / (4 * kLanes);
  if (here == kCodeWindow) {
    warp.each([&](std::uint32_t lane) {
      Four<float> four[kFours];
      GT_UNROLL
      for (std::uint32_t f = 0; f < kFours; ++f)
        four[f] = reinterpret_cast<const Four<float>*>(values)[f * kLanes + lane];
      GT_UNROLL
      for (std::uint32_t f = 0; f < kFours; ++f) {
        const std::uint32_t i = 4 * (f * kLanes + lane);
        GT_UNROLL
        for (std::uint32_t k = 0; k < 4; ++k)
          room[i / law::kPackGroup * kCodeRow + i % law::kPackGroup + k] =
              format.encode(law::times(four[f].value[k], factor));
      }
    });
    return;
  }
  warp.each([&](std::uint32_t lane) {
    for (std::uint32_t i = lane; i < kCodeWindow; i += kLanes)
      room[i / law::kPackGroup * kCodeRow + lane] = i < here ? format.encode(law::times(values[i], factor)) : 0u;
  });
}

/// Codes of values[first .. first + kCodeWindow), or up to `count`, into their words; `values` is 16-byte aligned.
/// `room` has kCodeRoom words, shared by the lanes. For a RangeFloat of at most 16 bits, not for plain float32.
template <class Warp>
GT_SCHEDULE void quantise_window(const Warp& warp, const float* values, std::size_t first, std::size_t count,
                                 float factor, const law::RangeFloat& format, std::uint32_t* room,
                                 std::uint32_t* words) {
  const auto here = static_cast<std::uint32_t>(count - first < kCodeWindow ? count - first : kCodeWindow);
  const std::uint32_t bits = format.bits;
  encode_window(warp, values + first, here, factor, format, room);
  // A lane packs a group where it is: a word is complete after at least two codes, and so in front of the next one.
  warp.each([&](std::uint32_t lane) {
    std::uint32_t* row = room + lane * kCodeRow;
    std::uint64_t open = 0;
    std::uint32_t filled = 0;
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < law::kPackGroup; ++i) {
      open |= static_cast<std::uint64_t>(row[i]) << filled;
      filled += bits;
      if (filled < 32) continue;
      row[word++] = static_cast<std::uint32_t>(open);
      open >>= 32;
      filled -= 32;
    }
  });
  std::uint32_t* to = words + first / law::kPackGroup * bits;
  const auto used = static_cast<std::uint32_t>(law::packed_words(here, bits));
  warp.each([&](std::uint32_t lane) {  // half a warp for each group
    const std::uint32_t word = lane % (kLanes / 2);
    for (std::uint32_t group = lane / (kLanes / 2); group < kLanes; group += 2) {
      const std::uint32_t at = group * bits + word;
      if (word < bits && at < used) to[at] = room[group * kCodeRow + word];
    }
  });
}

}  // namespace gradtool::schedule
