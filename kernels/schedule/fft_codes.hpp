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

inline constexpr std::uint32_t kCodeWindow = 128;  ///< values that a warp quantises at a time

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

/// Codes of values[first .. first + 128), or up to `count`, into their words. `codes` is room for a window, shared by
/// the lanes. For a RangeFloat, not for plain float32.
template <class Warp>
GT_SCHEDULE void quantise_window(const Warp& warp, const float* values, std::size_t first, std::size_t count,
                                 float factor, const law::RangeFloat& format, std::uint32_t* codes,
                                 std::uint32_t* words) {
  constexpr auto kGroup = static_cast<std::uint32_t>(law::kPackGroup);
  const auto here = static_cast<std::uint32_t>(count - first < kCodeWindow ? count - first : kCodeWindow);
  warp.each([&](std::uint32_t lane) {
    for (std::uint32_t i = lane; i < here; i += kLanes) codes[i] = format.encode(law::times(values[first + i], factor));
  });
  warp.each([&](std::uint32_t lane) {
    const auto out = static_cast<std::uint32_t>(law::packed_words(here, format.bits));
    for (std::uint32_t w = lane; w < out; w += kLanes) {
      const std::uint32_t group = w / format.bits * kGroup;
      const std::uint32_t in_group = here - group < kGroup ? here - group : kGroup;
      words[first / kGroup * format.bits + w] = law::packed_word(codes + group, in_group, format.bits, w % format.bits);
    }
  });
}

}  // namespace gradtool::schedule
