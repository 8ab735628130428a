#include "kernels/cuda/fft_pack.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/schedule/fft_codes.hpp"
#include "kernels/schedule/fft_select.hpp"

// Keys and histograms have no schedule of their own: they are loops over elements, and counts do not depend on their
// order. Their oracle is kernels/host/select.hpp.
namespace gradtool::cuda {
namespace {

using schedule::Digits;

constexpr unsigned kWarps = kThreads / schedule::kLanes;

/// What selection finds out on the device, at the front of the work memory; cleared before use.
struct Selection {
  Digits cut;
  std::uint32_t largest;  ///< pattern without sign among the kept components
  std::uint32_t unused;
  std::uint32_t histogram[schedule::kDigits][schedule::kCounters];
};
constexpr std::size_t kSelectionBytes = (sizeof(Selection) + 255) / 256 * 256;

/// Counts one digit of all keys. The first digit finds the keys as well: they are read from `spectrum` then.
template <std::uint32_t Digit>
__global__ void histogram_kernel(const float* spectrum, std::uint32_t* keys, std::size_t bins, Selection* selection) {
  __shared__ std::uint32_t counters[schedule::kCounters];
  for (std::uint32_t i = threadIdx.x; i < schedule::kCounters; i += blockDim.x) counters[i] = 0;
  __syncthreads();
  const std::uint32_t prefix = selection->cut.prefix;
  for (std::size_t i = thread_in_grid(); i < bins; i += threads_in_grid()) {
    std::uint32_t key;
    if constexpr (Digit == 0) {
      const auto pair = reinterpret_cast<const schedule::Pair*>(spectrum)[i];
      key = schedule::fft_key(pair.re, pair.im);
      keys[i] = key;
    } else {
      key = keys[i];
    }
    if (schedule::has_prefix(key, Digit, prefix)) atomicAdd(&counters[schedule::digit_of(key, Digit)], 1u);
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < schedule::kCounters; i += blockDim.x) {
    if (counters[i] != 0) atomicAdd(&selection->histogram[Digit][i], counters[i]);
  }
}

/// One warp.
__global__ void digit_kernel(Selection* selection, std::uint32_t digit, std::uint32_t kept) {
  const DeviceWarp warp;
  const Digits before = digit == 0 ? Digits{0, kept} : selection->cut;
  schedule::find_digit(warp, selection->histogram[digit], digit, before, &selection->cut);
}

__global__ void count_kernel(const std::uint32_t* keys, std::size_t bins, const Selection* selection,
                             std::uint64_t* counts) {
  const DeviceWarp warp;
  for (std::size_t tile = warp_in_grid(); tile < schedule::select_tiles_of(bins); tile += warps_in_grid()) {
    const std::uint64_t count = schedule::count_tile(warp, keys, bins, tile, selection->cut.prefix);
    warp.each([&](std::uint32_t lane) {
      if (lane == 0) counts[tile] = count;
    });
  }
}

__global__ void compact_kernel(schedule::Compaction at, Selection* selection, const std::uint64_t* before) {
  const DeviceWarp warp;
  at.cut = selection->cut;
  for (std::size_t tile = warp_in_grid(); tile < schedule::select_tiles_of(at.bins); tile += warps_in_grid()) {
    const std::uint32_t largest = schedule::compact_tile(warp, at, tile, before[tile]);
    warp.each([&](std::uint32_t lane) {
      if (lane == 0) atomicMax(&selection->largest, largest);
    });
  }
}

/// For payloads that keep every bin and so need no selection. `count` floats.
__global__ void largest_kernel(const float* values, std::size_t count, Selection* selection) {
  const DeviceWarp warp;
  DeviceWarp::Own<std::uint32_t> largest;
  warp.each([&](std::uint32_t lane) {
    std::uint32_t most = 0;
    for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
      const std::uint32_t pattern = law::bits_of(values[i]) & 0x7fffffffu;
      most = pattern > most ? pattern : most;
    }
    largest[lane] = most;
  });
  const std::uint32_t most = warp.max(largest);
  warp.each([&](std::uint32_t lane) {
    if (lane == 0) atomicMax(&selection->largest, most);
  });
}

/// Header and codes. `values` are 2 * header.kept components.
__global__ void codes_kernel(const float* values, law::FftHeader header,
                             const __grid_constant__ law::RangeFormats formats, float unit, bool scaled,
                             const Selection* selection, const CalibrationState* calibrated, std::byte* payload) {
  __shared__ std::uint32_t codes[kWarps][schedule::kCodeWindow];
  const DeviceWarp warp;
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  const bool quantised = header.bits != 32;
  const schedule::Scaling scaling = calibrated != nullptr
                                        ? schedule::Scaling{calibrated->factor, calibrated->scale}
                                        : schedule::scaling_of(selection->largest, unit, quantised, scaled);
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
    schedule::quantise_window(warp, values, first, count, scaling.factor, format, codes[threadIdx.x / schedule::kLanes],
                              words);
  }
}

