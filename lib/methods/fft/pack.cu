#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/radix_select.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/fft/gpu.hpp"

namespace gradtool::cuda {
namespace {

/// A spectrum that bins are selected from, and what the kernels below write about those that are kept.
struct BinSelection {
  const Pair* spectrum;
  std::size_t bins;
  std::uint32_t* bitmap;   ///< a bit for each bin
  Pair* kept;              ///< the kept bins in ascending order
  std::uint32_t* largest;  ///< largest magnitude of their components as a pattern without sign; 0 before the kernel
};

/// The larger magnitude of a bin's two components, as a binary32 pattern without sign.
__device__ std::uint32_t largest_component(const Pair& bin) {
  return max(format::bits_of(bin.re) & kMagnitude, format::bits_of(bin.im) & kMagnitude);
}

/// *largest := the maximum of itself and of `own` of all threads of the block, each of which calls this.
__device__ void raise_to_block_maximum(std::uint32_t own, std::uint32_t* largest) {
  __shared__ std::uint32_t block_largest;
  if (threadIdx.x == 0) block_largest = 0;
  __syncthreads();
  own = __reduce_max_sync(kAllLanes, own);
  if (lane_in_warp() == 0) atomicMax(&block_largest, own);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(largest, block_largest);
}

/// The largest component of a spectrum of which every bin is kept, so that nothing is selected.
__global__ void largest_kernel(const Pair* spectrum, std::size_t bins, std::uint32_t* largest) {
  std::uint32_t own = 0;
  for (std::size_t i = thread_in_grid(); i < bins; i += threads_in_grid())
    own = max(own, largest_component(spectrum[i]));
  raise_to_block_maximum(own, largest);
}

/// select=global, after the shared selection has chosen: every warp takes tiles of the selection, writes their words of
/// the bitmap and moves the kept bins to their places.
__global__ void keep_kernel(SelectChosen chosen, BinSelection selection) {
  constexpr std::uint32_t kTileWords = SelectTiles::kTile / 32;
  __shared__ std::uint32_t block_words[kBlockWarpCount][kTileWords];
  std::uint32_t* words = block_words[threadIdx.x / kWarpSize];
  const unsigned lane = lane_in_warp();
  const std::uint32_t threshold = chosen.state->threshold;
  const std::uint32_t ties = chosen.state->ties;
  std::uint32_t largest = 0;
  for (std::size_t tile = warp_in_grid(); tile < chosen.tiles.size; tile += warps_in_grid()) {
    const std::size_t first = tile * SelectTiles::kTile;
    for (std::uint32_t w = lane; w < kTileWords; w += kWarpSize) words[w] = 0;
    __syncwarp();
    each_chosen(chosen, tile, threshold, ties, [&](std::size_t to, std::uint32_t i, std::uint32_t) {
      const std::uint32_t place = chosen.tiles.places[first + i];
      const Pair bin = selection.spectrum[first + place];
      selection.kept[to] = bin;
      largest = max(largest, largest_component(bin));
      atomicOr(&words[place / 32], 1u << place % 32);
    });
    __syncwarp();
    for (std::uint32_t w = lane; w < kTileWords && first + 32 * w < selection.bins; w += kWarpSize)
      selection.bitmap[first / 32 + w] = words[w];
    __syncwarp();
  }
  raise_to_block_maximum(largest, selection.largest);
}

/// The power of the weakest bin that is kept, so far as a radix search knows it: its leading digits, and how many of
/// the bins that begin with these digits are kept.
struct PowerThreshold {
  std::uint32_t prefix, left;
};

/// Appends the digit of `Width` bits from bit `Shift` on to the threshold for bins [first, end).
template <std::uint32_t Shift, std::uint32_t Width>
__device__ void find_next_digit(const Pair* spectrum, std::size_t first, std::size_t end, std::uint32_t* counters,
                                PowerThreshold& threshold) {
  constexpr std::uint32_t kCounters = 1u << Width;
  clear_counters(counters, kCounters);
  const PowerThreshold known = threshold;
#pragma unroll 4
  for (std::size_t i = first + threadIdx.x; i < end; i += kThreads) {
    const std::uint32_t power = format::power_pattern(spectrum[i].re, spectrum[i].im);
    const std::uint32_t digit = power >> Shift & (kCounters - 1);
    // find_digit needs no count of the digit 0, which the many bins of a gradient of zeros would all add to.
    if (power >> Shift >> Width == known.prefix && digit != 0) atomicAdd(&counters[digit], 1u);
  }
  __syncthreads();
  find_digit<kCounters>(counters, known.left, [&](std::uint32_t digit, std::uint32_t left) {
    threshold = {known.prefix << Width | digit, left};
  });
  __syncthreads();
}

/// select=chunk: every block selects the strongest bins of one piece. Three passes over the piece find the power of the
/// weakest bin that is kept, digit by digit; the fourth one writes the kept bins in ascending order. The words of the
/// bitmap in which pieces meet belong to two blocks, so the bitmap is cleared before the kernel.
__global__ void keep_pieces_kernel(PieceShares shares, BinSelection selection) {
  __shared__ std::uint32_t counters[SelectState::kCounters];
  __shared__ PowerThreshold shared_threshold;
  const bool is_tail = blockIdx.x >= shares.shape.chunks;
  const std::size_t first = shares.shape.first_bin(blockIdx.x);
  const std::size_t end = first + (is_tail ? shares.shape.tail_bins() : shares.shape.bins_per_chunk());
  const std::size_t kept_before = std::size_t{blockIdx.x} * shares.of_chunk;
  const std::uint32_t wanted = is_tail ? shares.of_tail : shares.of_chunk;
  if (wanted == 0) return;
  if (threadIdx.x == 0) shared_threshold = {0, wanted};
  __syncthreads();
  find_next_digit<kTopShift, 31 - kTopShift>(selection.spectrum, first, end, counters, shared_threshold);
  find_next_digit<kNextShift, kTopShift - kNextShift>(selection.spectrum, first, end, counters, shared_threshold);
  find_next_digit<0, kNextShift>(selection.spectrum, first, end, counters, shared_threshold);
  const std::uint32_t threshold = shared_threshold.prefix;
  const std::uint32_t ties = shared_threshold.left;  // of the bins whose power equals the threshold, the first are kept

  std::uint32_t largest = 0;
  std::uint32_t above = 0;  // bins above the threshold in front of this round, and bins equal to it
  std::uint32_t equal = 0;
  for (std::size_t round = first / 32 * 32; round < end; round += kThreads) {  // a warp takes one word of the bitmap
    const std::size_t i = round + threadIdx.x;
    const bool inside = i >= first && i < end;
    const Pair bin = inside ? selection.spectrum[i] : Pair{0.0f, 0.0f};
    const std::uint32_t power = format::power_pattern(bin.re, bin.im);
    const bool is_above = inside && power > threshold;
    const bool is_equal = inside && power == threshold;
    // One sum counts both, as neither exceeds the threads of a block: the upper 16 bits count `above`.
    const std::uint32_t own = (is_above ? 1u << 16 : 0u) | (is_equal ? 1u : 0u);
    std::uint32_t total = 0;
    const std::uint32_t before = block_sum_through(own, total) - own;
    const std::uint32_t tie = equal + (before & 0xffffu);
    const bool is_kept = is_above || (is_equal && tie < ties);
    if (is_kept) {
      selection.kept[kept_before + above + (before >> 16) + min(tie, ties)] = bin;
      largest = max(largest, largest_component(bin));
    }
    const std::uint32_t word = __ballot_sync(kAllLanes, is_kept);
    if (lane_in_warp() == 0 && word != 0) atomicOr(selection.bitmap + i / 32, word);
    above += total >> 16;
    equal += total & 0xffffu;
  }
  raise_to_block_maximum(largest, selection.largest);
}

/// Writes the header and the codes of 2 * header.kept components. Every warp codes groups of 32 components, whose codes
/// fill header.bits words.
__global__ void codes_kernel(const float* values, format::FftHeader header,
                             const __grid_constant__ format::RangeFormats formats, float unit, bool to_peak,
                             const std::uint32_t* largest, const DeviceCalibrationState* calibrated,
                             std::byte* payload) {
  __shared__ std::uint32_t block_codes[kBlockWarpCount][format::kPackGroup];
  static_assert(format::kPackGroup == kWarpSize);
  const format::FftLayout layout{header.bins, header.kept, header.bits};
  const format::FftScaling scaling =
      calibrated != nullptr ? calibrated->step.scaling : format::FftScaling::of(*largest, unit, to_peak);
  const std::uint32_t mantissa = calibrated != nullptr ? calibrated->step.mantissa : header.mantissa;
  const format::RangeFloat format = formats.format[mantissa];
  if (thread_in_grid() == 0) {
    header.scale = scaling.scale;
    header.mantissa = static_cast<std::uint16_t>(mantissa);
    header.pbase = format.pbase;
    header.positives = format.positives;
    *reinterpret_cast<format::FftHeader*>(payload) = header;
  }
  __syncwarp();
  auto* words = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
  const std::size_t count = 2 * layout.kept;
  if (header.bits == 32) {
    for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid())
      words[i] = format::bits_of(format::times(values[i], scaling.factor));
    return;
  }
  std::uint32_t* codes = block_codes[threadIdx.x / kWarpSize];
  const unsigned lane = lane_in_warp();
  for (std::size_t group = warp_in_grid(); group * kWarpSize < count; group += warps_in_grid()) {
    const std::size_t i = group * kWarpSize + lane;
    codes[lane] = i < count ? format.encode(format::times(values[i], scaling.factor)) : 0u;
    __syncwarp();
    const std::size_t word = group * format.bits + lane;
    if (lane < format.bits && word < layout.code_words())
      words[word] = format::packed_word(codes, kWarpSize, format.bits, lane);
    __syncwarp();
  }
}

struct PackWorkspace {
  PackWorkspace(std::size_t bins, Scratch<Space::cuda> scratch)
      : largest{scratch.take<std::uint32_t>(1)}, selection{scratch.take_bytes(Select::scratch_bytes(bins))} {}
  View<std::uint32_t, Space::cuda> largest;  ///< BinSelection::largest
  View<std::byte, Space::cuda> selection;
};

}  // namespace

