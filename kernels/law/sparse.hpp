#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"

/// What sparse payloads look like, for both sides (docs/payload-format.md).
namespace gradtool {

/// How a sparse payload says which of n positions its k values belong to. Positions ascend and do not repeat.
enum class IndexCode : std::uint32_t {
  u32 = 0,     ///< 4k bytes
  bitmap = 1,  ///< 4 ceil(n/32) bytes: bit i mod 32 of word i div 32
  elias = 2,   ///< Elias delta codes of the gaps (position - previous, the first + 1), padded to 4 bytes
};

/// What sparse payloads begin with. `values` follow, in the codec's own form, then, aligned to 4, the index section.
struct SparseHeader {
  std::uint64_t bytes = 0;  ///< of the whole payload
  std::uint32_t count = 0;  ///< k
  std::uint32_t code = 0;   ///< IndexCode
};
static_assert(sizeof(SparseHeader) == 16);

namespace law {

// Strom's forms, told by the code: positions whose topmost bit is the sign, without values; and, added to a code, that
// all values are NaN.
inline constexpr std::uint32_t kSignedWords = 3;
inline constexpr std::uint32_t kNotFinite = 256;
inline constexpr std::uint32_t kWordIndex = 0x7fffffffu;

struct IndexChoice {
  IndexCode code = IndexCode::u32;
  std::size_t bytes = 0;
};

GT_HD constexpr std::size_t words_of_bits(std::size_t bits) {
  return (bits + 31) / 32;
}
/// The size of an index section of k positions below n whose gaps take `elias_bits`.
GT_HD constexpr std::size_t index_bytes(IndexCode code, std::size_t k, std::size_t n, std::size_t elias_bits) {
  return code == IndexCode::u32 ? 4 * k : 4 * words_of_bits(code == IndexCode::bitmap ? n : elias_bits);
}
/// index=auto: the smallest; of equal ones, the lowest code.
GT_HD constexpr IndexChoice smallest_index(std::size_t k, std::size_t n, std::size_t elias_bits) {
  IndexChoice best{IndexCode::u32, 4 * k};
  const std::size_t bitmap = index_bytes(IndexCode::bitmap, k, n, elias_bits);
  if (bitmap < best.bytes) best = {IndexCode::bitmap, bitmap};
  const std::size_t elias = index_bytes(IndexCode::elias, k, n, elias_bits);
  if (elias < best.bytes) best = {IndexCode::elias, elias};
  return best;
}

}  // namespace law
}  // namespace gradtool
