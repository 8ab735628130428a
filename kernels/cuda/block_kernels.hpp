#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block_format.hpp"
#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/payloads.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/unit_launch.hpp"

/// Block formats (kernels/block_format.hpp) on the GPU, for .cu files: the payloads and sums of
/// lib/codecs/block_codec.hpp, byte for byte. Launches are enqueued. `like` is the layout of a unit except for its n.
///
/// A warp works on a piece. Blocks of 4 to 128 elements, a power of two, lie whole in a window of 128: lanes find the
/// largest element among neighbours, and a piece is many blocks. Every other block is a piece of its own, or several
/// where it is long.
namespace gradtool::cuda {

/// Blocks up to this size are one piece. Longer ones are cut, so that a few long blocks fill a GPU too.
inline constexpr std::size_t kBlockPiece = 4096;
/// Elements of a piece of blocks that lie in windows. There are many times more pieces than warps run at once, so that
/// the last of them leave little of a GPU idle.
inline constexpr std::size_t kWindowPiece = 1024;
/// Windows of the longest block that is held in registers: the default block of int8.
inline constexpr std::uint32_t kMostHeld = 2048 / kWindow;
inline constexpr unsigned kBlockWarps = kThreads / kWarpSize;
static_assert(kBlockPiece % kWindow == 0 && kWindowPiece % kWindow == 0);

GT_HD constexpr bool lies_in_window(std::size_t block) {
  return block >= 4 && block <= kWindow && (block & (block - 1)) == 0;
}

/// Elements [first, first + count), whose codes start at word `first_word`.
struct BlockPiece {
  std::size_t block = 0;  ///< the block that they lie in, or the first of several that lie in windows
  std::size_t first = 0, first_word = 0;
  std::uint32_t count = 0;

