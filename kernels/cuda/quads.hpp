#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/tensor_pieces.hpp"

/// Consecutive elements by one warp in accesses of 16 bytes, wherever they start: a "lead" of 0 to 3 elements stands
/// before the first so that element -lead lies at a 16-byte border. For .cu files.
namespace gradtool::cuda {

using schedule::Four;

/// Elements between the 16-byte border at or before x, and x.
__device__ inline int lead_of(const float* x) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(x) / 4 % 4);
}

/// Elements at..at+3 of x[0 .. count), zeros where there are none. `whole`: x + at is at a 16-byte border.
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

/// Quads that a lane has in flight.
inline constexpr int kQuads = 4;
/// Elements that a warp takes at a time.
inline constexpr int kTile = 4 * kQuads * static_cast<int>(schedule::kLanes);

/// add(at, quad) for every quad of out[0 .. count), which may change it; `at` is -3 at least. Everything is read once
/// and written once.
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

/// The four codes of `Bits` bits (1, 2 or 4) of elements at..at+3 of `count`, whose first lies at the start of `words`,
/// one behind the other from bit 0; what is not there is anything. Nothing behind the last word is read.
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

/// Room that each_tile needs in shared memory for a warp, in floats: 16-byte aligned.
inline constexpr int kTileRoom = kTile + 4;

/// body(first, tile) for tiles of kTile elements of x[0 .. count): tile[i], in shared memory, is x[first + i], or 0
/// behind the end. The next tile is on its way meanwhile. By a whole warp, with `room` of its own.
template <class Body>
__device__ void each_tile(const float* x, int count, float* room, const Body& body) {
  const int lane = static_cast<int>(lane_in_warp());
  const int lead = lead_of(x);
  Four<float> quad[kQuads];
  Four<float> extra{};  // what a lead pushes out at the end; lane 0's
  const auto load = [&](int first) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quad[q] = load_quad(x, first - lead + 4 * (lane + 32 * q), count);
    if (lane == 0 && lead != 0) extra = load_quad(x, first - lead + kTile, count);
  };
  load(0);
  for (int first = 0; first < count; first += kTile) {
    __syncwarp();  // the room has been read
    auto* to = reinterpret_cast<Four<float>*>(room);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) to[lane + 32 * q] = quad[q];
    if (lane == 0) to[kTile / 4] = extra;
    if (first + kTile < count) load(first + kTile);
    __syncwarp();
    body(first, static_cast<const float*>(room + lead));
  }
}

/// A warp's share of a piece where chunks do not matter: few tensors fill a GPU too. Whole words of codes of 1, 2 or
/// 8/5 bits.
inline constexpr int kShare = static_cast<int>(law::kSumChunk / 4);
static_assert(kShare % 32 == 0 && kShare % 20 == 0);

/// share(first, count, piece, offset) for the shares of all pieces that fall to this warp: `count` elements from
/// `first`, which is `offset` elements into its piece.
template <class Share>
__device__ void each_share(const TensorTable& table, const Share& share) {
  constexpr std::size_t kShares = law::kSumChunk / kShare;
  for (std::size_t s = warp_in_grid(); s < kShares * table.pieces; s += warps_in_grid()) {
    const TensorPiece piece = table.piece[s / kShares];
    const int offset = static_cast<int>(s % kShares) * kShare;
    const int left = static_cast<int>(piece.count) - offset;
    if (left > 0) share(piece.first + offset, left < kShare ? left : kShare, piece, offset);
  }
}

}  // namespace gradtool::cuda
