#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/vgc.hpp"

namespace gradtool {

/// What vgc's first pass over a piece found.
struct VgcFound {
  std::uint32_t count = 0;    ///< of marked elements
  std::uint32_t largest = 0;  ///< the largest pattern of |r|
};

/// The first pass: r and v of `count` elements take up the gradient and its squares, or `moment` where that is not
/// null, and `marks` get a bit for each element that stands out (Tsuzuku et al., arXiv 1802.06058, Algorithm 1;
/// Algorithm 2 where law.tau > 0). The state of a marked element is left to vgc_write_words; the hybrid's is settled
/// here where it is finite. The largest is that of the marked ones, or of all with `over_all`.
[[nodiscard]] VgcFound vgc_accumulate(const float* g, const float* moment, float* r, float* v, std::size_t count,
                                      const law::Vgc& law, bool over_all, std::uint32_t* marks);

}  // namespace gradtool
