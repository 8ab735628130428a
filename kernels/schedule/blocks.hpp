#pragma once

#include "kernels/law/block_format.hpp"
#include "kernels/schedule/block_codes.hpp"

/// Block formats (kernels/law/block_format.hpp) by warps. Blocks of 4 to 128 elements, a power of two, lie whole in a
/// window: lanes find the largest among neighbours, and a warp takes many blocks. Larger ones, and those that would lie
/// across windows, are taken block by block, in pieces.
namespace gradtool::schedule {

/// Blocks up to here are one piece, larger ones are cut: a few large blocks fill a GPU too.
inline constexpr std::size_t kPiece = 4096;
/// Of elements whose blocks lie in windows a warp takes this many at a time: pieces are many times the warps that run
/// at once, so that the last of them leave little of a GPU idle.
inline constexpr std::size_t kWindowPiece = 1024;
/// The largest blocks that are held in registers: those that int8 has if it is not told otherwise.
inline constexpr std::uint32_t kMostHeld = 2048 / kWindow;
static_assert(kPiece % kWindow == 0 && kWindowPiece % kWindow == 0);

GT_HD constexpr bool in_window(std::size_t block) {
  return block >= 4 && block <= kWindow && (block & (block - 1)) == 0;
}

/// Elements [first, first + count), whose codes start at word `first_word`.
struct BlockPiece {
  std::size_t block = 0;  ///< that they lie in, or the first of theirs, where blocks lie in windows
  std::size_t first = 0, count = 0, first_word = 0;
  bool starts = true;  ///< the block

