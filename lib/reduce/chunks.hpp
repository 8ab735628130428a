#pragma once

#include <cstddef>
#include <vector>

#include "lib/codecs/layout.hpp"

namespace gradtool {

/// A consecutive part of a unit.
struct ChunkOfUnit {
  std::size_t first = 0;  ///< where it starts in the unit
  Layout layout;          ///< of the part alone
};

/// Cuts a unit into at most `most` chunks of about the same size, the same on every rank. Fewer where they would have
/// less than 1024 elements each, which is where a message's latency costs more than overlapping saves.
///
/// With `whole_tensors`, for methods that treat tensors by their shapes, borders are those of tensors that lie nearest
/// to equal parts; where two of them fall together there are fewer chunks, and a single tensor is one. Else borders lie
/// at multiples of a power of two, 65536 where a chunk has four of them or more: what a codec cuts into blocks of its
/// own is then cut at the same places as without chunks.
[[nodiscard]] std::vector<ChunkOfUnit> cut_into_chunks(const Layout& layout, std::size_t most, bool whole_tensors);

}  // namespace gradtool
