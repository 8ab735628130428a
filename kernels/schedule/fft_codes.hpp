#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/fft_payload.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/law/range_float.hpp"
#include "kernels/schedule/fft_select.hpp"
#include "kernels/schedule/warp.hpp"

/// The codes of an fft payload by warps, there and back; the bytes and sums are those of kernels/host/fft_pack.cpp.
namespace gradtool::schedule {

inline constexpr std::uint32_t kCodeWindow = 128;  ///< values that a warp quantises at a time

/// What turns an unnormalised component into the number that is coded, and back.
struct Scaling {
  float factor;  ///< component times this is coded
  float scale;   ///< what the header says
};
GT_HD inline Scaling scaling_of(std::uint32_t largest, float unit, bool quantised, bool scaled) {
  const bool finite = largest < 0x7f800000u;
  if (!quantised || !scaled || !finite) return {unit, finite ? 1.0f : law::float_of(0x7fc00000u)};
  const float peak = law::float_of(largest);
  if (peak < law::kSmallestScale) return {0.0f, 0.0f};
  return {1.0f / peak, peak * unit};
}

/// Codes of values[first .. first + 128), or up to `count`, into their words. `codes` is room for a window, shared by
/// the lanes. For a RangeFloat, not for plain float32.
template <class Warp>
GT_SCHEDULE void quantise_window(const Warp& warp, const float* values, std::size_t first, std::size_t count,
                                 float factor, const law::RangeFloat& format, std::uint32_t* codes,
                                 std::uint32_t* words) {
  constexpr auto kGroup = static_cast<std::uint32_t>(law::kPackGroup);
  const auto here = static_cast<std::uint32_t>(count - first < kCodeWindow ? count - first : kCodeWindow);
  warp.each([&](std::uint32_t lane) {
    for (std::uint32_t i = lane; i < here; i += kLanes) codes[i] = format.encode(law::times(values[first + i], factor));
  });
  warp.each([&](std::uint32_t lane) {
    const auto out = static_cast<std::uint32_t>(law::packed_words(here, format.bits));
    for (std::uint32_t w = lane; w < out; w += kLanes) {
      const std::uint32_t group = w / format.bits * kGroup;
      const std::uint32_t in_group = here - group < kGroup ? here - group : kGroup;
      words[first / kGroup * format.bits + w] = law::packed_word(codes + group, in_group, format.bits, w % format.bits);
    }
  });
}

/// A payload as it came: nothing in it is trusted. 8-byte aligned, at least a header long.
struct PayloadRef {
  const std::byte* data;
  std::uint64_t bytes;  ///< of the view; the payload may end before it does
};
inline constexpr std::uint32_t kMostPayloads = 16;  ///< that are added into one spectrum at a time

/// Adding payloads into one spectrum; arrays whole, the spectrum as pairs.
struct Unpacking {
  PayloadRef payloads[kMostPayloads];
  std::uint32_t count;        ///< payloads
  law::FftHeader expected;    ///< bits and bins that a payload must have
  law::RangeFormats formats;  ///< one of which it must have; all zero when bits is 32
  std::uint32_t chunk_bins;   ///< bins of a chunk
  bool real_end;              ///< the last bin of a chunk is real too, as the first one always is
  bool real_tail;             ///< there is a tail, and its last bin is real
  std::uint32_t* offsets;     ///< count * tiles + 1: marked bins in a tile, then (summed) in front of it
  float* spectrum;
};

/// True when the header is what it must be and every section it implies lies inside the payload.
GT_SCHEDULE inline bool fits(const PayloadRef& payload, const Unpacking& at) {
  const law::FftHeader& is = *reinterpret_cast<const law::FftHeader*>(payload.data);
  if (!at.formats.has(is.mantissa)) return false;
  const law::RangeFloat& format = at.formats.format[is.mantissa];
  return is.bits == at.expected.bits && is.pbase == format.pbase && is.positives == format.positives &&
         is.bins == at.expected.bins && is.kept <= is.bins && is.bytes <= payload.bytes &&
         law::FftLayout{is.bins, is.kept, is.bits}.bytes() == is.bytes;
}

/// Word `w` of the status of a payload that fits; where all bins are kept there is none, and every bin is marked.
GT_SCHEDULE inline std::uint32_t status_word(const PayloadRef& payload, std::size_t w) {
  const law::FftHeader& is = *reinterpret_cast<const law::FftHeader*>(payload.data);
  if (is.kept != is.bins) return reinterpret_cast<const std::uint32_t*>(payload.data + sizeof(law::FftHeader))[w];
  return is.bins - 32 * w >= 32 ? 0xffffffffu : (1u << (is.bins - 32 * w)) - 1u;
}

/// Marked bins of one tile of a payload, into its place in `offsets`; 0 for a payload that does not fit.
template <class Warp>
GT_SCHEDULE void count_marked(const Warp& warp, const Unpacking& at, std::uint32_t p, std::size_t tile) {
  const std::size_t words = (std::size_t{at.expected.bins} + 31) / 32;
  typename Warp::template Own<std::uint32_t> marked;
  const bool good = fits(at.payloads[p], at);
  warp.each([&](std::uint32_t lane) {
    const std::size_t w = tile * kTileWords + lane;
    marked[lane] = good && w < words ? bits_set(status_word(at.payloads[p], w)) : 0u;
  });
  const std::uint32_t sum = warp.sum(marked);
  warp.each([&](std::uint32_t lane) {
    if (lane == 0) at.offsets[p * tiles_of(at.expected.bins) + tile] = sum;
  });
}

/// What the lanes of a warp share while they unpack a tile.
struct TileWork {
  const std::uint32_t* codes[kMostPayloads];
  std::size_t code_words[kMostPayloads];
  float scale[kMostPayloads];
  std::uint32_t mantissa[kMostPayloads];
  std::uint32_t good[kMostPayloads];
  std::uint32_t status[kMostPayloads][kTileWords];
  std::uint32_t before[kMostPayloads][kTileWords];  ///< marked bins of the payload in front of the word
};

/// Lane by lane the payloads' headers; a payload that says of itself what cannot be is marked as not good.
template <class Warp>
GT_SCHEDULE void open_payloads(const Warp& warp, const Unpacking& at, TileWork& work) {
  warp.each([&](std::uint32_t p) {
    if (p >= at.count) return;
    work.good[p] = 0;
    const PayloadRef& payload = at.payloads[p];
    if (!fits(payload, at)) return;
    const law::FftHeader& is = *reinterpret_cast<const law::FftHeader*>(payload.data);
    const law::FftLayout layout{is.bins, is.kept, is.bits};
    const std::size_t tiles = tiles_of(is.bins);
    const std::uint32_t marked = at.offsets[(p + 1) * tiles] - at.offsets[p * tiles];
    const bool beyond =
        layout.has_bitmap() && is.bins % 32 != 0 && status_word(payload, is.bins / 32) >> is.bins % 32 != 0;
    if (marked != is.kept || beyond) return;
    work.codes[p] = reinterpret_cast<const std::uint32_t*>(payload.data + layout.codes_offset());
    work.code_words[p] = layout.code_words();
    work.scale[p] = is.scale;
    work.mantissa[p] = is.mantissa;
    work.good[p] = 1;
  });
}

/// Sums a tile of all payloads, in their order, and writes it to the spectrum. A payload that this codec cannot have
/// written makes its bins NaN: the result shows it, and nothing outside of the payload is read.
template <class Warp>
GT_SCHEDULE void unpack_tile(const Warp& warp, const Unpacking& at, std::size_t tile, TileWork& work) {
  const std::size_t bins = at.expected.bins;
  const std::size_t words = (bins + 31) / 32;
  const std::size_t first = tile * kTileBins;
  for (std::uint32_t p = 0; p < at.count; ++p) {
    typename Warp::template Own<std::uint32_t> marked;
    warp.each([&](std::uint32_t lane) {
      const std::size_t w = tile * kTileWords + lane;
      const std::uint32_t status = work.good[p] != 0 && w < words ? status_word(at.payloads[p], w) : 0u;
      work.status[p][lane] = status;
      marked[lane] = bits_set(status);
    });
    const auto below = warp.sum_before(marked);
    const std::size_t row = p * tiles_of(bins);
    const std::uint32_t in_front = at.offsets[row + tile] - at.offsets[row];
    warp.each([&](std::uint32_t lane) { work.before[p][lane] = in_front + below[lane]; });
  }
  warp.each([&](std::uint32_t lane) {
    for (std::uint32_t word = 0; word < kTileWords && first + 32 * word + lane < bins; ++word) {
      const std::size_t bin = first + 32 * word + lane;
      Pair sum{0.0f, 0.0f};
      for (std::uint32_t p = 0; p < at.count; ++p) {
        if (work.good[p] == 0) {
          sum.re = sum.im = law::float_of(0x7fc00000u);
        } else if ((work.status[p][word] >> lane & 1u) != 0) {
          const std::uint32_t rank = work.before[p][word] + bits_set(work.status[p][word] & lanes_below(lane));
          const auto value = [&](std::size_t code) {
            const std::uint32_t bits = at.expected.bits;
            const std::uint32_t pattern = law::unpacked(work.codes[p], work.code_words[p], bits, code);
            return work.scale[p] *
                   (bits == 32 ? law::float_of(pattern) : at.formats.format[work.mantissa[p]].decode(pattern));
          };
          sum.re += value(2 * std::size_t{rank});
          sum.im += value(2 * std::size_t{rank} + 1);
        }
      }
      const auto in_chunk = static_cast<std::uint32_t>(bin) % at.chunk_bins;
      const bool last = at.real_end && in_chunk + 1 == at.chunk_bins;
      if (in_chunk == 0 || last || (at.real_tail && bin + 1 == bins)) sum.im = 0.0f;
      reinterpret_cast<Pair*>(at.spectrum)[bin] = sum;
    }
  });
}

}  // namespace gradtool::schedule
