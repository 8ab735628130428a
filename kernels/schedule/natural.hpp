#pragma once

#include "kernels/law/natural.hpp"
#include "kernels/schedule/block_codes.hpp"

/// natural by one warp, in windows of 128 elements: exponents, a byte each, then signs, a bit each.
namespace gradtool::schedule {

/// Of x[0 .. count), whose element 0 has index `first` in the gradient (a multiple of 128), into the payload's
/// exponents and signs.
template <class Warp>
GT_SCHEDULE void natural_encode(const Warp& warp, const float* x, std::size_t first, std::size_t count, bool aligned,
                                const law::DrawKey& key, std::uint32_t* exponents, std::uint32_t* signs) {
  for (std::size_t window = 0; window < count; window += kWindow) {
    const std::size_t index = first + window;
    const auto here = static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
    typename Warp::template Own<Four<std::uint32_t>> exponent;
    typename Warp::template Own<Four<std::uint32_t>> sign;
    warp.each([&](std::uint32_t lane) {
      const std::uint32_t at = 4 * lane;
      const Four<float> four = four_at(x + window, at, here, aligned);
      const law::Draws draws = law::draw4(key, (index + at) / 4);
      for (std::uint32_t i = 0; i < 4; ++i) {
        const bool there = at + i < here;
        exponent[lane].value[i] = there ? law::Natural::exponent(four.value[i], draws.bits[i]) : 0u;
        sign[lane].value[i] = there ? law::bits_of(four.value[i]) >> 31 : 0u;
      }
    });
    store_window<8>(warp, exponent, here, nullptr, exponents + index / 4);
    store_window<1>(warp, sign, here, nullptr, signs + index / 32);
  }
}

template <class Warp>
GT_SCHEDULE void natural_decode(const Warp& warp, const std::uint32_t* exponents, const std::uint32_t* signs,
                                std::size_t first, std::size_t count, float weight, float* out, bool aligned) {
  warp.each([&](std::uint32_t lane) {
    for (std::size_t at = 4 * std::size_t{lane}; at < count; at += kWindow) {
      const Four<std::uint32_t> exponent = load_codes<8>(exponents + first / 4, at, count);
      const Four<std::uint32_t> sign = load_codes<1>(signs + first / 32, at, count);
      Four<float> value;
      for (std::uint32_t i = 0; i < 4; ++i)
        value.value[i] = weight * law::Natural::value(exponent.value[i], sign.value[i]);
      add_four(value, at, count, out, aligned);
    }
  });
}

}  // namespace gradtool::schedule
