// select=chunk and precision=fp16: what the fft codec does to one piece at a time.
#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/fft_pieces.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/half_rows.hpp"
#include "kernels/schedule/fft_select.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Digits;

constexpr unsigned kWarps = kThreads / schedule::kLanes;
constexpr std::size_t kRowTile = 4096;  ///< floats of a row that a block takes

/// The bins of a block's piece, and where its kept ones go.
struct Piece {
  std::size_t first, bins, kept_first;
  std::uint32_t wanted;

  __device__ explicit Piece(const PieceShares& by)
      : first{by.shape.first_bin(blockIdx.x)},
        bins{blockIdx.x < by.shape.chunks ? by.shape.bins_per_chunk() : by.shape.tail_bins()},
        kept_first{std::size_t{blockIdx.x} * by.of_chunk},
        wanted{blockIdx.x < by.shape.chunks ? by.of_chunk : by.of_tail} {}
};

/// Counts one digit of the piece's keys; the first digit finds these as well.
__device__ void count_digit(const Piece& piece, std::uint32_t digit, std::uint32_t prefix, const float* spectrum,
                            std::uint32_t* keys, std::uint32_t* histogram) {
  for (std::uint32_t i = threadIdx.x; i < schedule::kCounters; i += kThreads) histogram[i] = 0;
  __syncthreads();
  for (std::size_t i = threadIdx.x; i < piece.bins; i += kThreads) {
    const std::size_t bin = piece.first + i;
    std::uint32_t key;
    if (digit == 0) {
      const auto pair = reinterpret_cast<const schedule::Pair*>(spectrum)[bin];
      key = schedule::fft_key(pair.re, pair.im);
      keys[bin] = key;
    } else {
      key = keys[bin];
    }
    if (schedule::has_prefix(key, digit, prefix)) atomicAdd(&histogram[schedule::digit_of(key, digit)], 1u);
  }
  __syncthreads();
}

/// A block selects in its piece: three digits, then every warp counts the bins of its own words and writes them behind
/// those of the warps before it. Words at the borders of pieces belong to two blocks, so the bitmap is cleared before.
__global__ void select_pieces_kernel(PieceShares by, const float* spectrum, std::uint32_t* keys, std::uint32_t* bitmap,
                                     float* kept, std::uint32_t* largest) {
  __shared__ std::uint32_t histogram[schedule::kCounters];
  __shared__ Digits cut;
  __shared__ std::uint32_t above_of[kWarps];
  __shared__ std::uint32_t equal_of[kWarps];
  const DeviceWarp warp;
  const std::uint32_t lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t own = threadIdx.x / schedule::kLanes;
  const Piece piece{by};
  if (piece.wanted == 0) return;
  if (threadIdx.x == 0) cut = {0, piece.wanted};
  __syncthreads();
  for (std::uint32_t digit = 0; digit < schedule::kDigits; ++digit) {
    const Digits before = cut;
    count_digit(piece, digit, before.prefix, spectrum, keys, histogram);
    if (own == 0) schedule::find_digit(warp, histogram, digit, before, &cut);
    __syncthreads();
  }
  const Digits found = cut;
  const std::size_t first_word = piece.first / 32;
  const std::size_t words = (piece.first + piece.bins + 31) / 32 - first_word;
  const std::size_t from = first_word + words * own / kWarps;
  const std::size_t to = first_word + words * (own + 1) / kWarps;
  const auto key_at = [&](std::size_t bin, bool& inside) {
    inside = bin >= piece.first && bin < piece.first + piece.bins;
    return inside ? keys[bin] : 0u;
  };
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  for (std::size_t w = from; w < to; ++w) {
    bool inside = false;
    const std::uint32_t key = key_at(32 * w + lane, inside);
    above += schedule::bits_set(__ballot_sync(DeviceWarp::kAll, inside && key > found.prefix));
    equal += schedule::bits_set(__ballot_sync(DeviceWarp::kAll, inside && key == found.prefix));
  }
  if (lane == 0) {
    above_of[own] = above;
    equal_of[own] = equal;
  }
  __syncthreads();
  above = equal = 0;
  for (std::uint32_t w = 0; w < own; ++w) {
    above += above_of[w];
    equal += equal_of[w];
  }
  std::uint32_t most = 0;
  for (std::size_t w = from; w < to; ++w) {
    const std::size_t bin = 32 * w + lane;
    bool inside = false;
    const std::uint32_t key = key_at(bin, inside);
    const bool is_above = inside && key > found.prefix;
    const bool is_equal = inside && key == found.prefix;
    const std::uint32_t all_above = __ballot_sync(DeviceWarp::kAll, is_above);
    const std::uint32_t all_equal = __ballot_sync(DeviceWarp::kAll, is_equal);
    const std::uint32_t ties = equal + schedule::bits_set(all_equal & schedule::lanes_below(lane));
    const bool taken = is_above || (is_equal && ties < found.left);
    const std::uint32_t status = __ballot_sync(DeviceWarp::kAll, taken);
    if (taken) {
      const std::uint32_t stronger = above + schedule::bits_set(all_above & schedule::lanes_below(lane));
      const std::size_t place = piece.kept_first + stronger + (ties < found.left ? ties : found.left);
      const auto pair = reinterpret_cast<const schedule::Pair*>(spectrum)[bin];
      reinterpret_cast<schedule::Pair*>(kept)[place] = pair;
      const std::uint32_t re = law::bits_of(pair.re) & 0x7fffffffu;
      const std::uint32_t im = law::bits_of(pair.im) & 0x7fffffffu;
      most = max(most, max(re, im));
    }
    if (lane == 0 && status != 0) atomicOr(bitmap + w, status);
    above += schedule::bits_set(all_above);
    equal += schedule::bits_set(all_equal);
  }
  most = __reduce_max_sync(DeviceWarp::kAll, most);
  if (lane == 0) atomicMax(largest, most);
}

