#pragma once

#include "kernels/law/natural.hpp"
#include "kernels/schedule/block_codes.hpp"

/// natural by one warp, in windows of 128 elements: exponents, a byte each, then signs, a bit each.
namespace gradtool::schedule {

/// A window: four elements of every lane, of which the first `here` are there. The first has index `index` in the
/// gradient (a multiple of 128).
template <class Warp>
GT_SCHEDULE void natural_window(const Warp& warp, const typename Warp::template Own<Four<float>>& x, std::size_t index,
                                std::uint32_t here, const law::DrawKey& key, std::uint32_t* exponents,
                                std::uint32_t* signs) {
  typename Warp::template Own<Four<std::uint32_t>> exponent;
  typename Warp::template Own<Four<std::uint32_t>> sign;
  warp.each([&](std::uint32_t lane) {
    const std::uint32_t at = 4 * lane;
    const law::Draws draws = law::draw4(key, (index + at) / 4);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const bool there = at + i < here;
      exponent[lane].value[i] = there ? law::Natural::exponent(x[lane].value[i], draws.bits[i]) : 0u;
      sign[lane].value[i] = there ? law::bits_of(x[lane].value[i]) >> 31 : 0u;
    }
  });
  store_window<8>(warp, exponent, here, nullptr, exponents + index / 4);
  store_window<1>(warp, sign, here, nullptr, signs + index / 32);
}

/// Of x[0 .. count), whose element 0 has index `first` in the gradient (a multiple of 128), into the payload's
/// exponents and signs.
template <class Warp>
GT_SCHEDULE void natural_encode(const Warp& warp, const float* x, std::size_t first, std::size_t count, bool aligned,
                                const law::DrawKey& key, std::uint32_t* exponents, std::uint32_t* signs) {
  std::size_t window = 0;
  for (; aligned && window + kAheadElements <= count; window += kAheadElements) {
    const auto held = load_windows<kAhead>(warp, x + window);
    GT_UNROLL
    for (std::uint32_t w = 0; w < kAhead; ++w)
      natural_window(warp, held.window[w], first + window + w * kWindow, kWindow, key, exponents, signs);
  }
  for (; window < count; window += kWindow) {
    const auto here = static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
    typename Warp::template Own<Four<float>> four;
    warp.each([&](std::uint32_t lane) { four[lane] = four_at(x + window, 4 * lane, here, aligned); });
    natural_window(warp, four, first + window, here, key, exponents, signs);
  }
}

template <class Warp>
GT_SCHEDULE void natural_decode(const Warp& warp, const std::uint32_t* exponents, const std::uint32_t* signs,
                                std::size_t first, std::size_t count, float weight, float* out, bool aligned) {
  add_values(warp, count, out, aligned, [&](std::size_t at) {
    const Four<std::uint32_t> exponent = load_codes<8>(exponents + first / 4, at, count);
    const Four<std::uint32_t> sign = load_codes<1>(signs + first / 32, at, count);
    Four<float> value;
    for (std::uint32_t i = 0; i < 4; ++i)
      value.value[i] = weight * law::Natural::value(exponent.value[i], sign.value[i]);
    return value;
  });
}

}  // namespace gradtool::schedule
