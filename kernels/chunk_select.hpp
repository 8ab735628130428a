#pragma once

#include <cstddef>
#include <cstdint>

/// The largest few of a chunk of at most 4096 numbers. Chunks are small enough for one core's first cache, or for one
/// block of a GPU (kernels/cuda/chunk_select.hpp), so that every chunk is chosen from by itself.
namespace gradtool::host {

inline constexpr std::size_t kChunkMost = 4096;

/// positions := the k numbers with the largest magnitudes, ascending; of equal ones those with the lower index.
/// Magnitudes compare by their binary32 patterns, so that NaN counts as larger than infinity. 1 <= k <= count.
void largest_of_chunk(const float* numbers, std::size_t count, std::size_t k, std::uint16_t* positions);

}  // namespace gradtool::host
