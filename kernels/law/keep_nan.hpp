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

/// x, and for any NaN one and the same. Arithmetic makes a NaN of which only that it is one can be relied on: x86 keeps
/// the bits of an operand and makes negative ones, a GPU's are all 0x7fffffff. What arithmetic has touched goes through
/// this before its bits decide anything: what is sent, a sign, which of two is larger (docs/adr/0006).
GT_HD inline float one_nan(float x) {
  return x == x ? x : float_of(0x7fc00000u);
}

}  // namespace gradtool::law
