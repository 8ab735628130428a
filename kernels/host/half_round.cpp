#include "kernels/host/half_round.hpp"

#include <algorithm>
#include <cstdint>

#include "kernels/law/half_rows.hpp"
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

}  // namespace

void round_to_half(float* x, std::size_t count, int top) {
  const auto scale = law::HalfScale::of(largest_pattern(x, count), top);
  if (scale.there != 0.0F) round_scaled(x, count, scale.there, scale.back);
}

}  // namespace gradtool::host
