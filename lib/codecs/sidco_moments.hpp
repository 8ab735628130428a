#pragma once

#include <cstdint>

#include "kernels/host/block_select.hpp"
#include "kernels/law/sidco.hpp"

namespace gradtool {

/// What a piece adds to a fit.
struct SidcoPart {
  SidcoMoments moments{};
  std::uint32_t largest = 0;  ///< pattern, of a finite number
};

/// Moments that `fit` needs of a piece's magnitudes in [low, infinity), low a pattern, or of all normal numbers for
/// gamma; counted from the origin. `maxima`: the largest pattern of each block of 32, of all pieces.
[[nodiscard]] SidcoPart sidco_part(SidcoFit fit, const host::Piece& piece, const float* x, const std::uint32_t* maxima,
                                   std::uint32_t low, float origin);

}  // namespace gradtool
