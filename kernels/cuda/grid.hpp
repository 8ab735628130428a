#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::cuda {

inline constexpr unsigned kThreads = 256;

/// Blocks for a grid-stride loop in which a block takes `per_block` items at a time: enough to fill any GPU a few times
/// over, and at least one.
inline unsigned blocks_for(std::size_t items, std::size_t per_block, std::size_t most = 8192) {
  return static_cast<unsigned>(std::clamp<std::size_t>((items + per_block - 1) / per_block, 1, most));
}

/// True when `pointer` allows accesses of `bytes` bytes.
GT_HD inline bool aligned_to(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace gradtool::cuda
