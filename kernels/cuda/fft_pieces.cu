#include <cuda_runtime.h>

#include "kernels/cuda/fft_largest.hpp"
#include "kernels/cuda/fft_select.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/law/fft_power.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kAhead = 8;  ///< bins that a thread loads before it looks at them

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

/// What is known of a piece's threshold: its digits so far, and how many bins that begin with them are wanted.
struct Cut {
  std::uint32_t prefix, left;
};

/// The next digit: `Width` bits from `Shift` on.
template <std::uint32_t Shift, std::uint32_t Width>
__device__ void find_next(const Piece& piece, const schedule::Pair* pairs, std::uint32_t* counters, Cut& cut) {
  constexpr std::uint32_t kCounters = 1u << Width;
  clear_counters(counters, kCounters);
  const Cut before = cut;
  for (std::size_t first = threadIdx.x; first < piece.bins; first += kAhead * kThreads) {
    schedule::Pair pair[kAhead];
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const std::size_t i = first + j * kThreads;
      pair[j] = i < piece.bins ? pairs[piece.first + i] : schedule::Pair{0.0f, 0.0f};  // no counter counts zeros
    }
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const std::uint32_t power = law::power_pattern(pair[j].re, pair[j].im);
      const std::uint32_t digit = power >> Shift & (kCounters - 1);
      if (power >> Shift >> Width == before.prefix && digit != 0) atomicAdd(&counters[digit], 1u);
    }
  }
  __syncthreads();
  find_digit<kCounters>(counters, before.left, [&](std::uint32_t digit, std::uint32_t left) {
    cut = {before.prefix << Width | digit, left};
  });
  __syncthreads();
}

/// visit(w, inside, pair) by a warp for its words w of the bitmap: a lane's bin, if that is in the piece.
template <class Visit>
__device__ void each_word(const Piece& piece, const schedule::Pair* pairs, std::size_t from, std::size_t to,
                          const Visit& visit) {
  const std::uint32_t lane = threadIdx.x % schedule::kLanes;
  for (std::size_t first = from; first < to; first += kAhead) {
    schedule::Pair pair[kAhead];
    bool inside[kAhead];
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const std::size_t bin = 32 * (first + j) + lane;
      inside[j] = first + j < to && bin >= piece.first && bin < piece.first + piece.bins;
      pair[j] = inside[j] ? pairs[bin] : schedule::Pair{0.0f, 0.0f};
    }
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      if (first + j < to) visit(first + j, inside[j], pair[j]);
    }
  }
}

/// A block selects in its piece: three digits, then every warp counts the bins of its own words and writes them behind
/// those of the warps before it. Words at the borders of pieces belong to two blocks, so the bitmap is cleared before.
__global__ void pieces_kernel(PieceShares by, BinSelection at) {
  __shared__ std::uint32_t counters[SelectState::kCounters];
  __shared__ Cut cut;
  __shared__ std::uint32_t above_of[kBlockWarpCount];
  __shared__ std::uint32_t equal_of[kBlockWarpCount];
  const std::uint32_t lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t own = threadIdx.x / schedule::kLanes;
  const auto* pairs = reinterpret_cast<const schedule::Pair*>(at.spectrum);
  const Piece piece{by};
  if (piece.wanted == 0) return;
  if (threadIdx.x == 0) cut = {0, piece.wanted};
  __syncthreads();
  find_next<kTopShift, 31 - kTopShift>(piece, pairs, counters, cut);
  find_next<kNextShift, kTopShift - kNextShift>(piece, pairs, counters, cut);
  find_next<0, kNextShift>(piece, pairs, counters, cut);
  const Cut found = cut;
  const std::size_t first_word = piece.first / 32;
  const std::size_t words = (piece.first + piece.bins + 31) / 32 - first_word;
  const std::size_t from = first_word + words * own / kBlockWarpCount;
  const std::size_t to = first_word + words * (own + 1) / kBlockWarpCount;
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  each_word(piece, pairs, from, to, [&](std::size_t, bool inside, const schedule::Pair& pair) {
    const std::uint32_t power = law::power_pattern(pair.re, pair.im);
    above += inside && power > found.prefix ? 1u : 0u;
    equal += inside && power == found.prefix ? 1u : 0u;
  });
  above = __reduce_add_sync(kAllLanes, above);
  equal = __reduce_add_sync(kAllLanes, equal);
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
  each_word(piece, pairs, from, to, [&](std::size_t w, bool inside, const schedule::Pair& pair) {
    const std::uint32_t power = law::power_pattern(pair.re, pair.im);
    const bool is_above = inside && power > found.prefix;
    const bool is_equal = inside && power == found.prefix;
    const std::uint32_t all_above = __ballot_sync(kAllLanes, is_above);
    const std::uint32_t all_equal = __ballot_sync(kAllLanes, is_equal);
    const std::uint32_t ties = equal + schedule::bits_set(all_equal & schedule::lanes_below(lane));
    const bool taken = is_above || (is_equal && ties < found.left);
    const std::uint32_t status = __ballot_sync(kAllLanes, taken);
    if (taken) {
      const std::uint32_t stronger = above + schedule::bits_set(all_above & schedule::lanes_below(lane));
      const std::size_t place = piece.kept_first + stronger + (ties < found.left ? ties : found.left);
      reinterpret_cast<schedule::Pair*>(at.kept)[place] = pair;
      most = max(most, largest_of(pair));
    }
    if (lane == 0 && status != 0) atomicOr(at.bitmap + w, status);
    above += schedule::bits_set(all_above);
    equal += schedule::bits_set(all_equal);
  });
  block_largest(most, at.largest);
}

}  // namespace

void keep_strongest_of_pieces(Queue<Space::cuda> queue, const BinSelection& of, const PieceShares& shares) {
  fill(queue, {reinterpret_cast<std::byte*>(of.bitmap), 4 * ((of.bins + 31) / 32)}, 0);
  launch(queue, "fft pieces", pieces_kernel, static_cast<unsigned>(shares.shape.pieces()), shares, of);
}

}  // namespace gradtool::cuda
