#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/vgc.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// What the second pass knows of a piece.
struct VgcChosen {
  law::Vgc law;
  bool keeps_dropped = false;
  std::uint32_t exponent = 0;
  std::uint32_t first_index = 0;     ///< of the piece, in its group
  const float* values = nullptr;     ///< r, or the gradient where there is no state
  float *r = nullptr, *v = nullptr;  ///< null where there is no state
};

/// The second pass: writes the words of a piece's marked elements to `out` and settles their state. Elements too small
/// for a word get none. Returns how many words there are.
std::uint32_t vgc_write_words(const VgcChosen& piece, const std::uint32_t* marks, std::size_t count,
                              std::uint32_t* out);

/// to[index] += weight * value for the count >= 1 words of a group of `elements`. Throws Fault::data where they do not
/// ascend, go past the group's end or below the smallest number.
void vgc_add_words(Queue<Space::host> queue, const law::Vgc& law, const std::uint32_t* words, std::size_t count,
                   std::uint32_t exponent, std::size_t elements, float weight, float* to);

}  // namespace gradtool
