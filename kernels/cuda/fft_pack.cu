#include "kernels/cuda/fft_pack.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/fft_largest.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/schedule/fft_codes.hpp"

namespace gradtool::cuda {
namespace {

/// Where things lie in the work memory.
struct Room {
  Room(View<std::byte, Space::cuda> work, std::size_t bins) {
    ScratchPieces pieces{work};
    pieces.take(largest, 1);
    select = pieces.take(keep_work_bytes(bins));
    bytes = pieces.bytes();
  }
  std::uint32_t* largest;  ///< pattern without sign among the kept components
  View<std::byte, Space::cuda> select;
  std::size_t bytes;
};

/// For payloads that keep every bin and so need no selection. `count` floats.
__global__ void largest_kernel(const float* values, std::size_t count, std::uint32_t* largest) {
  std::uint32_t most = 0;
  for (std::size_t i = thread_in_grid(); i < count / 2; i += threads_in_grid())
    most = max(most, largest_of(reinterpret_cast<const schedule::Pair*>(values)[i]));
  block_largest(most, largest);
}

/// Header and codes. `values` are 2 * header.kept components, 16-byte aligned.
__global__ void codes_kernel(const float* values, law::FftHeader header,
                             const __grid_constant__ law::RangeFormats formats, float unit, bool scaled,
                             const std::uint32_t* largest, const CalibrationState* calibrated, std::byte* payload) {
  __shared__ std::uint32_t room[kBlockWarpCount][schedule::kCodeRoom];
  const DeviceWarp warp;
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  const bool quantised = header.bits != 32;
  const schedule::Scaling scaling = calibrated != nullptr ? schedule::Scaling{calibrated->factor, calibrated->scale}
                                                          : schedule::scaling_of(*largest, unit, quantised, scaled);
  const std::uint32_t mantissa = calibrated != nullptr ? calibrated->coded_with : header.mantissa;
  const law::RangeFloat format = formats.format[mantissa];
  if (thread_in_grid() == 0) {
    header.scale = scaling.scale;
    header.mantissa = static_cast<std::uint16_t>(mantissa);
    header.pbase = format.pbase;
    header.positives = format.positives;
    *reinterpret_cast<law::FftHeader*>(payload) = header;
  }
  __syncwarp();
  auto* words = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
  const std::size_t count = 2 * layout.kept;
  if (!quantised) {
    for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
      words[i] = law::bits_of(law::times(values[i], scaling.factor));
    }
    return;
  }
  for (std::size_t first = warp_in_grid() * schedule::kCodeWindow; first < count;
       first += warps_in_grid() * schedule::kCodeWindow) {
    schedule::quantise_window(warp, values, first, count, scaling.factor, format, room[threadIdx.x / schedule::kLanes],
                              words);
  }
}

}  // namespace

std::size_t pack_work_bytes(std::size_t bins) {
  return Room{{}, bins}.bytes;
}

void pack_spectrum(Queue<Space::cuda> queue, const PackMemory& memory, const law::FftHeader& header,
                   const law::RangeFormats& formats, float unit, bool scaled, const PieceShares* shares,
                   const Calibration* calibration, std::byte* payload) {
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  expects(header.kept <= header.bins && header.bins > 0, "fft: more bins kept than there are");
  const Room room{memory.work, layout.bins};
  std::uint32_t* largest = room.largest;
  auto* bitmap = reinterpret_cast<std::uint32_t*>(payload + sizeof header);
  fill(queue, memory.work.first(sizeof *largest), 0);
  const float* values = memory.kept;
  const BinSelection of{memory.spectrum, layout.bins, bitmap, memory.kept, largest};
  if (!layout.has_bitmap()) {
    values = memory.spectrum;
    launch(queue, "fft largest", largest_kernel, blocks_for(layout.bins, 8 * kThreads, 1024), values, 2 * layout.bins,
           largest);
  } else if (layout.kept == 0) {
    fill(queue, {payload + sizeof header, 4 * layout.bitmap_words()}, 0);
  } else if (shares != nullptr) {
    keep_strongest_of_pieces(queue, of, *shares);
  } else {
    keep_strongest(queue, of, layout.kept, room.select);
  }
  if (calibration != nullptr) calibrate(queue, *calibration, formats, values, 2 * layout.kept, largest, unit);
  launch(queue, "fft codes", codes_kernel, blocks_for(2 * layout.kept, kBlockWarpCount * schedule::kCodeWindow), values,
         header, formats, unit, scaled, largest, calibration == nullptr ? nullptr : calibration->state, payload);
}

}  // namespace gradtool::cuda