__global__ void largest_of_rows_kernel(HalfRows rows, std::size_t tiles) {
  const std::size_t row = blockIdx.x / tiles;
  const std::size_t at = row * rows.length;
  const std::size_t from = blockIdx.x % tiles * kRowTile;
  std::uint32_t most = 0;
  for (std::size_t i = from + threadIdx.x; i < min(from + kRowTile, rows.length); i += kThreads)
    most = max(most, at + i < rows.given ? law::bits_of(rows.in[at + i]) & 0x7fffffffu : 0u);
  most = __reduce_max_sync(DeviceWarp::kAll, most);
  if (threadIdx.x % schedule::kLanes == 0) atomicMax(rows.largest + row, most);
}

__global__ void round_rows_kernel(HalfRows rows, std::size_t tiles) {
  const std::size_t row = blockIdx.x / tiles;
  const std::size_t at = row * rows.length;
  const std::size_t from = blockIdx.x % tiles * kRowTile;
  const auto scale = law::HalfScale::of(rows.largest[row], rows.top);
  for (std::size_t i = from + threadIdx.x; i < min(from + kRowTile, rows.length); i += kThreads)
    rows.out[at + i] = at + i < rows.given ? scale.round(rows.in[at + i]) : 0.0f;
}

}  // namespace

void select_pieces(Queue<Space::cuda> queue, const PieceShares& by, const float* spectrum, std::uint32_t* keys,
                   std::uint32_t* bitmap, float* kept, std::uint32_t* largest) {
  fill(queue, {reinterpret_cast<std::byte*>(bitmap), 4 * ((by.shape.bins() + 31) / 32)}, 0);
  launch(queue, "fft select pieces", select_pieces_kernel, static_cast<unsigned>(by.shape.pieces()), by, spectrum, keys,
         bitmap, kept, largest);
}

void round_rows_to_half(Queue<Space::cuda> queue, const HalfRows& rows) {
  if (rows.rows * rows.length == 0) return;
  const std::size_t tiles = (rows.length + kRowTile - 1) / kRowTile;
  fill(queue, {reinterpret_cast<std::byte*>(rows.largest), 4 * rows.rows}, 0);
  launch(queue, "fft largest of rows", largest_of_rows_kernel, static_cast<unsigned>(rows.rows * tiles), rows, tiles);
  launch(queue, "fft round rows", round_rows_kernel, static_cast<unsigned>(rows.rows * tiles), rows, tiles);
}

}  // namespace gradtool::cuda
