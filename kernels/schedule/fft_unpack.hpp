#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/fft_payload.hpp"
#include "kernels/law/range_float.hpp"
#include "kernels/schedule/warp.hpp"

/// From fft payloads to the sum of their spectra by warps; sums are those of kernels/host/fft_pack.cpp.
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

/// values[i] := what the pair of codes first + i stands for, for `count` of them.
template <class Warp>
GT_SCHEDULE void decode_pairs(const Warp& warp, const Opened& is, std::uint32_t bits, const law::RangeFloat& format,
                              std::uint32_t first, std::uint32_t count, Pair* values) {
  warp.each([&](std::uint32_t lane) {
    for (std::uint32_t i = lane; i < count; i += kLanes) {
      const std::size_t rank = std::size_t{first} + i;
      if (bits == 32) {
        values[i] = {is.scale * law::float_of(law::unpacked(is.codes, is.code_words, 32, 2 * rank)),
                     is.scale * law::float_of(law::unpacked(is.codes, is.code_words, 32, 2 * rank + 1))};
      } else {  // both codes are one of twice the bits
        const std::uint32_t two = law::unpacked(is.codes, is.code_words, 2 * bits, rank);
        values[i] = {is.scale * format.decode(two & ((1u << bits) - 1u)), is.scale * format.decode(two >> bits)};
      }
    }
  });
}

/// A lane's bins of a tile, one in each word.
struct TileSums {
  Pair bin[kTileWords];
};
struct TileStatus {
  std::uint32_t word[kTileWords];
};

/// sum += what a payload has in a tile; offsets[tile] - offsets[0] of its bins are in front. `values` as in
/// unpack_tile.
template <class Warp>
GT_SCHEDULE void add_tile(const Warp& warp, const Unpacking& at, const Opened& is, const std::uint32_t* offsets,
                          std::size_t tile, Pair* values, typename Warp::template Own<TileSums>& sum) {
  typename Warp::template Own<TileStatus> status;
  const std::size_t first = tile * kTileWords;
  const bool whole = is.bitmap != nullptr && 32 * (first + kTileWords) <= at.expected.bins;
  warp.each([&](std::uint32_t lane) {
    GT_UNROLL
    for (std::uint32_t word = 0; word < kTileWords; ++word)
      status[lane].word[word] =
          whole ? is.bitmap[first + word] : status_word(is.bitmap, at.expected.bins, first + word);
  });
  const law::RangeFloat format = at.formats.format[is.mantissa];
  decode_pairs(warp, is, at.expected.bits, format, offsets[tile] - offsets[0], offsets[tile + 1] - offsets[tile],
               values);
  warp.each([&](std::uint32_t lane) {
    std::uint32_t rank = 0;
    GT_UNROLL
    for (std::uint32_t word = 0; word < kTileWords; ++word) {
      const std::uint32_t marked = status[lane].word[word];
      if ((marked >> lane & 1u) != 0) {
        const Pair value = values[rank + bits_set(marked & lanes_below(lane))];
        sum[lane].bin[word].re += value.re;
        sum[lane].bin[word].im += value.im;
      }
      rank += bits_set(marked);
    }
  });
}

/// Writes those bins of a tile that are wanted; the imaginary parts of real ones become 0.
template <class Warp>
GT_SCHEDULE void write_tile(const Warp& warp, const Unpacking& at, std::size_t tile,
                            const typename Warp::template Own<TileSums>& sum) {
  const std::size_t first = tile * kTileBins;
  const std::size_t end = first + kTileBins;
  const auto in_chunk = static_cast<std::uint32_t>(first % at.chunk_bins);
  if (first >= at.first && end <= at.last && end < at.expected.bins && in_chunk > 0 &&
      in_chunk + kTileBins < at.chunk_bins) {  // most: all are wanted and none is real
    warp.each([&](std::uint32_t lane) {
      Pair* to = reinterpret_cast<Pair*>(at.spectrum) + (first - at.first) + lane;
      GT_UNROLL
      for (std::uint32_t word = 0; word < kTileWords; ++word) to[32 * word] = sum[lane].bin[word];
    });
    return;
  }
  warp.each([&](std::uint32_t lane) {
    GT_UNROLL
    for (std::uint32_t word = 0; word < kTileWords; ++word) {
      const std::size_t bin = first + 32 * word + lane;
      if (bin < at.first || bin >= at.last) continue;
      const auto place = static_cast<std::uint32_t>(bin % at.chunk_bins);
      Pair value = sum[lane].bin[word];
      if (place == 0 || (at.real_end && place + 1 == at.chunk_bins) || (at.real_tail && bin + 1 == at.expected.bins))
        value.im = 0.0f;
      reinterpret_cast<Pair*>(at.spectrum)[bin - at.first] = value;
    }
  });
}

/// Sums a tile of all payloads, in their order, and writes it. A payload that this codec cannot have written makes its
/// bins NaN: the result shows it, and nothing outside of the payload is read. `values` is room for a tile's pairs,
/// shared by the lanes.
template <class Warp>
GT_SCHEDULE void unpack_tile(const Warp& warp, const Unpacking& at, std::size_t tile, Pair* values) {
  typename Warp::template Own<TileSums> sum;
  const auto fill = [&](float value) {
    warp.each([&](std::uint32_t lane) {
      GT_UNROLL
      for (std::uint32_t word = 0; word < kTileWords; ++word) sum[lane].bin[word] = {value, value};
    });
  };
  fill(0.0f);
  for (std::uint32_t p = 0; p < at.count; ++p) {
    const Opened is = at.opened[p];
    if (is.good == 0) {
      fill(law::float_of(0x7fc00000u));
    } else {
      add_tile(warp, at, is, at.offsets + p * tiles_of(at.expected.bins), tile, values, sum);
    }
  }
  write_tile(warp, at, tile, sum);
}

}  // namespace gradtool::schedule
