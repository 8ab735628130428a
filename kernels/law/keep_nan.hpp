#pragma once

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// x * factor for a factor that is a number. A NaN keeps sign and payload, as multiplication does on the CPUs that
/// write payloads; a GPU would make it the canonical NaN, and the bytes would differ.
GT_HD inline float times(float x, float factor) {
  const std::uint32_t bits = bits_of(x);
  return (bits & 0x7fffffffu) > 0x7f800000u ? float_of(bits | 0x00400000u) : x * factor;
}

}  // namespace gradtool::law
