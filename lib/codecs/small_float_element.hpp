#pragma once

#include "kernels/law/small_float.hpp"

namespace gradtool {

/// A format of kernels/law/small_float.hpp as the element of a block format. A factor of 0 gives zero with the sign of
/// x, whatever x is.
template <auto Law>
struct SmallFloatElement {
  static constexpr std::uint32_t kBits = Law.bits;

  [[nodiscard]] static std::uint32_t encode(float factor, float x) { return Law.nearest(scaled(factor, x)); }
  [[nodiscard]] static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    return Law.stochastic(scaled(factor, x), draw);
  }
  [[nodiscard]] static float decode(std::uint32_t code) { return Law.value(code); }

 private:
  [[nodiscard]] static float scaled(float factor, float x) {
    return factor > 0.0F ? x * factor : law::float_of(law::bits_of(x) & 0x80000000U);
  }
};

}  // namespace gradtool
