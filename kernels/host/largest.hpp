#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

namespace gradtool::host {

/// Exactly k of n numbers with the largest magnitudes, of equal ones those with the lower index. Magnitudes compare by
/// their binary32 patterns, so NaN counts as larger than infinity and all that matters is independent of threads.
///
/// Two passes over the numbers: a histogram of the top 11 of 31 bits, which settles all but one of its bins, then a
/// gather of that bin and what lies above. The rest works on those candidates, little more than k where the numbers
/// are spread out, all n of them at worst.
class Largest {
 public:
  /// Bytes of scratch for n numbers, a multiple of 4.
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t n);

  /// `scratch` is aligned to 4 and holds scratch_bytes(n).
  Largest(Queue<Space::host> queue, HostView<const float> numbers, HostView<std::byte> scratch);

  /// positions := where the k largest are, ascending; k = positions.size() <= n. values := what they are, in the same
  /// order; it may be null.
  void select(HostView<std::uint32_t> positions, float* values) const;

 private:
  Queue<Space::host> queue_;
  HostView<const float> numbers_;
  std::size_t parts_;
  std::uint32_t* histograms_;  ///< for each part
  std::uint32_t* patterns_;    ///< of the candidates, with their signs
  std::uint32_t* places_;      ///< where they are
};

}  // namespace gradtool::host
