#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/blocks.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/schedule/blocks.hpp"

/// The kernels behind kernels/cuda/blocks.hpp, for the .cu files of block formats: each says
/// GT_BLOCK_FORMAT(its format) in namespace gradtool::cuda.
namespace gradtool::cuda {

inline constexpr unsigned kBlockWarps = kThreads / schedule::kLanes;

/// largest[block] := its largest pattern; cleared before. Maxima are the same in any order.
template <class Format>
__global__ void largest_of_blocks(law::BlockLayout layout, const float* gradient, bool aligned, unsigned* largest) {
  const DeviceWarp warp;
  const std::size_t pieces = schedule::BlockPiece::pieces(layout);
  for (std::size_t p = warp_in_grid(); p < pieces; p += warps_in_grid()) {
    const schedule::BlockPiece piece{layout, p};
    const std::uint32_t most = schedule::largest_pattern(warp, gradient + piece.first, piece.count, aligned);
    warp.each([&](std::uint32_t lane) {
      if (lane == 0) atomicMax(largest + piece.block, most);
    });
  }
}

inline std::size_t blocks_for_pieces(const law::BlockLayout& layout) {
  return blocks_for(schedule::BlockPiece::pieces(layout), kBlockWarps);
}

/// `layout` is that of a unit with n elements in place of its own.
GT_HD constexpr law::BlockLayout with_elements(law::BlockLayout layout, std::size_t n) {
  layout.n = n;
  return layout;
}

/// `largest` null: a block is one piece at most, and its largest is found here, while it is in the cache; or in
/// registers, where blocks have `Windows` windows and are not drawn for, which takes too many.
template <class Format, bool Stochastic, std::uint32_t Windows = schedule::kAhead>
struct EncodeBlocks {
  static constexpr unsigned kResident = Stochastic || Windows == schedule::kMostHeld ? 2 : 3;

  law::BlockLayout like;
  law::DrawKey key;
  const unsigned* largest;

