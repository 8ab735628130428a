#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"

namespace gradtool::law {

/// Where things lie in a qsgd payload of n elements: ceil(n/bucket) float32 norms, then the packed codes of all buckets
/// one behind the other. Only the last bucket may be short; it is packed to whole 32-bit words.
struct QsgdLayout {
  std::size_t n;
  std::size_t bucket;  ///< a multiple of 32, so that a bucket's codes start at a word
  std::uint32_t bits;

  [[nodiscard]] GT_HD constexpr std::size_t buckets() const { return (n + bucket - 1) / bucket; }
  [[nodiscard]] GT_HD constexpr std::size_t codes_offset() const { return 4 * buckets(); }
  [[nodiscard]] GT_HD constexpr std::size_t first_word(std::size_t b) const { return b * (bucket / kPackGroup) * bits; }
  [[nodiscard]] GT_HD constexpr std::size_t bytes() const { return codes_offset() + 4 * packed_words(n, bits); }
};

}  // namespace gradtool::law