std::size_t pack_work_bytes(std::size_t bins) {
  return planned<PackWorkspace>(bins);
}

void pack_spectrum(Queue<Space::cuda> queue, const SpectrumPacking& packing, std::byte* payload) {
  const format::FftHeader& header = packing.header;
  const format::FftLayout layout{header.bins, header.kept, header.bits};
  expects(header.kept <= header.bins && header.bins > 0, "fft: more bins kept than there are");
  const PackWorkspace workspace{layout.bins, Scratch<Space::cuda>{packing.work}};
  std::uint32_t* largest = workspace.largest.data();
  const View<std::byte, Space::cuda> bitmap{payload + sizeof header, 4 * layout.bitmap_words()};
  const BinSelection selection{reinterpret_cast<const Pair*>(packing.spectrum), layout.bins,
                               reinterpret_cast<std::uint32_t*>(bitmap.data()), reinterpret_cast<Pair*>(packing.kept),
                               largest};
  fill(queue, as_writable_bytes(workspace.largest), 0);
  const float* values = packing.kept;
  if (!layout.has_bitmap()) {
    values = packing.spectrum;
    launch(queue, "fft largest", largest_kernel, blocks_for(layout.bins, 8 * kThreads, 1024), selection.spectrum,
           layout.bins, largest);
  } else if (layout.kept == 0) {
    fill(queue, bitmap, 0);
  } else if (packing.shares != nullptr) {
    fill(queue, bitmap, 0);
    launch(queue, "fft keep pieces", keep_pieces_kernel, static_cast<unsigned>(packing.shares->shape.pieces()),
           *packing.shares, selection);
  } else {
    const Select select{queue, SelectSource{packing.spectrum, layout.bins, true}, workspace.selection};
    select.largest(layout.kept);
    const SelectChosen chosen = select.chosen();
    launch(queue, "fft keep", keep_kernel, blocks_for(chosen.tiles.size, kBlockWarpCount), chosen, selection);
  }
  const std::size_t count = 2 * layout.kept;
  if (packing.calibration != nullptr)
    calibrate(queue, *packing.calibration, packing.formats, values, count, largest, packing.unit);
  launch(queue, "fft codes", codes_kernel, blocks_for(count, kThreads), values, header, packing.formats, packing.unit,
         packing.to_peak, largest, packing.calibration == nullptr ? nullptr : packing.calibration->device, payload);
}

}  // namespace gradtool::cuda
