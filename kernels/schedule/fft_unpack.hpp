#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/schedule/fft_open.hpp"

/// From opened fft payloads to the sum of their spectra by warps; sums are those of kernels/host/fft_pack.cpp.
namespace gradtool::schedule {

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
