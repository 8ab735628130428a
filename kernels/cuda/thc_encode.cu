#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/hadamard.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/thc.hpp"
#include "kernels/cuda/thc_block.hpp"

namespace gradtool::cuda {
namespace {

/// Of a warp in shared memory, besides the room of its transforms.
struct alignas(16) CodeRoom {
  Four<std::uint32_t> draws[32];  ///< of 128 elements
  std::uint8_t codes[law::kThcBlock];
};

/// Codes of a block's elements, which lie in `x`, and in x, still in steps of the table, what they do not say. A loop
/// that is not unrolled, over shared memory: in registers it would take most of them.
template <std::uint32_t Bits>
__device__ void quantise(const law::ThcSteps<Bits>& steps, float top, float factor, const law::DrawKey& key,
                         std::size_t first, unsigned size, float* x, CodeRoom& room) {
  const unsigned lane = lane_in_warp();
  const float middle = 0.5f * top;
  const auto* draws = reinterpret_cast<const std::uint32_t*>(room.draws);
#pragma unroll 1
  for (unsigned from = 0; from < law::kThcBlock; from += 128) {
    const law::Draws own = law::draw4(key, (first + from) / 4 + lane);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) room.draws[lane].value[k] = own.bits[k];
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const unsigned at = from + 32 * k + lane;
      const float place = x[at] * factor + middle;
      const law::ThcCode one = law::thc_encode(steps, law::thc_clamp(place, top), law::uniform(draws[32 * k + lane]));
      x[at] = place - one.value;
      room.codes[at] = static_cast<std::uint8_t>(at < size ? one.code : 0u);
    }
  }
  __syncwarp();
}

/// A lane's group of 32 codes, a byte each, as the words of its group.
template <std::uint32_t Bits>
__device__ void write_group(const std::uint8_t* codes, std::uint32_t* words) {
  const auto* fours = reinterpret_cast<const std::uint32_t*>(codes);
  std::uint32_t word[Bits]{};
#pragma unroll
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint32_t code = fours[i / 4] >> (8 * (i % 4)) & 0xffu;
    word[i * Bits / 32] |= code << (i * Bits % 32);
    if (i * Bits % 32 + Bits > 32) word[i * Bits / 32 + 1] |= code >> (32 - i * Bits % 32);
  }
#pragma unroll
  for (std::uint32_t w = 0; w < Bits; ++w) words[w] = word[w];
}

/// A warp for each block, whose elements stay in registers from the gradient to the residual.
template <std::uint32_t Bits>
__global__ void __launch_bounds__(kThcThreads, 6)
    encode_kernel(law::ThcShape shape, const __grid_constant__ law::ThcTable<Bits> table, const float* u,
                  const float* norms, const std::uint32_t* signs, law::DrawKey key, std::uint32_t* codes,
                  float* residual) {
  alignas(16) __shared__ float rooms[kThcWarps][kHadamardRoom];
  __shared__ CodeRoom code_rooms[kThcWarps];
  __shared__ law::ThcSteps<Bits> of_table;
  static_assert(kThcThreads >= law::ThcSteps<Bits>::kMost);
  of_table.set(threadIdx.x, table);
  __syncthreads();
  float* room = rooms[threadIdx.x / schedule::kLanes];
  CodeRoom& codes_here = code_rooms[threadIdx.x / schedule::kLanes];
  const unsigned lane = lane_in_warp();
  const double steps = law::thc_steps_per_unit(shape, table, law::thc_agreed_norm(norms, shape.ranks));
  for (std::size_t block = warp_in_grid(); block < shape.blocks(); block += warps_in_grid()) {
    const std::size_t first = law::kThcBlock * block;
    const auto size = static_cast<unsigned>(shape.block_size(block));
    const std::size_t left = shape.n - first;
    const unsigned here = left < size ? static_cast<unsigned>(left) : size;
    const std::size_t group = first / law::kPackGroup;
    const std::uint32_t flips = group + lane < shape.groups() ? signs[group + lane] : 0;
    const law::ThcFactors factors = law::thc_factors(steps, size);
    float x[32];
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = 32 * k + lane < here ? u[first + 32 * k + lane] : 0.0f;
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_all(flips, k) >> lane;
      if (32 * k + lane < here) x[k] = law::thc_turned(x[k], 1.0f, flip);
    }
    rotate(x, size, room);
    __syncwarp();  // the room has been read
#pragma unroll
    for (int k = 0; k < 32; ++k) room[32 * k + lane] = x[k];
    quantise(of_table, table.top, factors.encode, key, first, size, room, codes_here);
    if (group + lane < shape.groups()) write_group<Bits>(codes_here.codes + 32 * lane, codes + Bits * (group + lane));
    if (residual == nullptr) continue;
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = room[32 * k + lane];
    rotate(x, size, room);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_all(flips, k) >> lane;
      if (32 * k + lane < here) residual[first + 32 * k + lane] = law::thc_turned(x[k], factors.decode, flip);
    }
  }
}

}  // namespace

template <std::uint32_t Bits>
void thc_encode(Queue<Space::cuda> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const float* u,
                const float* norms, const std::uint32_t* signs, const law::DrawKey& key, std::uint32_t* codes,
                float* residual) {
  if (shape.n == 0) return;
  expects(table.top < static_cast<float>(law::ThcSteps<Bits>::kMost), "thc: a table of more than 64 steps");
  launch(queue, "thc encode", encode_kernel<Bits>, {blocks_for(shape.blocks(), kThcWarps), kThcThreads}, shape, table,
         u, norms, signs, key, codes, residual);
}

#define GT_THC(BITS)                                                                                                 \
  template void thc_encode<BITS>(Queue<Space::cuda>, const law::ThcShape&, const law::ThcTable<BITS>&, const float*, \
                                 const float*, const std::uint32_t*, const law::DrawKey&, std::uint32_t*, float*)

GT_THC(3);
GT_THC(4);

}  // namespace gradtool::cuda
