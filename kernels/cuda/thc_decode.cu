#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/hadamard.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/thc.hpp"
#include "kernels/cuda/thc_block.hpp"

namespace gradtool::cuda {
namespace {

/// A thread for each group. Sums lie several in a word; they do not overflow, so words add.
template <std::uint32_t Bits, class Sum>
__global__ void add_kernel(law::ThcTable<Bits> table, const std::uint32_t* codes, std::size_t groups, bool add,
                           Sum* sums) {
  constexpr unsigned kInWord = 4 / sizeof(Sum);
  constexpr unsigned kFours = 32 / kInWord / 4;
  __shared__ std::uint32_t values[law::ThcTable<Bits>::kLevels];
#pragma unroll
  for (unsigned q = 0; q < law::ThcTable<Bits>::kLevels; ++q) {
    if (threadIdx.x == q) values[q] = static_cast<std::uint32_t>(table.value[q]);
  }
  __syncthreads();
  for (std::size_t g = thread_in_grid(); g < groups; g += threads_in_grid()) {
    std::uint32_t word[Bits];
#pragma unroll
    for (std::uint32_t w = 0; w < Bits; ++w) word[w] = codes[Bits * g + w];
    auto* to = reinterpret_cast<Four<std::uint32_t>*>(sums + law::kPackGroup * g);
#pragma unroll
    for (unsigned f = 0; f < kFours; ++f) {
      Four<std::uint32_t> four{};
      if (add) four = to[f];
#pragma unroll
      for (unsigned i = 0; i < 4 * kInWord; ++i) {
        const unsigned bit = (4 * kInWord * f + i) * Bits;
        std::uint32_t code = word[bit / 32] >> (bit % 32);
        if (bit % 32 + Bits > 32) code |= word[bit / 32 + 1] << (32 - bit % 32);
        four.value[i / kInWord] += values[code & (law::ThcTable<Bits>::kLevels - 1)]
                                   << (8 * sizeof(Sum) * (i % kInWord));
      }
      to[f] = four;
    }
  }
}

/// Of a warp in shared memory: a block's sums as they arrive, then what its rotation needs.
template <class Sum>
union alignas(16) DecodeRoom {
  Four<std::uint32_t> fours[law::kThcBlock * sizeof(Sum) / 16];
  Sum sums[law::kThcBlock];
  float rotation[kHadamardRoom];
};

/// The sums of a block of `size` elements, in whole groups, 16 bytes a lane at a time.
template <class Sum>
__device__ void stage(const Sum* sums, unsigned size, DecodeRoom<Sum>& room) {
  constexpr unsigned kInFour = 16 / sizeof(Sum);
  const auto* from = reinterpret_cast<const Four<std::uint32_t>*>(sums);
  __syncwarp();  // the room has been read
#pragma unroll
  for (unsigned i = 0; i < law::kThcBlock / kInFour; i += schedule::kLanes) {
    if ((i + lane_in_warp()) * kInFour < size) room.fours[i + lane_in_warp()] = from[i + lane_in_warp()];
  }
  __syncwarp();
}

template <std::uint32_t Bits, class Sum>
__global__ void decode_kernel(law::ThcShape shape, law::ThcTable<Bits> table, const Sum* sums, const float* norms,
                              const std::uint32_t* signs, float* gradient) {
  __shared__ DecodeRoom<Sum> rooms[kThcWarps];
  DecodeRoom<Sum>& room = rooms[threadIdx.x / schedule::kLanes];
  const unsigned lane = lane_in_warp();
  const double steps = law::thc_steps_per_unit(shape, table, law::thc_agreed_norm(norms, shape.ranks));
  for (std::size_t block = warp_in_grid(); block < shape.blocks(); block += warps_in_grid()) {
    const std::size_t first = law::kThcBlock * block;
    const auto size = static_cast<unsigned>(shape.block_size(block));
    const std::size_t group = first / law::kPackGroup;
    const std::uint32_t flips = group + lane < shape.groups() ? signs[group + lane] : 0;
    const law::ThcMean mean = law::thc_mean(shape, table, steps, size);
    stage(sums + first, size, room);
    float x[32];
#pragma unroll
    for (int k = 0; k < 32; ++k)
      x[k] = 32 * k + lane < size ? static_cast<float>(room.sums[32 * k + lane]) : mean.middle;
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = (x[k] - mean.middle) * mean.factor;
    rotate(x, size, room.rotation);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_all(flips, k) >> lane;
      if (first + 32 * k + lane < shape.n) gradient[first + 32 * k + lane] = law::thc_turned(x[k], 1.0f, flip);
    }
  }
}

}  // namespace

template <std::uint32_t Bits, class Sum>
void thc_add_codes(Queue<Space::cuda> queue, const law::ThcTable<Bits>& table, const std::uint32_t* codes,
                   std::size_t groups, bool add, Sum* sums) {
  if (groups == 0) return;
  launch(queue, "thc sum", add_kernel<Bits, Sum>, {blocks_for(groups, kThcThreads), kThcThreads}, table, codes, groups,
         add, sums);
}

template <std::uint32_t Bits, class Sum>
void thc_decode(Queue<Space::cuda> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const Sum* sums,
                const float* norms, const std::uint32_t* signs, float* gradient) {
  if (shape.n == 0) return;
  launch(queue, "thc decode", decode_kernel<Bits, Sum>, {blocks_for(shape.blocks(), kThcWarps), kThcThreads}, shape,
         table, sums, norms, signs, gradient);
}

#define GT_THC(BITS, SUM)                                                                                      \
  template void thc_add_codes<BITS, SUM>(Queue<Space::cuda>, const law::ThcTable<BITS>&, const std::uint32_t*, \
                                         std::size_t, bool, SUM*);                                             \
  template void thc_decode<BITS, SUM>(Queue<Space::cuda>, const law::ThcShape&, const law::ThcTable<BITS>&,    \
                                      const SUM*, const float*, const std::uint32_t*, float*)

GT_THC(3, std::uint8_t);
GT_THC(3, std::uint16_t);
GT_THC(4, std::uint8_t);
GT_THC(4, std::uint16_t);

}  // namespace gradtool::cuda
