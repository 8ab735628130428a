#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/fft_payload.hpp"
#include "kernels/law/range_float.hpp"
#include "kernels/schedule/warp.hpp"

/// fft payloads as they came, by warps: whether they are any, and how many bins they mark where. What is refused is
/// what kernels/host/fft_pack.cpp refuses.
namespace gradtool::schedule {

/// A payload as it came: nothing in it is trusted. 8-byte aligned, at least a header long.
struct PayloadRef {
  const std::byte* data;
  std::uint64_t bytes;  ///< of the view; the payload may end before it does
};
inline constexpr std::uint32_t kMostPayloads = 16;  ///< that are added into one spectrum at a time

/// A tile is what a warp takes at a time: 8 words of the bitmap.
inline constexpr std::uint32_t kTileWords = 8;
inline constexpr std::uint32_t kTileBins = 32 * kTileWords;
GT_HD constexpr std::size_t tiles_of(std::size_t bins) {
  return (bins + kTileBins - 1) / kTileBins;
}

/// What a payload turned out to hold.
struct Opened {
  const std::uint32_t* bitmap;  ///< null where all bins are kept
  const std::uint32_t* codes;
  std::uint64_t code_words;
  float scale;
  std::uint32_t mantissa;
  std::uint32_t good;  ///< 0: it is none, and nothing else is set
  std::uint32_t unused;
};

/// Adding payloads into one spectrum, of which a row of bins is made at a time.
struct Unpacking {
  PayloadRef payloads[kMostPayloads];
  std::uint32_t count;        ///< payloads
  law::FftHeader expected;    ///< bits and bins that a payload must have
  law::RangeFormats formats;  ///< one of which it must have; all zero when bits is 32
  std::uint32_t chunk_bins;   ///< bins of a chunk
  bool real_end;              ///< the last bin of a chunk is real too, as the first one always is
  bool real_tail;             ///< there is a tail, and its last bin is real
  std::uint32_t* offsets;     ///< count * tiles + 1: marked bins in a tile, then (summed) in front of it
  Opened* opened;             ///< of each payload
  std::size_t first, last;    ///< the bins to make: first to last - 1
  float* spectrum;            ///< theirs, as pairs
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

/// The bitmap of a payload that fits; null where all bins are kept and so there is none.
GT_SCHEDULE inline const std::uint32_t* bitmap_of(const PayloadRef& payload) {
  const law::FftHeader& is = *reinterpret_cast<const law::FftHeader*>(payload.data);
  return is.kept == is.bins ? nullptr : reinterpret_cast<const std::uint32_t*>(payload.data + sizeof(law::FftHeader));
}

/// Word `w` of the status of `bins` bins; 0 behind the last.
GT_SCHEDULE inline std::uint32_t status_word(const std::uint32_t* bitmap, std::size_t bins, std::size_t w) {
  if (32 * w >= bins) return 0u;
  if (bitmap != nullptr) return bitmap[w];
  return bins - 32 * w >= 32 ? 0xffffffffu : (1u << (bins - 32 * w)) - 1u;
}

/// Marked bins of 32 tiles of a payload, from `first` on, into their places in `offsets`; 0 for a payload that does not
/// fit.
template <class Warp>
GT_SCHEDULE void count_marked(const Warp& warp, const Unpacking& at, std::uint32_t p, std::size_t first) {
  const std::size_t tiles = tiles_of(at.expected.bins);
  const bool good = fits(at.payloads[p], at);
  const std::uint32_t* bitmap = bitmap_of(at.payloads[p]);
  warp.each([&](std::uint32_t lane) {
    const std::size_t tile = first + lane;
    if (tile >= tiles) return;
    std::uint32_t marked = 0;
    for (std::uint32_t word = 0; good && word < kTileWords; ++word)
      marked += bits_set(status_word(bitmap, at.expected.bins, tile * kTileWords + word));
    at.offsets[p * tiles + tile] = marked;
  });
}

/// Lane by lane the payloads' headers; a payload that says of itself what cannot be is marked as not good.
template <class Warp>
GT_SCHEDULE void open_payloads(const Warp& warp, const Unpacking& at) {
  warp.each([&](std::uint32_t p) {
    if (p >= at.count) return;
    at.opened[p].good = 0;
    const PayloadRef& payload = at.payloads[p];
    if (!fits(payload, at)) return;
    const law::FftHeader& is = *reinterpret_cast<const law::FftHeader*>(payload.data);
    const law::FftLayout layout{is.bins, is.kept, is.bits};
    const std::size_t tiles = tiles_of(is.bins);
    const std::uint32_t marked = at.offsets[(p + 1) * tiles] - at.offsets[p * tiles];
    const std::uint32_t* bitmap = bitmap_of(payload);
    const bool beyond = bitmap != nullptr && is.bins % 32 != 0 && bitmap[is.bins / 32] >> is.bins % 32 != 0;
    if (marked != is.kept || beyond) return;
    at.opened[p] = {bitmap,
                    reinterpret_cast<const std::uint32_t*>(payload.data + layout.codes_offset()),
                    layout.code_words(),
                    is.scale,
                    is.mantissa,
                    1,
                    0};
  });
}

}  // namespace gradtool::schedule
