#pragma once

#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/law/qsgd_streams.hpp"

namespace gradtool::cuda {

/// Pieces of the scratch of encode and decode_add.
struct QsgdEliasScratch {
  QsgdEliasScratch(const law::QsgdStreams& layout, View<std::byte, Space::cuda> scratch) {
    ScratchPieces pieces{scratch};
    pieces.take(offsets, layout.parts() + 1);
    scan = pieces.take(scan_bytes<std::uint64_t>(layout.parts() + 1));
    pieces.take(slots, layout.parts() * layout.slot_bytes());
    bytes = pieces.bytes();
  }
  std::uint64_t* offsets;  ///< of each stream behind the first; at last, how long all are
  View<std::byte, Space::cuda> scan;
  std::byte* slots;  ///< a stream each, until it is known where they go
  std::size_t bytes;
};

}  // namespace gradtool::cuda
