#include "kernels/host/half_round.hpp"

#include <algorithm>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::host {
namespace {

GT_SIMD_CLONES std::uint32_t largest_pattern(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffU);
  return largest;
}

GT_SIMD_CLONES void round_scaled(float* x, std::size_t count, float scale, float back) {
  for (std::size_t i = 0; i < count; ++i) x[i] = law::f32_from_f16(law::f16_from_f32(x[i] * scale)) * back;
}

float power_of_two(int exponent) {
  return law::float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

}  // namespace

void round_to_half(float* x, std::size_t count, int top) {
  const std::uint32_t largest = largest_pattern(x, count);
  if (largest == 0 || largest >= 0x7f800000U) return;
  const int exponent =
      static_cast<int>(largest >> 23) - 127;  // of a subnormal: one that is not larger than it should be
  const int shift = std::clamp(top - 1 - exponent, -120, 120);
  round_scaled(x, count, power_of_two(shift), power_of_two(-shift));
}

}  // namespace gradtool::host
