#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/adacomp.hpp"

namespace gradtool {

/// What a pass over some bins of a tensor found.
struct AdaCompFound {
  double largest = 0.0;  ///< sum over bins; not finite where a bin is not
  std::uint32_t count = 0;
  std::uint32_t place = 0;  ///< entries of the tensor before these
};

/// The first pass over `count` elements of whole bins: sums += g, and `words`, of which every bin starts a new one, get
/// a bit for each element that is sent (Chen et al., arXiv 1712.02679). `place` is left open.
[[nodiscard]] AdaCompFound adacomp_mark(const float* g, float* sums, std::size_t count, std::size_t bin,
                                        law::AdaComp law, std::uint32_t* words);

}  // namespace gradtool