  /// Pieces of a block that is cut; those of the last block that lie behind the end are empty.
  GT_HD static std::size_t per_block(const format::BlockLayout& layout) {
    return (layout.block + kBlockPiece - 1) / kBlockPiece;
  }
  GT_HD static std::size_t pieces(const format::BlockLayout& layout) {
    if (lies_in_window(layout.block)) return (layout.n + kWindowPiece - 1) / kWindowPiece;
    return layout.blocks() * per_block(layout);
  }
  GT_HD BlockPiece(const format::BlockLayout& layout, std::size_t piece) : block{piece} {
    std::size_t end = layout.n;
    std::size_t most = kWindowPiece;
    if (lies_in_window(layout.block)) {
      first = piece * kWindowPiece;
      block = first / layout.block;
    } else {
      std::size_t offset = 0;
      if (layout.block > kBlockPiece) {  // A division costs a GPU as much as several elements do.
        block = piece / per_block(layout);
        offset = piece % per_block(layout) * kBlockPiece;
      }
      first = block * layout.block + offset;
      const std::size_t border = (block + 1) * layout.block;
      end = border < layout.n ? border : layout.n;
      most = kBlockPiece;
    }
    const std::size_t left = first < end ? end - first : 0;
    count = static_cast<std::uint32_t>(left < most ? left : most);
    first_word = first * layout.bits / 32;  // Blocks and pieces are whole words of codes.
  }
};

inline std::size_t thread_blocks_for(const format::BlockLayout& layout) {
  return blocks_for(BlockPiece::pieces(layout), kBlockWarps);
}

/// `like` for n elements. A block that is the whole unit becomes one of pieces, whatever n is. What the format fixes is
/// a constant, which costs a kernel no register.
template <class Format>
GT_HD constexpr format::BlockLayout with_elements(const format::BlockLayout& from, std::size_t n) {
  format::BlockLayout like = format::block_layout<Format>(n, from.block);
  if (like.block == format::kWholeUnit) like.block = (n + kBlockPiece - 1) / kBlockPiece * kBlockPiece;
  return like;
}

/// log2 of a power of two.
__device__ inline std::uint32_t log2_of(std::size_t power) {
  return bits_set(static_cast<std::uint32_t>(power) - 1u);
}

/// The rotation of windows of a format.
template <format::Way Direction, class Format>
__device__ auto turn_of(const Format& block_format) {
  if constexpr (format::Rotates<Format>)
    return WindowTurn<Direction, decltype(block_format.rotation)>{block_format.rotation};
  else
    return NoTurn{};
}

/// A format that encodes a window with all of its blocks by a function of its own:
///   Scale encode_window(four, largest, first, present, key, words)
/// which has the contract of cuda::encode_window, gets the largest magnitude of the lane's block, and returns the
/// scale.
template <class Format>
concept EncodesWindow = requires {
  &Format::encode_window;
};

/// The value from which the scale of a block x[0 .. count), turned, follows, the same in all lanes of the warp: its
/// largest magnitude, or its L2 norm, summed in the order that format::kNormLanes states.
template <class Format, class Turn = NoTurn>
__device__ float block_measure(const Format& block_format, const float* x, std::size_t count, bool aligned,
                               const Turn& turn = {}) {
  if (!format::uses_l2(block_format)) return format::float_of(largest_pattern(x, count, aligned, turn));
  static_assert(format::kNormLanes == kWarpSize);
  float squares = 0.0f;
  for (std::size_t i = lane_in_warp(); i < count; i += kWarpSize) squares += x[i] * x[i];
  return sqrtf(warp_tree_sum(squares));
}

/// Has the contract of largest_of_four for the patterns of a block format, which may hold signs.
template <class Format>
__device__ std::uint32_t measure_of_four(const Four<float>& four) {
  std::uint32_t largest = 0;
  for (const float value : four.value) {
    const std::uint32_t pattern = format::measure_pattern<Format>(value);
    largest = pattern > largest ? pattern : largest;
  }
  return largest;
}

/// Scales and codes of kAhead whole windows whose blocks have 2^shift elements, 16 or more, so that there are at most
/// 32 blocks. Lane b finds the scale of block b, because a division takes as long for one lane as for 32. The first
/// element has index `first` in the gradient.
template <class Format, bool Stochastic>
__device__ void encode_blocks_ahead(const Format& block_format, const HeldWindows<kAhead>& held, std::uint32_t shift,
                                    std::size_t first, const format::DrawKey& key, typename Format::Scale* scales,
                                    std::uint32_t* room, std::uint32_t* words) {
  using Element = typename Format::Element;
  const std::uint32_t lane = lane_in_warp();
  const std::uint32_t lanes = 1u << (shift - 2);  // that hold a block
  const std::uint32_t in_window = kWindow >> shift;
  std::uint32_t largest = 0;
#pragma unroll
  for (std::uint32_t w = 0; w < kAhead; ++w) {
    const std::uint32_t among = warp_max_among(lanes, measure_of_four<Format>(held.window[w]));
    const std::uint32_t of_block = __shfl_sync(kAllLanes, among, (lane & (in_window - 1)) * lanes);
    if (lane >= w * in_window) largest = of_block;
  }
  const auto scaled = block_format.scaled(format::measure_of<Format>(largest));
  if (lane < kAhead * in_window) scales[(first >> shift) + lane] = scaled.stored;
  const auto factor_of = [&](std::uint32_t w) {
    return __shfl_sync(kAllLanes, scaled.factor, w * in_window + (lane >> (shift - 2)));
  };
  encode_held<Element, Stochastic>(held, first, factor_of, key, room, words);
}

/// Scales and codes of a piece whose blocks lie in windows. `x` and `scales` are the whole gradient's, `words` the
/// piece's.
template <class Format, bool Stochastic, class Turn>
__device__ void encode_in_windows(const Format& block_format, const Turn& turn, const format::BlockLayout& layout,
                                  const BlockPiece& piece, const float* x, bool aligned, const format::DrawKey& key,
                                  typename Format::Scale* scales, std::uint32_t* room, std::uint32_t* words) {
  using Element = typename Format::Element;
  const std::uint32_t lane = lane_in_warp();
  const std::uint32_t shift = log2_of(Format::kBlock != 0 ? Format::kBlock : layout.block);
  const std::uint32_t lanes = 1u << (shift - 2);
  std::uint32_t window = 0;
  constexpr bool kAheadToo = !EncodesWindow<Format>;
  for (; kAheadToo && aligned && shift >= 4 && window + kAheadElements <= piece.count; window += kAheadElements) {
    const std::size_t first = piece.first + window;
    encode_blocks_ahead<Format, Stochastic>(block_format, load_windows<kAhead>(x + first, turn), shift, first, key,
                                            scales, room, words + window / format::kPackGroup * Element::kBits);
  }
  for (; window < piece.count; window += kWindow) {
    const std::size_t first = piece.first + window;
    const std::uint32_t left = piece.count - window;
    const std::uint32_t present = left < kWindow ? left : kWindow;
    const Four<float> four = turn(four_at(x + first, 4 * lane, present, aligned), present);
    const float measure = format::measure_of<Format>(warp_max_among(lanes, measure_of_four<Format>(four)));
    std::uint32_t* codes = words + window / format::kPackGroup * Element::kBits;
    typename Format::Scale stored;
    if constexpr (EncodesWindow<Format>) {
      stored = block_format.encode_window(four, measure, first, present, key, codes);
    } else {
      const auto scaled = block_format.scaled(measure);
      stored = scaled.stored;
      encode_window<Element, Stochastic>(four, scaled.factor, first, present, key, room, codes);
    }
    if (lane % lanes == 0 && 4 * lane < present) scales[(first >> shift) + lane / lanes] = stored;
  }
}

/// Whether a format finds the largest element of a block among lanes.
template <class Format>
bool encodes_in_windows(const Format& block_format, const format::BlockLayout& layout) {
  return Format::kBlock != 0 || (!format::uses_l2(block_format) && lies_in_window(layout.block));
}

/// Encodes units. Blocks of several pieces have been measured before (`measured`), into the places of their scales.
/// Otherwise a block is at most one piece, which is measured while it is in the cache, or held in registers where it
/// has `Windows` windows, or 0 windows: encodes_in_windows. A kernel's registers are those of its longest path, so that
/// these are kernels of their own.
template <class Format, bool Stochastic, std::uint32_t Windows>
struct EncodeBlocks {
  using Element = typename Format::Element;
  using Scale = typename Format::Scale;
  /// Thread blocks that a multiprocessor has registers for without keeping any in memory.
  static constexpr bool kTurnsAny = format::Rotates<Format> && Format::kBlock == 0;
  static constexpr bool kDrawsMuch = Stochastic && (Windows == 0 || format::RoundsToNearest<Element>);
  static constexpr unsigned kResident = Windows == kMostHeld || kTurnsAny || kDrawsMuch ? 2 : 3;

