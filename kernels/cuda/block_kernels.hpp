#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/blocks.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
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

/// `largest` null: a block is one piece at most, and its largest is found here, while it is in the cache.
template <class Format, bool Stochastic>
__global__ void encode_blocks_kernel(law::BlockLayout layout, const float* gradient, bool aligned, law::DrawKey key,
                                     const unsigned* largest, std::byte* payload) {
  constexpr bool kRoom = 8 % Format::Element::kBits != 0;
  __shared__ __align__(16) std::uint32_t room[kRoom ? kBlockWarps : 1][schedule::kWindow];
  const DeviceWarp warp;
  auto* scales = reinterpret_cast<typename Format::Scale*>(payload);
  auto* words = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
  std::uint32_t* mine = room[kRoom ? threadIdx.x / schedule::kLanes : 0];
  const bool in_window = Format::kBlock != 0 || schedule::in_window(layout.block);
  const std::size_t pieces = schedule::BlockPiece::pieces(layout);
  for (std::size_t p = warp_in_grid(); p < pieces; p += warps_in_grid()) {
    const schedule::BlockPiece piece{layout, p};
    if (in_window) {
      schedule::encode_in_windows<Format, Stochastic>(warp, layout, piece, gradient, aligned, key, scales, mine,
                                                      words + piece.first_word);
    } else {
      const std::uint32_t most = largest != nullptr
                                     ? largest[piece.block]
                                     : schedule::largest_pattern(warp, gradient + piece.first, piece.count, aligned);
      schedule::encode_piece<Format, Stochastic>(warp, piece, gradient, aligned, most, key, scales, mine,
                                                 words + piece.first_word);
    }
  }
  if (warp_in_grid() == 0) schedule::clear_padding<Format>(warp, layout, payload);
}

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
void encode_blocks(Queue<Space::cuda> queue, const law::BlockLayout& layout, const float* gradient, bool stochastic,
                   const law::DrawKey& key, std::byte* payload, std::byte* scratch) {
  if (layout.n == 0) return;
  const bool aligned = aligned_to(gradient, 16);
  const unsigned grid = blocks_for(schedule::BlockPiece::pieces(layout), kBlockWarps);
  unsigned* largest = nullptr;
  if (const std::size_t bytes = blocks_scratch_bytes(layout); bytes > 0) {
    largest = reinterpret_cast<unsigned*>(scratch);
    fill(queue, {scratch, bytes}, 0);
    launch(queue, "largest of blocks", largest_of_blocks<Format>, grid, layout, gradient, aligned, largest);
  }
  const auto kernel = stochastic ? encode_blocks_kernel<Format, true> : encode_blocks_kernel<Format, false>;
  launch(queue, "encode blocks", kernel, grid, layout, gradient, aligned, key, largest, payload);
}

template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const law::BlockLayout& layout, const Payloads& payloads, float weight,
                       float* out) {
  if (layout.n == 0) return;
  const unsigned grid = blocks_for(schedule::BlockPiece::pieces(layout), kBlockWarps);
  launch(queue, "decode blocks", decode_blocks_kernel<Format>, grid, layout, payloads, weight, out,
         aligned_to(out, 16));
}

#define GT_BLOCK_FORMAT(...)                                                                                        \
  template void encode_blocks<__VA_ARGS__>(Queue<Space::cuda>, const law::BlockLayout&, const float*, bool,         \
                                           const law::DrawKey&, std::byte*, std::byte*);                            \
  template void decode_add_blocks<__VA_ARGS__>(Queue<Space::cuda>, const law::BlockLayout&, const Payloads&, float, \
                                               float*)

}  // namespace gradtool::cuda