template <std::uint32_t Digit>
void take_digit(Queue<Space::cuda> queue, const PackMemory& memory, const law::FftHeader& header,
                Selection* selection) {
  // Every block clears and flushes a histogram, so blocks are few and each reads a lot.
  const unsigned blocks = blocks_for(header.bins, 16 * kThreads, 1024);
  launch(queue, "fft histogram", histogram_kernel<Digit>, blocks, memory.spectrum, memory.keys, header.bins, selection);
  launch(queue, "fft digit", digit_kernel, {1, schedule::kLanes}, selection, Digit, header.kept);
}

void select(Queue<Space::cuda> queue, const PackMemory& memory, const law::FftHeader& header, Selection* selection,
            std::uint32_t* bitmap) {
  take_digit<0>(queue, memory, header, selection);
  take_digit<1>(queue, memory, header, selection);
  take_digit<2>(queue, memory, header, selection);
  const std::size_t tiles = schedule::select_tiles_of(header.bins);
  auto* counts = reinterpret_cast<std::uint64_t*>(memory.work.data() + kSelectionBytes);
  const std::size_t front = kSelectionBytes + Arena<Space::cuda>::padded_size(8 * tiles);
  const unsigned blocks = blocks_for(tiles, kWarps);
  launch(queue, "fft count", count_kernel, blocks, memory.keys, header.bins, selection, counts);
  scan_tiles(queue, counts, tiles, memory.work.part(front, memory.work.size() - front));
  const schedule::Compaction at{memory.keys, memory.spectrum, header.bins, {}, bitmap, memory.kept};
  launch(queue, "fft compact", compact_kernel, blocks, at, selection, counts);
}

}  // namespace

std::size_t pack_work_bytes(std::size_t bins) {
  const std::size_t tiles = schedule::select_tiles_of(bins);
  return kSelectionBytes + Arena<Space::cuda>::padded_size(8 * tiles) +
         Arena<Space::cuda>::padded_size(scan_bytes<std::uint64_t>(tiles));
}

void pack_spectrum(Queue<Space::cuda> queue, const PackMemory& memory, const law::FftHeader& header,
                   const law::RangeFormats& formats, float unit, bool scaled, const PieceShares* shares,
                   const Calibration* calibration, std::byte* payload) {
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  expects(header.kept <= header.bins && header.bins > 0, "fft: more bins kept than there are");
  auto* selection = reinterpret_cast<Selection*>(memory.work.data());
  fill(queue, memory.work.first(sizeof(Selection)), 0);
  const float* values = memory.kept;
  if (!layout.has_bitmap()) {
    values = memory.spectrum;
    launch(queue, "fft largest", largest_kernel, blocks_for(2 * layout.bins, 8 * kThreads, 1024), values,
           2 * layout.bins, selection);
  } else if (layout.kept == 0) {
    fill(queue, {payload + sizeof header, 4 * layout.bitmap_words()}, 0);
  } else if (auto* bitmap = reinterpret_cast<std::uint32_t*>(payload + sizeof header); shares != nullptr) {
    select_pieces(queue, *shares, memory.spectrum, memory.keys, bitmap, memory.kept, &selection->largest);
  } else {
    select(queue, memory, header, selection, bitmap);
  }
  if (calibration != nullptr)
    calibrate(queue, *calibration, formats, values, 2 * layout.kept, &selection->largest, unit);
  launch(queue, "fft codes", codes_kernel, blocks_for(2 * layout.kept, kWarps * schedule::kCodeWindow), values, header,
         formats, unit, scaled, selection, calibration == nullptr ? nullptr : calibration->state, payload);
}

}  // namespace gradtool::cuda
