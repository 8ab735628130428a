#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/warp.hpp"

/// Consecutive elements by one warp in accesses of 16 bytes ("quads"), wherever the elements start: the "lead" is the 0
/// to 3 elements between the 16-byte border at or before the first element, and that element. For .cu files.
namespace gradtool::cuda {

/// The lead of x.
__device__ inline int lead_of(const float* x) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(x) / 4 % 4);
}

/// Elements at..at+3 of x[0 .. count), zeros where there are none. `whole` says that x + at is at a 16-byte border.
__device__ inline Four<float> load_quad(const float* x, int at, int count, bool whole = true) {
  if (whole && at >= 0 && at + 4 <= count) return *reinterpret_cast<const Four<float>*>(x + at);
  Four<float> quad{};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (at + k >= 0 && at + k < count) quad.value[k] = x[at + k];
  }
  return quad;
}

/// x[at + k] := quad[k] as far as x[0 .. count) goes; x + at is at a 16-byte border.
__device__ inline void store_quad(const Four<float>& quad, float* x, int at, int count) {
  if (at >= 0 && at + 4 <= count) {
    *reinterpret_cast<Four<float>*>(x + at) = quad;
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (at + k >= 0 && at + k < count) x[at + k] = quad.value[k];
  }
}

/// Quads that a lane loads before it uses the first of them.
inline constexpr int kQuads = 4;
/// Elements that a warp works on at a time.
inline constexpr int kTile = 4 * kQuads * static_cast<int>(kWarpSize);

/// Calls add(at, quad) for every quad of out[0 .. count), which may change the quad; `at`, the index of its first
/// element, is -3 at least. Everything is read once and written once.
template <class Add>
__device__ void update_quads(float* out, int count, const Add& add) {
  const int lead = lead_of(out);
  for (int tile = 4 * static_cast<int>(lane_in_warp()) - lead; tile < count; tile += kTile) {
    Four<float> quad[kQuads];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quad[q] = load_quad(out, tile + 128 * q, count);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (tile + 128 * q < count) add(tile + 128 * q, quad[q]);
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) store_quad(quad[q], out, tile + 128 * q, count);
  }
}

/// The codes of `Bits` bits (1, 2 or 4) of elements at..at+3 of `count`, one behind the other from bit 0. The codes of
/// element 0 are at the start of `words`. Codes of absent elements are arbitrary; no word behind the last one is read.
template <unsigned Bits>
__device__ unsigned four_codes(const std::uint32_t* words, int at, int count) {
  const int bit = at * static_cast<int>(Bits);
  const int word = bit >> 5;
  const int available = (count * static_cast<int>(Bits) + 31) / 32;
  std::uint64_t two = word >= 0 && word < available ? words[word] : 0u;
  if ((bit & 31) > 32 - 4 * static_cast<int>(Bits) && word + 1 < available)
    two |= static_cast<std::uint64_t>(words[word + 1]) << 32;
  return static_cast<unsigned>(two >> (bit & 31)) & ((1u << (4 * Bits)) - 1u);
}

/// Floats of 16-byte aligned shared memory that each_tile needs for a warp.
inline constexpr int kTileRoom = kTile + 4;

/// Calls body(first, tile) for tiles of kTile elements of x[0 .. count): tile[i], in shared memory, is x[first + i], or
/// 0 behind the end. The next tile is loaded meanwhile. By a whole warp, with `room` of its own.
template <class Body>
__device__ void each_tile(const float* x, int count, float* room, const Body& body) {
  const int lane = static_cast<int>(lane_in_warp());
  const int lead = lead_of(x);
  Four<float> quad[kQuads];
  Four<float> extra{};  // lane 0's: the elements that a lead pushes behind the last whole quad of a tile
  const auto load = [&](int first) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quad[q] = load_quad(x, first - lead + 4 * (lane + 32 * q), count);
    if (lane == 0 && lead != 0) extra = load_quad(x, first - lead + kTile, count);
  };
  load(0);
  for (int first = 0; first < count; first += kTile) {
    __syncwarp();  // All lanes have read the room.
    auto* to = reinterpret_cast<Four<float>*>(room);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) to[lane + 32 * q] = quad[q];
    if (lane == 0) to[kTile / 4] = extra;
    if (first + kTile < count) load(first + kTile);
    __syncwarp();
    body(first, static_cast<const float*>(room + lead));
  }
}

/// Writes the sign words of a tile of each_tile that starts with element `first` of `count`; the words of all elements
/// start at `words`. A bit is set where an element is below zero. Returns the word that this lane wrote, 0 where it
/// wrote none. By a whole warp.
__device__ inline std::uint32_t write_negatives(const float* tile, int first, int count, std::uint32_t* words) {
  constexpr int kWords = kTile / 32;
  const int lane = static_cast<int>(lane_in_warp());
  std::uint32_t mine = 0;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const std::uint32_t word = __ballot_sync(kAllLanes, tile[32 * w + lane] < 0.0f ? 1 : 0);
    if (lane == w) mine = word;
  }
  if (lane < kWords && first + 32 * lane < count) words[first / 32 + lane] = mine;
  return mine;
}

}  // namespace gradtool::cuda
