#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// The signs of one shard as every rank sees them: its owner's own where they lie, the other ranks' in slots.
struct Votes {
  std::size_t ranks = 1;
  std::size_t owner = 0;
  std::uint32_t* own = nullptr;             ///< also where the majority goes
  const std::uint32_t* received = nullptr;  ///< rank r's at r * slot; the owner's slot is not looked at
  std::size_t slot = 0;
  std::size_t words = 0;

  GT_HD const std::uint32_t* row(std::size_t rank) const { return rank == owner ? own : received + rank * slot; }
};

}  // namespace gradtool::law
