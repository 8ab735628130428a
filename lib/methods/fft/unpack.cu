#include <cuda_runtime.h>

#include "kernels/bitpack.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/fft/gpu.hpp"

namespace gradtool::cuda {
namespace {

/// A warp sums the bins of one tile, which has 8 words of the bitmap.
constexpr std::uint32_t kTileWords = 8;
constexpr std::uint32_t kTileBins = 32 * kTileWords;

GT_HD constexpr std::size_t tiles_of(std::size_t bins) {
  return (bins + kTileBins - 1) / kTileBins;
}

/// A payload as it came, of which nothing is trusted. 8-byte aligned, at least a header long.
struct RawPayload {
  const std::byte* data;
  std::uint64_t bytes;  ///< of the view; the payload may end before it does
};

/// The contents of a payload.
struct OpenedPayload {
  const std::uint32_t* bitmap;  ///< null where all bins are kept
  const std::uint32_t* codes;
  std::uint64_t code_words;
  float scale;
  std::uint32_t mantissa;
  bool valid;  ///< false: the payload is refused, and nothing else here is set
};

/// The arguments of the kernels.
struct Unpacking {
  RawPayload payloads[kMostUnpacked];
  std::uint32_t count;           ///< payloads
  format::FftHeader expected;    ///< PackedSpectra::expected
  format::RangeFormats formats;  ///< PackedSpectra::formats
  std::uint32_t chunk_bins;
  bool even_chunk;         ///< the last bin of a chunk is real, as the first one of a piece always is
  bool even_tail;          ///< there is a tail, and its last bin is real
  std::uint32_t* offsets;  ///< for each tile of each payload the kept bins in it, then, summed, those in front of it
  OpenedPayload* opened;
  std::size_t first, last;  ///< bins [first, last) are summed
  Pair* spectrum;           ///< their sums
};

const __device__ format::FftHeader& header_of(const RawPayload& payload) {
  return *reinterpret_cast<const format::FftHeader*>(payload.data);
}

/// Whether the header is what it must be and every section that it implies lies inside the payload.
__device__ bool header_fits(const RawPayload& payload, const Unpacking& unpacking) {
  const format::FftHeader& header = header_of(payload);
  if (!unpacking.formats.has(header.mantissa)) return false;
  const format::RangeFloat& format = unpacking.formats.format[header.mantissa];
  return header.bits == unpacking.expected.bits && header.pbase == format.pbase &&
         header.positives == format.positives && header.bins == unpacking.expected.bins && header.kept <= header.bins &&
         header.bytes <= payload.bytes &&
         format::FftLayout{header.bins, header.kept, header.bits}.bytes() == header.bytes;
}

/// The bitmap of a payload whose header fits; null where all bins are kept, because then there is none.
const __device__ std::uint32_t* bitmap_of(const RawPayload& payload) {
  const format::FftHeader& header = header_of(payload);
  return header.kept == header.bins ? nullptr
                                    : reinterpret_cast<const std::uint32_t*>(payload.data + sizeof(format::FftHeader));
}

/// Word `w` of the bitmap of `bins` bins; all ones as far as there are bins where there is no bitmap, and 0 behind the
/// last word.
__device__ std::uint32_t bitmap_word(const std::uint32_t* bitmap, std::size_t bins, std::size_t w) {
  if (32 * w >= bins) return 0u;
  if (bitmap != nullptr) return bitmap[w];
  return bins - 32 * w >= 32 ? 0xffffffffu : (1u << (bins - 32 * w)) - 1u;
}

/// Counts the kept bins of every tile of every payload, none for a payload whose header does not fit. One more number
/// closes the row for the sums.
__global__ void count_kept_kernel(const __grid_constant__ Unpacking unpacking) {
  const std::size_t tiles = tiles_of(unpacking.expected.bins);
  const std::size_t all = unpacking.count * tiles;
  for (std::size_t i = thread_in_grid(); i < all; i += threads_in_grid()) {
    const RawPayload& payload = unpacking.payloads[i / tiles];
    std::uint32_t kept = 0;
    if (header_fits(payload, unpacking)) {
      const std::uint32_t* bitmap = bitmap_of(payload);
      for (std::uint32_t w = 0; w < kTileWords; ++w)
        kept += bits_set(bitmap_word(bitmap, unpacking.expected.bins, i % tiles * kTileWords + w));
    }
    unpacking.offsets[i] = kept;
  }
  if (thread_in_grid() == 0) unpacking.offsets[all] = 0;
}

/// One warp, in which each thread opens one payload. It is refused where its header does not fit, where its bitmap
/// marks another number of bins than the header says, or where it marks bins behind the last one.
__global__ void open_kernel(const __grid_constant__ Unpacking unpacking) {
  const std::uint32_t p = threadIdx.x;
  if (p >= unpacking.count) return;
  OpenedPayload& opened = unpacking.opened[p];
  opened.valid = false;
  const RawPayload& payload = unpacking.payloads[p];
  if (!header_fits(payload, unpacking)) return;
  const format::FftHeader& header = header_of(payload);
  const format::FftLayout layout{header.bins, header.kept, header.bits};
  const std::size_t tiles = tiles_of(header.bins);
  const std::uint32_t marked = unpacking.offsets[(p + 1) * tiles] - unpacking.offsets[p * tiles];
  const std::uint32_t* bitmap = bitmap_of(payload);
  const bool marks_behind =
      bitmap != nullptr && header.bins % 32 != 0 && bitmap[header.bins / 32] >> header.bins % 32 != 0;
  if (marked != header.kept || marks_behind) return;
  opened = {bitmap,
            reinterpret_cast<const std::uint32_t*>(payload.data + layout.codes_offset()),
            layout.code_words(),
            header.scale,
            header.mantissa,
            true};
}

/// The (re, im) pair of the kept bin number `rank` of a payload.
__device__ Pair decode_bin(const OpenedPayload& payload, std::uint32_t bits, const format::RangeFloat& format,
                           std::size_t rank) {
  if (bits == 32) {
    return {payload.scale * format::float_of(format::unpacked(payload.codes, payload.code_words, 32, 2 * rank)),
            payload.scale * format::float_of(format::unpacked(payload.codes, payload.code_words, 32, 2 * rank + 1))};
  }
  // Both codes together are one code of twice the bits.
  const std::uint32_t both = format::unpacked(payload.codes, payload.code_words, 2 * bits, rank);
  return {payload.scale * format.decode(both & ((1u << bits) - 1u)), payload.scale * format.decode(both >> bits)};
}

/// Adds the bins of a tile of one payload to the sums of a warp, whose lane l has bin l of each word. `kept_bins` is
/// shared memory of the warp for kTileBins pairs: the few kept bins are decoded side by side before lanes pick theirs.
__device__ void add_tile(const Unpacking& unpacking, std::uint32_t p, std::size_t tile, Pair* kept_bins,
                         Pair (&sum)[kTileWords]) {
  const OpenedPayload payload = unpacking.opened[p];
  if (!payload.valid) {
    const float nan = format::float_of(0x7fc00000u);
    for (Pair& bin : sum) bin = {nan, nan};
    return;
  }
  const unsigned lane = lane_in_warp();
  const std::size_t bins = unpacking.expected.bins;
  const std::uint32_t* offsets = unpacking.offsets + p * tiles_of(bins);
  const std::size_t first_kept = offsets[tile] - offsets[0];
  const std::uint32_t kept = offsets[tile + 1] - offsets[tile];
  const format::RangeFloat format = unpacking.formats.format[payload.mantissa];
  for (std::uint32_t i = lane; i < kept; i += kWarpSize)
    kept_bins[i] = decode_bin(payload, unpacking.expected.bits, format, first_kept + i);
  __syncwarp();
  std::uint32_t before = 0;  // kept bins in the words in front
#pragma unroll
  for (std::uint32_t w = 0; w < kTileWords; ++w) {
    const std::uint32_t marked = bitmap_word(payload.bitmap, bins, tile * kTileWords + w);
    if ((marked >> lane & 1u) != 0) {
      const Pair bin = kept_bins[before + bits_set(marked & lanes_below(lane))];
      sum[w].re += bin.re;
      sum[w].im += bin.im;
    }
    before += bits_set(marked);
  }
  __syncwarp();
}

/// Every warp sums tiles over all payloads, in their order, and writes the bins that are wanted.
__global__ void unpack_kernel(const __grid_constant__ Unpacking unpacking) {
  __shared__ Pair block_bins[kBlockWarpCount][kTileBins];
  const std::size_t end = tiles_of(unpacking.last);
  for (std::size_t tile = unpacking.first / kTileBins + warp_in_grid(); tile < end; tile += warps_in_grid()) {
    Pair sum[kTileWords] = {};
    for (std::uint32_t p = 0; p < unpacking.count; ++p)
      add_tile(unpacking, p, tile, block_bins[threadIdx.x / kWarpSize], sum);
#pragma unroll
    for (std::uint32_t w = 0; w < kTileWords; ++w) {
      const std::size_t bin = tile * kTileBins + 32 * w + lane_in_warp();
      if (bin < unpacking.first || bin >= unpacking.last) continue;
      const std::uint32_t in_piece = static_cast<std::uint32_t>(bin) % unpacking.chunk_bins;
      const bool is_real = in_piece == 0 || (unpacking.even_chunk && in_piece + 1 == unpacking.chunk_bins) ||
                           (unpacking.even_tail && bin + 1 == unpacking.expected.bins);
      unpacking.spectrum[bin - unpacking.first] = {sum[w].re, is_real ? 0.0f : sum[w].im};
    }
  }
}

struct UnpackWorkspace {
  UnpackWorkspace(std::size_t payloads, std::size_t bins, Scratch<Space::cuda> scratch)
      : opened{scratch.take<OpenedPayload>(kMostUnpacked)},
        offsets{scratch.take<std::uint32_t>(payloads * tiles_of(bins) + 1)},
        scan{scratch.take_bytes(scan_bytes<std::uint32_t>(offsets.size()))} {}
  View<OpenedPayload, Space::cuda> opened;
  View<std::uint32_t, Space::cuda> offsets;  ///< Unpacking::offsets
  View<std::byte, Space::cuda> scan;
};

UnpackWorkspace workspace_of(const PackedSpectra& spectra) {
  return {spectra.payloads.size(), spectra.expected.bins, Scratch<Space::cuda>{spectra.work}};
}

Unpacking unpacking_of(const PackedSpectra& spectra) {
  expects(spectra.payloads.size() <= kMostUnpacked, "fft: too many payloads at once");
  Unpacking unpacking{};
  for (const auto& payload : spectra.payloads) {
    expects(payload.size() >= sizeof(format::FftHeader) && aligned_to(payload.data(), alignof(format::FftHeader)),
            "fft: a payload needs a header, 8-byte aligned");
    unpacking.payloads[unpacking.count++] = {payload.data(), payload.size()};
  }
  unpacking.expected = spectra.expected;
  unpacking.formats = spectra.formats;
  unpacking.chunk_bins = static_cast<std::uint32_t>(spectra.shape.bins_per_chunk());
  unpacking.even_chunk = spectra.shape.length % 2 == 0;
  unpacking.even_tail = spectra.shape.tail != 0 && spectra.shape.tail % 2 == 0;
  const UnpackWorkspace workspace = workspace_of(spectra);
  unpacking.opened = workspace.opened.data();
  unpacking.offsets = workspace.offsets.data();
  return unpacking;
}

}  // namespace

std::size_t unpack_work_bytes(std::size_t bins) {
  return planned<UnpackWorkspace>(kMostUnpacked, bins);
}

void open_spectra(Queue<Space::cuda> queue, const PackedSpectra& spectra) {
  const Unpacking unpacking = unpacking_of(spectra);
  const UnpackWorkspace workspace = workspace_of(spectra);
  launch(queue, "fft count kept", count_kept_kernel, blocks_for(workspace.offsets.size(), kThreads), unpacking);
  scan_tiles(queue, workspace.offsets.data(), workspace.offsets.size(), workspace.scan);
  launch(queue, "fft open", open_kernel, {1, kWarpSize}, unpacking);
}

void unpack_spectra(Queue<Space::cuda> queue, const PackedSpectra& spectra, std::size_t first, std::size_t count,
                    float* spectrum) {
  Unpacking unpacking = unpacking_of(spectra);
  unpacking.first = first;
  unpacking.last = first + count;
  unpacking.spectrum = reinterpret_cast<Pair*>(spectrum);
  launch(queue, "fft unpack", unpack_kernel, blocks_for(tiles_of(count) + 1, kBlockWarpCount), unpacking);
}

}  // namespace gradtool::cuda