  /// Of a block; of its last one's, where a block is cut, those behind the end are empty.
  GT_HD static std::size_t per_block(const law::BlockLayout& layout) { return (layout.block + kPiece - 1) / kPiece; }
  GT_HD static std::size_t pieces(const law::BlockLayout& layout) {
    if (in_window(layout.block)) return (layout.n + kWindowPiece - 1) / kWindowPiece;
    return layout.blocks() * per_block(layout);
  }
  GT_HD BlockPiece(const law::BlockLayout& layout, std::size_t piece) : block{piece} {
    std::size_t end = layout.n;
    std::size_t most = kWindowPiece;
    if (in_window(layout.block)) {
      first = piece * kWindowPiece;
      block = first / layout.block;
    } else {
      std::size_t offset = 0;
      if (layout.block > kPiece) {  // a division costs a GPU as much as some elements
        block = piece / per_block(layout);
        offset = piece % per_block(layout) * kPiece;
      }
      first = block * layout.block + offset;
      starts = offset == 0;
      const std::size_t border = (block + 1) * layout.block;
      end = border < layout.n ? border : layout.n;
      most = kPiece;
    }
    const std::size_t left = first < end ? end - first : 0;
    count = left < most ? left : most;
    first_word = first * layout.bits / 32;  // blocks and pieces are whole words of codes
  }
};

/// log2 of a power of two.
GT_SCHEDULE inline std::uint32_t log2_of(std::size_t power) {
  return bits_set(static_cast<std::uint32_t>(power) - 1u);
}

/// Scales and codes of kAhead whole windows whose blocks have 2^shift elements, 16 or more: at most 32 blocks. Lane b
/// finds the scale of block b, because a division takes as long for one block as for 32. The first element has index
/// `first` in the gradient.
template <class Format, bool Stochastic, class Warp>
GT_SCHEDULE void encode_blocks_ahead(const Warp& warp, const Held<kAhead, Warp>& held, std::uint32_t shift,
                                     std::size_t first, const law::DrawKey& key, typename Format::Scale* scales,
                                     std::uint32_t* room, std::uint32_t* words) {
  using Element = typename Format::Element;
  const std::uint32_t lanes = 1u << (shift - 2);  // of a block
  const std::uint32_t in_window = kWindow >> shift;
  typename Warp::template Own<std::uint32_t> source;
  typename Warp::template Own<std::uint32_t> largest;
  warp.each([&](std::uint32_t lane) {
    source[lane] = (lane & (in_window - 1)) * lanes;
    largest[lane] = 0;
  });
  GT_UNROLL
  for (std::uint32_t w = 0; w < kAhead; ++w) {
    typename Warp::template Own<std::uint32_t> four;
    warp.each([&](std::uint32_t lane) { four[lane] = largest_of_four(held.window[w][lane]); });
    const auto of_block = warp.from(warp.max_among(lanes, four), source);
    warp.each([&](std::uint32_t lane) {
      if (lane >= w * in_window) largest[lane] = of_block[lane];
    });
  }
  typename Warp::template Own<float> factor;
  warp.each([&](std::uint32_t lane) {
    const auto scaled = Format::scaled(law::float_of(largest[lane]));
    factor[lane] = scaled.factor;
    if (lane < kAhead * in_window) scales[(first >> shift) + lane] = scaled.stored;
  });
  GT_UNROLL
  for (std::uint32_t w = 0; w < kAhead; ++w) {
    warp.each([&](std::uint32_t lane) { source[lane] = w * in_window + (lane >> (shift - 2)); });
    encode_window<Element, Stochastic>(warp, held.window[w], warp.from(factor, source), first + w * kWindow, kWindow,
                                       key, room, words + w * (kWindow / 32 * Element::kBits));
  }
}

/// Scales and codes of a piece whose blocks lie in windows. `x` and `scales` are the whole gradient's, `words` the
/// piece's.
template <class Format, bool Stochastic, class Warp>
GT_SCHEDULE void encode_in_windows(const Warp& warp, const law::BlockLayout& layout, const BlockPiece& piece,
                                   const float* x, bool aligned, const law::DrawKey& key,
                                   typename Format::Scale* scales, std::uint32_t* room, std::uint32_t* words) {
  using Element = typename Format::Element;
  const std::uint32_t shift = log2_of(Format::kBlock != 0 ? Format::kBlock : layout.block);
  const std::uint32_t lanes = 1u << (shift - 2);
  std::size_t window = 0;
  for (; aligned && shift >= 4 && window + kAheadElements <= piece.count; window += kAheadElements) {
    const std::size_t first = piece.first + window;
    encode_blocks_ahead<Format, Stochastic>(warp, load_windows<kAhead>(warp, x + first), shift, first, key, scales,
                                            room, words + window / law::kPackGroup * Element::kBits);
  }
  for (; window < piece.count; window += kWindow) {
    const std::size_t first = piece.first + window;
    const std::size_t left = piece.count - window;
    const auto here = static_cast<std::uint32_t>(left < kWindow ? left : kWindow);
    typename Warp::template Own<Four<float>> four;
    typename Warp::template Own<std::uint32_t> largest;
    warp.each([&](std::uint32_t lane) {
      four[lane] = four_at(x + first, 4 * lane, here, aligned);
      largest[lane] = largest_of_four(four[lane]);
    });
    const auto of_block = warp.max_among(lanes, largest);
    typename Warp::template Own<float> factor;
    warp.each([&](std::uint32_t lane) {
      const auto scaled = Format::scaled(law::float_of(of_block[lane]));
      factor[lane] = scaled.factor;
      if (lane % lanes == 0 && 4 * lane < here) scales[(first >> shift) + lane / lanes] = scaled.stored;
    });
    encode_window<Element, Stochastic>(warp, four, factor, first, here, key, room,
                                       words + window / law::kPackGroup * Element::kBits);
  }
}

/// Codes of a piece of one block, whose largest pattern is `largest`, and its scale where the block starts here.
template <class Format, bool Stochastic, class Warp>
GT_SCHEDULE void encode_piece(const Warp& warp, const BlockPiece& piece, const float* x, bool aligned,
                              std::uint32_t largest, const law::DrawKey& key, typename Format::Scale* scales,
                              std::uint32_t* room, std::uint32_t* words) {
  const auto scaled = Format::scaled(law::float_of(largest));
  warp.each([&](std::uint32_t lane) {
    if (lane == 0 && piece.starts) scales[piece.block] = scaled.stored;
  });
  encode_elements<typename Format::Element, Stochastic>(warp, x + piece.first, piece.first, piece.count, aligned,
                                                        scaled.factor, key, room, words);
}

/// Whether a piece is a whole block of `Windows` windows that can be held.
template <std::uint32_t Windows>
GT_SCHEDULE bool can_be_held(const law::BlockLayout& layout, const BlockPiece& piece, bool aligned) {
  return aligned && layout.block == Windows * kWindow && piece.count == layout.block;
}

/// Scale and codes of such a piece, which is read once.
template <class Format, bool Stochastic, std::uint32_t Windows, class Warp>
GT_SCHEDULE void encode_held_block(const Warp& warp, const BlockPiece& piece, const float* x, const law::DrawKey& key,
                                   typename Format::Scale* scales, std::uint32_t* room, std::uint32_t* words) {
  const auto held = load_windows<Windows>(warp, x + piece.first);
  const auto scaled = Format::scaled(law::float_of(largest_pattern(warp, held)));
  warp.each([&](std::uint32_t lane) {
    if (lane == 0) scales[piece.block] = scaled.stored;
  });
  encode_held<typename Format::Element, Stochastic>(warp, held, piece.first, scaled.factor, key, room, words);
}

/// out += weight * decoded, for a piece; `words` are the piece's, `scales` and `out` the whole gradient's.
template <class Format, class Warp>
GT_SCHEDULE void decode_piece(const Warp& warp, const law::BlockLayout& layout, const BlockPiece& piece,
                              const std::uint32_t* words, const typename Format::Scale* scales, float weight,
                              float* out, bool aligned) {
  using Element = typename Format::Element;
  if (Format::kBlock != 0 || in_window(layout.block)) {
    const std::uint32_t shift = log2_of(Format::kBlock != 0 ? Format::kBlock : layout.block);
    const auto unit_of = [&](std::size_t at) { return Format::decode_factor(scales[(piece.first + at) >> shift]); };
    decode_elements<Element>(warp, words, piece.count, unit_of, weight, out + piece.first, aligned);
  } else {
    const float unit = Format::decode_factor(scales[piece.block]);
    decode_elements<Element>(
        warp, words, piece.count, [unit](std::size_t) { return unit; }, weight, out + piece.first, aligned);
  }
}

/// Bytes between the scales and the codes, which are zeros.
template <class Format, class Warp>
GT_SCHEDULE void clear_padding(const Warp& warp, const law::BlockLayout& layout, std::byte* payload) {
  const std::size_t from = layout.blocks() * sizeof(typename Format::Scale);
  warp.each([&](std::uint32_t lane) {
    if (from + lane < layout.codes_offset()) payload[from + lane] = std::byte{0};
  });
}

}  // namespace gradtool::schedule
