#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::law {

/// AdaComp's choice (Chen et al., AAAI 2018, arXiv 1712.02679), one element at a time. G is residue + gradient, H what
/// G would be if the gradient came `s - 1` times more.
struct AdaComp {
  float more = 1.0F;  ///< s - 1

  static constexpr std::uint32_t kInfinity = 0x7f800000u;
  static constexpr std::uint32_t kPositive = 1, kNegative = 2;  ///< 2-bit codes

  /// |x| as a pattern; all that is not finite counts as infinity.
  GT_HD static std::uint32_t magnitude(float x) {
    const std::uint32_t pattern = bits_of(x) & 0x7fffffffu;
    return pattern < kInfinity ? pattern : kInfinity;
  }
  /// |H| reaches the largest |G| of the bin; zero has no sign to send.
  GT_HD bool sends(float sum, float gradient, std::uint32_t largest) const {
    return magnitude(sum + more * gradient) >= largest && magnitude(sum) > 0;
  }
  GT_HD static std::uint32_t code(float sum) { return kPositive + (bits_of(one_nan(sum)) >> 31); }
};

}  // namespace gradtool::law