  Format block_format;
  format::BlockLayout like;
  format::DrawKey key;
  bool measured;

  std::size_t blocks(std::size_t n) const { return thread_blocks_for(with_elements<Format>(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    constexpr bool kNeedsRoom = 8 % Element::kBits != 0;
    __shared__ std::uint32_t rooms[kNeedsRoom ? kBlockWarps : 1][kWarpSize];
    std::uint32_t* room = rooms[kNeedsRoom ? threadIdx.x / kWarpSize : 0];
    const std::uint32_t lane = lane_in_warp();
    const format::BlockLayout layout = with_elements<Format>(like, unit.n);
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::byte*>(unit.to);
    auto* scales = reinterpret_cast<Scale*>(payload + layout.scales_offset());
    auto* words = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
    const auto* head = reinterpret_cast<const std::uint32_t*>(payload);
    Format own = format::with_seed(block_format, head);
    if constexpr (format::ScalesUnit<Format>) {
      own.scale_unit(format::float_of(head[0]));
      if (!format::is_finite(own.unit)) {
        const std::size_t end = (layout.bytes() - layout.scales_offset()) / 4;
        auto* zeros = reinterpret_cast<std::uint32_t*>(scales);
        for (std::size_t i = place.thread(); i < end; i += place.threads()) zeros[i] = 0;
        return;
      }
    }
    const auto turn = turn_of<format::Way::forward>(own);
    format::DrawKey own_key = key;
    own_key.tensor += index;
    // Windows are held together where they are aligned and their draws have low counters.
    const bool aligned = aligned_to(gradient, 16) && (!Stochastic || unit.n <= format::kLowElements);
    const bool l2 = format::uses_l2(own);
    const std::size_t pieces = BlockPiece::pieces(layout);
    for (std::size_t p = place.warp(); p < pieces; p += place.warps()) {
      const BlockPiece piece{layout, p};
      const float* x = gradient + piece.first;
      std::uint32_t* codes = words + piece.first_word;
      if constexpr (Windows == 0) {
        encode_in_windows<Format, Stochastic>(own, turn, layout, piece, gradient, aligned, own_key, scales, room,
                                              codes);
      } else if (aligned && !l2 && layout.block == Windows * kWindow && piece.count == layout.block) {
        const auto held = load_windows<Windows>(x, turn);
        const auto scaled = own.scaled(format::float_of(largest_pattern(held)));
        if (lane == 0) scales[piece.block] = scaled.stored;
        const auto factor_of = [&](std::uint32_t) { return scaled.factor; };
        encode_held<Element, Stochastic>(held, piece.first, factor_of, own_key, room, codes);
      } else {
        // One block or a part of one; several blocks where they lie in windows and are measured by their L2 norm.
        const auto most = static_cast<std::uint32_t>(layout.block < piece.count ? layout.block : piece.count);
        std::size_t block = piece.block;
        for (std::uint32_t offset = 0; offset < piece.count; offset += most, ++block) {
          const std::uint32_t left = piece.count - offset;
          const std::uint32_t count = left < most ? left : most;
          const float measure =
              measured ? format::float_of(head[block]) : block_measure(own, x + offset, count, aligned, turn);
          const auto scaled = own.scaled(measure);
          if (lane == 0 && !measured) scales[block] = scaled.stored;
          encode_elements<Element, Stochastic>(x + offset, piece.first + offset, count, aligned, scaled.factor, own_key,
                                               room, codes + offset / format::kPackGroup * Element::kBits, turn);
        }
      }
    }
    const std::size_t padding = layout.scales_end() + lane;
    if (place.warp() == 0 && padding < layout.codes_offset()) payload[padding] = std::byte{0};
  }
};

/// Sets to 0 the words, one for each block of a unit, in which MeasureBlocks looks for the largest.
struct ClearMeasures {
  format::BlockLayout like;

  GT_HD std::size_t words(std::size_t n) const {
    return like.block == format::kWholeUnit ? 1 : (n - 1) / like.block + 1;
  }
  std::size_t blocks(std::size_t n) const { return blocks_for(words(n), kThreads); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    for (std::size_t i = place.thread(); i < words(unit.n); i += place.threads())
      static_cast<std::uint32_t*>(unit.to)[i] = 0;
  }
};

/// The place of each block's scale := the pattern of its measure, for blocks of several pieces, and for a whole unit
/// whose scale is the first word of the payload; the seed of its rotation is written behind that. Places of largest
/// magnitudes were cleared before: pieces raise them, in any order.
template <class Format>
struct MeasureBlocks {
  Format block_format;
  format::BlockLayout like;
  format::DrawKey key;

  std::size_t blocks(std::size_t n) const { return thread_blocks_for(with_elements<Format>(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    const format::BlockLayout layout = with_elements<Format>(like, unit.n);
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* measures = static_cast<std::uint32_t*>(unit.to);
    const bool aligned = aligned_to(gradient, 16);
    Format own = block_format;
    if constexpr (format::DrawsRotation<Format>) {
      format::DrawKey own_key = key;
      own_key.tensor += index;
      const std::uint32_t head[2] = {0, format::draw_of(own_key, unit.n)};
      own = format::with_seed(own, head);
      if (place.thread() == 0) measures[1] = head[1];
    }
    const auto turn = turn_of<format::Way::forward>(own);
    const bool l2 = format::uses_l2(own);  // The order of the norm's sum wants one warp for a whole block.
    const std::size_t items = l2 ? layout.blocks() : BlockPiece::pieces(layout);
    for (std::size_t i = place.warp(); i < items; i += place.warps()) {
      if (l2) {
        const std::size_t first = i * layout.block;
        const std::size_t count = layout.n - first < layout.block ? layout.n - first : layout.block;
        const float norm = block_measure(own, gradient + first, count, aligned);
        if (lane_in_warp() == 0) measures[i] = format::bits_of(norm);
      } else {
        const BlockPiece piece{layout, i};
        const std::uint32_t largest = largest_pattern(gradient + piece.first, piece.count, aligned, turn);
        if (lane_in_warp() == 0) atomicMax(measures + piece.block, largest);
      }
    }
  }
};

/// Turns the values that MeasureBlocks stored into scales.
template <class Format>
struct StoreScales {
  Format block_format;
  format::BlockLayout like;

  std::size_t blocks(std::size_t n) const { return blocks_for(with_elements<Format>(like, n).blocks(), kThreads); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    auto* scales = static_cast<std::uint32_t*>(unit.to);
    for (std::size_t b = place.thread(); b < with_elements<Format>(like, unit.n).blocks(); b += place.threads()) {
      if constexpr (format::ScalesUnit<Format>) {
        Format own = block_format;
        own.scale_unit(format::float_of(scales[b]));
        scales[b] = format::bits_of(own.unit);
      } else {
        scales[b] = format::bits_of(block_format.scaled(format::float_of(scales[b])).stored);
      }
    }
  }
};

/// Decodes pieces of a payload.
template <class Format>
struct BlockDecoder {
  using Scale = typename Format::Scale;
  using Element = typename Format::Element;

  Format own;
  decltype(turn_of<format::Way::inverse>(std::declval<const Format&>())) turn;
  const Scale* scales;
  const std::uint32_t* words;

  __device__ BlockDecoder(const Format& block_format, const format::BlockLayout& layout, const std::byte* payload)
      : own{format::with_head(block_format, reinterpret_cast<const std::uint32_t*>(payload))},
        turn{turn_of<format::Way::inverse>(own)},
        scales{reinterpret_cast<const Scale*>(payload + layout.scales_offset())},
        words{reinterpret_cast<const std::uint32_t*>(payload + layout.codes_offset())} {}

  /// out += weight * decoded, for a piece; `out` is the whole gradient's.
  __device__ void add(const format::BlockLayout& layout, const BlockPiece& piece, float weight, float* out,
                      bool aligned) const {
    const auto decode = [&](const auto& unit_of) {
      decode_elements<Element>(words + piece.first_word, piece.count, unit_of, weight, out + piece.first, aligned,
                               turn);
    };
    if (Format::kBlock != 0 || lies_in_window(layout.block)) {
      const std::uint32_t shift = log2_of(Format::kBlock != 0 ? Format::kBlock : layout.block);
      decode([&](std::size_t at) { return own.decode_factor(scales[(piece.first + at) >> shift]); });
    } else {
      const float unit = own.decode_factor(scales[piece.block]);
      decode([unit](std::size_t) { return unit; });
    }
  }
};

template <class Format>
struct DecodeBlocks {
  static constexpr unsigned kResident = format::Rotates<Format> ? 3 : 1;

  Format block_format;
  format::BlockLayout like;
  float weight;

  std::size_t blocks(std::size_t n) const { return thread_blocks_for(with_elements<Format>(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const format::BlockLayout layout = with_elements<Format>(like, unit.n);
    auto* out = static_cast<float*>(unit.to);
    const BlockDecoder decoder{block_format, layout, static_cast<const std::byte*>(unit.from)};
    const std::size_t pieces = BlockPiece::pieces(layout);
    for (std::size_t p = place.warp(); p < pieces; p += place.warps())
      decoder.add(layout, BlockPiece{layout, p}, weight, out, aligned_to(out, 16));
  }
};

/// An element of `out` is its lane's for every payload, so no barrier stands between payloads.
template <class Format>
__global__ void decode_blocks_kernel(Format block_format, format::BlockLayout layout,
                                     const __grid_constant__ Payloads payloads, float weight, float* out,
                                     bool aligned) {
  const std::size_t pieces = BlockPiece::pieces(layout);
  for (std::size_t p = warp_in_grid(); p < pieces; p += warps_in_grid()) {
    BlockPiece part{layout, p};
    for (std::size_t left = part.count; left > 0; left -= part.count) {
      part.count = static_cast<std::uint32_t>(left < kAddedAtOnce ? left : kAddedAtOnce);
      for (unsigned i = 0; i < payloads.count; ++i)
        BlockDecoder{block_format, layout, payloads.at[i]}.add(layout, part, weight, out, aligned);
      part.first += part.count;
      part.first_word += part.count * Format::Element::kBits / 32;
    }
  }
}

/// Writes the payloads of units (4-byte aligned); unit i draws as tensor key.tensor + i. Reads the gradients once from
/// memory, or twice where a block is longer than kBlockPiece. `stochastic` is ignored where the format's elements have
/// only one kind of rounding.
template <class Format>
void encode_blocks(Queue<Space::cuda> queue, const Format& block_format, const format::BlockLayout& like,
                   std::span<const Unit> units, bool stochastic, const format::DrawKey& key) {
  using Element = typename Format::Element;
  bool measured = false;
  format::BlockLayout measured_like = like;
  if constexpr (format::ScalesUnit<Format>) {
    measured_like.block = format::kWholeUnit;
    launch_units(queue, "clear measures", ClearMeasures{measured_like}, units);
    launch_units(queue, "measure units", MeasureBlocks<Format>{block_format, measured_like, key}, units);
  } else if constexpr (Format::kBlock == 0) {
    static_assert(sizeof(typename Format::Scale) == sizeof(std::uint32_t), "a measure takes the place of a scale");
    measured = like.block > kBlockPiece || like.block == format::kWholeUnit;
    if (measured) {
      if (!format::uses_l2(block_format)) launch_units(queue, "clear measures", ClearMeasures{like}, units);
      launch_units(queue, "measure blocks", MeasureBlocks<Format>{block_format, like, key}, units);
    }
  }
  const auto encode = [&]<bool Stochastic, std::uint32_t Windows>() {
    const EncodeBlocks<Format, Stochastic, Windows> kernel{block_format, like, key, measured};
    launch_units(queue, "encode blocks", kernel, units);
  };
  const auto encode_rounded = [&]<bool Stochastic>() {
    if (encodes_in_windows(block_format, like)) return encode.template operator()<Stochastic, 0>();
    if constexpr (Format::kBlock == 0) {
      if (Stochastic || like.block != kMostHeld * kWindow) return encode.template operator()<Stochastic, kAhead>();
      if constexpr (!Stochastic) encode.template operator()<Stochastic, kMostHeld>();
    }
  };
  if constexpr (format::RoundsStochastically<Element>) {
    if (stochastic || !format::RoundsToNearest<Element>) encode_rounded.template operator()<true>();
  }
  if constexpr (format::RoundsToNearest<Element>) {
    if (!stochastic || !format::RoundsStochastically<Element>) encode_rounded.template operator()<false>();
  }
  if constexpr (Format::kBlock == 0 || format::ScalesUnit<Format>) {
    if (measured || format::ScalesUnit<Format>)
      launch_units(queue, "scales of blocks", StoreScales<Format>{block_format, measured_like}, units);
  }
}

/// to[i] += weight * decoded. Reads exactly the payloads' bytes, whatever they are.
template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const Format& block_format, const format::BlockLayout& like,
                       std::span<const Unit> units, float weight) {
  launch_units(queue, "decode blocks", DecodeBlocks<Format>{block_format, like, weight}, units);
}

/// out[i] += weight * decoded for every payload in turn, in one pass over `out`. Reads exactly like.bytes() bytes of
/// each payload, whatever they are.
template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const Format& block_format, const format::BlockLayout& like,
                       const Payloads& payloads, float weight, float* out) {
  if (like.n == 0) return;
  const format::BlockLayout layout = with_elements<Format>(like, like.n);
  launch(queue, "decode blocks", decode_blocks_kernel<Format>, static_cast<unsigned>(thread_blocks_for(layout)),
         block_format, layout, payloads, weight, out, aligned_to(out, 16));
}

}  // namespace gradtool::cuda
