#pragma once

#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/cuda/vgc.hpp"

namespace gradtool::cuda {

inline constexpr std::uint32_t kVgcTileWords = kVgcTile / 32;  ///< of marks

/// Pieces of the scratch of encoding and decoding.
struct VgcWork {
  VgcWork(std::size_t tiles, std::size_t groups, View<std::byte, Space::cuda> scratch) {
    ScratchPieces pieces{scratch};
    pieces.take(largest, groups);
    pieces.take(marks, kVgcTileWords * tiles);
    pieces.take(words, kVgcTile * tiles);
    pieces.take(before, tiles + 1);
    pieces.take(starts, groups + 2);
    scan = pieces.take(scan_bytes<std::uint64_t>(tiles + 1));
    bytes = pieces.bytes();
  }
  std::uint32_t* largest;  ///< pattern of each group
  std::uint32_t* marks;    ///< a bit for each element of a tile, kVgcTileWords words
  std::uint32_t* words;    ///< what a tile sends, from its start on
  std::uint64_t* before;   ///< words in the tiles in front
  std::uint64_t* starts;   ///< words in the groups in front, decoding; after the last, whether all is well
  View<std::byte, Space::cuda> scan;
  std::size_t bytes;
};

}  // namespace gradtool::cuda
