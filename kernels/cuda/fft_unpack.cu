#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/fft_pack.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/schedule/fft_codes.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kWarps = kThreads / schedule::kLanes;

/// Counts of all tiles of all payloads; the last one closes the row for the scan.
__global__ void marked_kernel(const __grid_constant__ schedule::Unpacking at) {
  const DeviceWarp warp;
  const std::size_t tiles = schedule::tiles_of(at.expected.bins);
  for (std::size_t i = warp_in_grid(); i < at.count * tiles; i += warps_in_grid()) {
    schedule::count_marked(warp, at, static_cast<std::uint32_t>(i / tiles), i % tiles);
  }
  if (thread_in_grid() == 0) at.offsets[at.count * tiles] = 0;
}

constexpr unsigned kUnpackWarps = 4;  // TileWork is large

__global__ void unpack_kernel(const __grid_constant__ schedule::Unpacking at) {
  __shared__ schedule::TileWork works[kUnpackWarps];
  const DeviceWarp warp;
  schedule::TileWork& work = works[threadIdx.x / schedule::kLanes];
  schedule::open_payloads(warp, at, work);
  for (std::size_t tile = warp_in_grid(); tile < schedule::tiles_of(at.expected.bins); tile += warps_in_grid()) {
    schedule::unpack_tile(warp, at, tile, work);
  }
}

}  // namespace

std::size_t unpack_work_bytes(std::size_t bins) {
  const std::size_t count = kMostUnpacked * schedule::tiles_of(bins) + 1;
  return Arena<Space::cuda>::padded_size(4 * count) + Arena<Space::cuda>::padded_size(scan_bytes<std::uint32_t>(count));
}

void unpack_spectra(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                    const law::FftHeader& expected, const law::RangeFormats& formats, const law::FftShape& shape,
                    float* spectrum, View<std::byte, Space::cuda> work) {
  static_assert(kMostUnpacked == schedule::kMostPayloads);
  expects(payloads.size() <= kMostUnpacked, "fft: too many payloads at once");
  const std::size_t tiles = schedule::tiles_of(expected.bins);
  schedule::Unpacking at{};
  for (const auto& payload : payloads) {
    expects(payload.size() >= sizeof(law::FftHeader) && aligned_to(payload.data(), alignof(law::FftHeader)),
            "fft: a payload needs a header, 8-byte aligned");
    at.payloads[at.count++] = {payload.data(), payload.size()};
  }
  at.expected = expected;
  at.formats = formats;
  at.chunk_bins = static_cast<std::uint32_t>(shape.bins_per_chunk());
  at.real_end = shape.length % 2 == 0;
  at.real_tail = shape.tail != 0 && shape.tail % 2 == 0;
  at.offsets = reinterpret_cast<std::uint32_t*>(work.data());
  at.spectrum = spectrum;
  const std::size_t count = at.count * tiles + 1;
  const std::size_t front = Arena<Space::cuda>::padded_size(4 * count);
  launch(queue, "fft marked", marked_kernel, blocks_for(count, kWarps), at);
  scan_tiles(queue, at.offsets, count, work.part(front, work.size() - front));
  launch(queue, "fft unpack", unpack_kernel, {blocks_for(tiles, kUnpackWarps), kUnpackWarps * schedule::kLanes}, at);
}

}  // namespace gradtool::cuda