  std::size_t blocks(std::size_t n) const { return blocks_for_pieces(with_elements(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    constexpr bool kRoom = 8 % Format::Element::kBits != 0;
    __shared__ __align__(16) std::uint32_t room[kRoom ? kBlockWarps : 1][schedule::kWindow];
    const DeviceWarp warp;
    const law::BlockLayout layout = with_elements(like, unit.n);
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::byte*>(unit.to);
    law::DrawKey mine = key;
    mine.tensor += index;
    const bool aligned = aligned_to(gradient, 16);
    auto* scales = reinterpret_cast<typename Format::Scale*>(payload);
    auto* words = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
    std::uint32_t* codes = room[kRoom ? threadIdx.x / schedule::kLanes : 0];
    // Registers are for the longest way through a kernel: the largest held blocks have theirs for themselves.
    const bool in_window = Windows == schedule::kAhead && (Format::kBlock != 0 || schedule::in_window(layout.block));
    const std::size_t pieces = schedule::BlockPiece::pieces(layout);
    for (std::size_t p = place.warp(); p < pieces; p += place.warps()) {
      const schedule::BlockPiece piece{layout, p};
      if (in_window) {
        schedule::encode_in_windows<Format, Stochastic>(warp, layout, piece, gradient, aligned, mine, scales, codes,
                                                        words + piece.first_word);
      } else if (!Stochastic && schedule::can_be_held<Windows>(layout, piece, aligned)) {
        schedule::encode_held_block<Format, Stochastic, Windows>(warp, piece, gradient, mine, scales, codes,
                                                                 words + piece.first_word);
      } else {
        const std::uint32_t most = largest != nullptr
                                       ? largest[piece.block]
                                       : schedule::largest_pattern(warp, gradient + piece.first, piece.count, aligned);
        schedule::encode_piece<Format, Stochastic>(warp, piece, gradient, aligned, most, mine, scales, codes,
                                                   words + piece.first_word);
      }
    }
    if (place.warp() == 0) schedule::clear_padding<Format>(warp, layout, payload);
  }
};

template <class Format>
struct DecodeBlocks {
  law::BlockLayout like;
  float weight;

  std::size_t blocks(std::size_t n) const { return blocks_for_pieces(with_elements(like, n)); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const DeviceWarp warp;
    const law::BlockLayout layout = with_elements(like, unit.n);
    const auto* payload = static_cast<const std::byte*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const auto* scales = reinterpret_cast<const typename Format::Scale*>(payload);
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + layout.codes_offset());
    const std::size_t pieces = schedule::BlockPiece::pieces(layout);
    for (std::size_t p = place.warp(); p < pieces; p += place.warps()) {
      const schedule::BlockPiece piece{layout, p};
      schedule::decode_piece<Format>(warp, layout, piece, words + piece.first_word, scales, weight, out,
                                     aligned_to(out, 16));
    }
  }
};

/// Elements are their lane's for every payload, so nobody waits in between.
template <class Format>
__global__ void decode_blocks_kernel(law::BlockLayout layout, const __grid_constant__ Payloads payloads, float weight,
                                     float* out, bool aligned) {
  const DeviceWarp warp;
  const std::size_t pieces = schedule::BlockPiece::pieces(layout);
  for (std::size_t p = warp_in_grid(); p < pieces; p += warps_in_grid()) {
    schedule::BlockPiece part{layout, p};
    for (std::size_t left = part.count; left > 0; left -= part.count) {
      part.count = left < kAddedAtOnce ? left : kAddedAtOnce;
      for (unsigned i = 0; i < payloads.count; ++i) {
        const auto* scales = reinterpret_cast<const typename Format::Scale*>(payloads.at[i]);
        const auto* words = reinterpret_cast<const std::uint32_t*>(payloads.at[i] + layout.codes_offset());
        schedule::decode_piece<Format>(warp, layout, part, words + part.first_word, scales, weight, out, aligned);
      }
      part.first += part.count;
      part.first_word += part.count * Format::Element::kBits / 32;
    }
  }
}

template <class Format>
void encode_blocks(Queue<Space::cuda> queue, const law::BlockLayout& like, std::span<const Unit> units, bool stochastic,
                   const law::DrawKey& key, std::byte* scratch) {
  unsigned* largest = nullptr;
  if (like.block > schedule::kPiece && !units.empty() && units.front().n > 0) {
    expects(units.size() == 1, "blocks of several pieces are encoded unit by unit");
    const Unit& unit = units.front();
    const law::BlockLayout layout = with_elements(like, unit.n);
    largest = reinterpret_cast<unsigned*>(scratch);
    fill(queue, {scratch, blocks_scratch_bytes(layout)}, 0);
    launch(queue, "largest of blocks", largest_of_blocks<Format>, static_cast<unsigned>(blocks_for_pieces(layout)),
           layout, static_cast<const float*>(unit.from), aligned_to(unit.from, 16), largest);
  }
  if constexpr (Format::kBlock == 0) {
    if (!stochastic && like.block == schedule::kMostHeld * schedule::kWindow)
      return launch_units(queue, "encode blocks", EncodeBlocks<Format, false, schedule::kMostHeld>{like, key, largest},
                          units);
  }
  if (stochastic)
    launch_units(queue, "encode blocks", EncodeBlocks<Format, true>{like, key, largest}, units);
  else
    launch_units(queue, "encode blocks", EncodeBlocks<Format, false>{like, key, largest}, units);
}

template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const law::BlockLayout& like, std::span<const Unit> units,
                       float weight) {
  launch_units(queue, "decode blocks", DecodeBlocks<Format>{like, weight}, units);
}

template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const law::BlockLayout& layout, const Payloads& payloads, float weight,
                       float* out) {
  if (layout.n == 0) return;
  const unsigned grid = blocks_for(schedule::BlockPiece::pieces(layout), kBlockWarps);
  launch(queue, "decode blocks", decode_blocks_kernel<Format>, grid, layout, payloads, weight, out,
         aligned_to(out, 16));
}

#define GT_BLOCK_FORMAT(...)                                                                                         \
  template void encode_blocks<__VA_ARGS__>(Queue<Space::cuda>, const law::BlockLayout&, std::span<const Unit>, bool, \
                                           const law::DrawKey&, std::byte*);                                         \
  template void decode_add_blocks<__VA_ARGS__>(Queue<Space::cuda>, const law::BlockLayout&, std::span<const Unit>,   \
                                               float);                                                               \
  template void decode_add_blocks<__VA_ARGS__>(Queue<Space::cuda>, const law::BlockLayout&, const Payloads&, float,  \
                                               float*)

}  // namespace gradtool::cuda
