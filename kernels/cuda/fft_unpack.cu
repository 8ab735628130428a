#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/fft_pack.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/schedule/fft_unpack.hpp"

namespace gradtool::cuda {
namespace {

/// Counts of all tiles of all payloads, 32 to a warp; the last one closes the row for the scan.
__global__ void marked_kernel(const __grid_constant__ schedule::Unpacking at) {
  const DeviceWarp warp;
  const std::size_t warps = (schedule::tiles_of(at.expected.bins) + schedule::kLanes - 1) / schedule::kLanes;
  for (std::size_t i = warp_in_grid(); i < at.count * warps; i += warps_in_grid())
    schedule::count_marked(warp, at, static_cast<std::uint32_t>(i / warps), i % warps * schedule::kLanes);
  if (thread_in_grid() == 0) at.offsets[at.count * schedule::tiles_of(at.expected.bins)] = 0;
}

/// One warp.
__global__ void open_kernel(const __grid_constant__ schedule::Unpacking at) {
  schedule::open_payloads(DeviceWarp{}, at);
}

__global__ void unpack_kernel(const __grid_constant__ schedule::Unpacking at) {
  __shared__ schedule::Pair values[kBlockWarpCount][schedule::kTileBins];
  const DeviceWarp warp;
  const std::size_t end = schedule::tiles_of(at.last);
  for (std::size_t tile = at.first / schedule::kTileBins + warp_in_grid(); tile < end; tile += warps_in_grid())
    schedule::unpack_tile(warp, at, tile, values[threadIdx.x / schedule::kLanes]);
}

/// Where things lie in the work memory.
struct Room {
  Room(View<std::byte, Space::cuda> work, std::size_t payloads, std::size_t bins) {
    const std::size_t count = payloads * schedule::tiles_of(bins) + 1;
    ScratchPieces pieces{work};
    pieces.take(opened, kMostUnpacked);
    pieces.take(offsets, count);
    scan = pieces.take(scan_bytes<std::uint32_t>(count));
    bytes = pieces.bytes();
  }
  schedule::Opened* opened;
  std::uint32_t* offsets;
  View<std::byte, Space::cuda> scan;
  std::size_t bytes;
};

schedule::Unpacking unpacking(const PackedSpectra& of) {
  static_assert(kMostUnpacked == schedule::kMostPayloads);
  expects(of.payloads.size() <= kMostUnpacked, "fft: too many payloads at once");
  schedule::Unpacking at{};
  for (const auto& payload : of.payloads) {
    expects(payload.size() >= sizeof(law::FftHeader) && aligned_to(payload.data(), alignof(law::FftHeader)),
            "fft: a payload needs a header, 8-byte aligned");
    at.payloads[at.count++] = {payload.data(), payload.size()};
  }
  at.expected = of.expected;
  at.formats = of.formats;
  at.chunk_bins = static_cast<std::uint32_t>(of.shape.bins_per_chunk());
  at.real_end = of.shape.length % 2 == 0;
  at.real_tail = of.shape.tail != 0 && of.shape.tail % 2 == 0;
  const Room room{of.work, at.count, at.expected.bins};
  at.opened = room.opened;
  at.offsets = room.offsets;
  return at;
}

}  // namespace

std::size_t unpack_work_bytes(std::size_t bins) {
  return Room{{}, kMostUnpacked, bins}.bytes;
}

void open_spectra(Queue<Space::cuda> queue, const PackedSpectra& of) {
  const schedule::Unpacking at = unpacking(of);
  const std::size_t tiles = schedule::tiles_of(at.expected.bins);
  launch(queue, "fft marked", marked_kernel, blocks_for(at.count * (tiles + schedule::kLanes), kThreads), at);
  scan_tiles(queue, at.offsets, at.count * tiles + 1, Room{of.work, at.count, at.expected.bins}.scan);
  launch(queue, "fft open", open_kernel, {1, schedule::kLanes}, at);
}

void unpack_spectra(Queue<Space::cuda> queue, const PackedSpectra& of, std::size_t first, std::size_t count,
                    float* spectrum) {
  schedule::Unpacking at = unpacking(of);
  at.first = first;
  at.last = first + count;
  at.spectrum = spectrum;
  launch(queue, "fft unpack", unpack_kernel, blocks_for(schedule::tiles_of(count) + 1, kBlockWarpCount), at);
}

}  // namespace gradtool::cuda
