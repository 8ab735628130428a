#include "kernels/cuda/thc.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/hadamard.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ordered_sums.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kBlock = 128;
constexpr unsigned kWarps = kBlock / schedule::kLanes;

__global__ void signs_kernel(law::DrawKey key, std::uint32_t* signs, std::size_t count) {
  for (std::size_t i = thread_in_grid(); 4 * i < count; i += threads_in_grid()) {
    const law::Draws draws = law::draw4(key, i);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (4 * i + k < count) signs[4 * i + k] = draws.bits[k];
    }
  }
}

__global__ void squares_kernel(const float* u, std::size_t n, double* sums) {
  alignas(16) __shared__ float room[kWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t c = warp_in_grid(); c * law::kSumChunk < n; c += warps_in_grid()) {
    const std::size_t left = n - c * law::kSumChunk;
    const auto count = static_cast<int>(left < law::kSumChunk ? left : law::kSumChunk);
    double sum = 0.0;
    each_tile(u + c * law::kSumChunk, count, room[threadIdx.x / schedule::kLanes], [&](int /*first*/, const float* x) {
#pragma unroll 8
      for (unsigned i = lane % law::kSumLanes; i < kTile; i += law::kSumLanes)
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    });
    sum = folded(sum);
    if (lane == 0) sums[c] = sum;
  }
}

__global__ void norm_kernel(const double* sums, std::size_t chunks, float* norm) {
  __shared__ SumRoom<1> room;
  double sum[1];
  sums_of_chunks<1>(sums, 0, 0, chunks, room, sum);
  if (threadIdx.x == 0) *norm = law::one_nan(static_cast<float>(sqrt(sum[0])));
}

/// Word k of a block's 32, which lie one in every lane.
__device__ std::uint32_t word_of_all(std::uint32_t word, int k) {
  return __shfl_sync(DeviceWarp::kAll, word, k);
}

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
__global__ void __launch_bounds__(kBlock, 6)
    encode_kernel(law::ThcShape shape, const __grid_constant__ law::ThcTable<Bits> table, const float* u,
                  const float* norms, const std::uint32_t* signs, law::DrawKey key, std::uint32_t* codes,
                  float* residual) {
  alignas(16) __shared__ float rooms[kWarps][kHadamardRoom];
  __shared__ CodeRoom code_rooms[kWarps];
  __shared__ law::ThcSteps<Bits> of_table;
  static_assert(kBlock >= law::ThcSteps<Bits>::kMost);
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

template <std::uint32_t Bits, class Sum>
__global__ void decode_kernel(law::ThcShape shape, law::ThcTable<Bits> table, const Sum* sums, const float* norms,
                              const std::uint32_t* signs, float* gradient) {
  alignas(16) __shared__ float rooms[kWarps][kHadamardRoom];
  const unsigned lane = lane_in_warp();
  const double steps = law::thc_steps_per_unit(shape, table, law::thc_agreed_norm(norms, shape.ranks));
  for (std::size_t block = warp_in_grid(); block < shape.blocks(); block += warps_in_grid()) {
    const std::size_t first = law::kThcBlock * block;
    const auto size = static_cast<unsigned>(shape.block_size(block));
    const std::size_t group = first / law::kPackGroup;
    const std::uint32_t flips = group + lane < shape.groups() ? signs[group + lane] : 0;
    const law::ThcMean mean = law::thc_mean(shape, table, steps, size);
    float x[32];
#pragma unroll
    for (int k = 0; k < 32; ++k)
      x[k] = 32 * k + lane < size ? static_cast<float>(sums[first + 32 * k + lane]) : mean.middle;
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = (x[k] - mean.middle) * mean.factor;
    rotate(x, size, rooms[threadIdx.x / schedule::kLanes]);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_all(flips, k) >> lane;
      if (first + 32 * k + lane < shape.n) gradient[first + 32 * k + lane] = law::thc_turned(x[k], 1.0f, flip);
    }
  }
}

}  // namespace

void thc_signs(Queue<Space::cuda> queue, const law::DrawKey& key, View<std::uint32_t, Space::cuda> signs) {
  if (signs.empty()) return;
  launch(queue, "thc signs", signs_kernel, blocks_for(signs.size(), 4 * kThreads), key, signs.data(), signs.size());
}

void thc_norm(Queue<Space::cuda> queue, View<const float, Space::cuda> u, float* norm, std::byte* scratch) {
  auto* sums = reinterpret_cast<double*>(scratch);
  const std::size_t chunks = (u.size() + law::kSumChunk - 1) / law::kSumChunk;
  if (chunks > 0) {
    launch(queue, "thc squares", squares_kernel, {blocks_for(chunks, kWarps), kBlock}, u.data(), u.size(), sums);
  }
  launch(queue, "thc norm", norm_kernel, 1, sums, chunks, norm);
}

template <std::uint32_t Bits>
void thc_encode(Queue<Space::cuda> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const float* u,
                const float* norms, const std::uint32_t* signs, const law::DrawKey& key, std::uint32_t* codes,
                float* residual) {
  if (shape.n == 0) return;
  expects(table.top < static_cast<float>(law::ThcSteps<Bits>::kMost), "thc: a table of more than 64 steps");
  launch(queue, "thc encode", encode_kernel<Bits>, {blocks_for(shape.blocks(), kWarps), kBlock}, shape, table, u, norms,
         signs, key, codes, residual);
}

template <std::uint32_t Bits, class Sum>
void thc_add_codes(Queue<Space::cuda> queue, const law::ThcTable<Bits>& table, const std::uint32_t* codes,
                   std::size_t groups, bool add, Sum* sums) {
  if (groups == 0) return;
  launch(queue, "thc sum", add_kernel<Bits, Sum>, {blocks_for(groups, kBlock), kBlock}, table, codes, groups, add,
         sums);
}

template <std::uint32_t Bits, class Sum>
void thc_decode(Queue<Space::cuda> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const Sum* sums,
                const float* norms, const std::uint32_t* signs, float* gradient) {
  if (shape.n == 0) return;
  launch(queue, "thc decode", decode_kernel<Bits, Sum>, {blocks_for(shape.blocks(), kWarps), kBlock}, shape, table,
         sums, norms, signs, gradient);
}

#define GT_THC_SUM(BITS, SUM)                                                                                  \
  template void thc_add_codes<BITS, SUM>(Queue<Space::cuda>, const law::ThcTable<BITS>&, const std::uint32_t*, \
                                         std::size_t, bool, SUM*);                                             \
  template void thc_decode<BITS, SUM>(Queue<Space::cuda>, const law::ThcShape&, const law::ThcTable<BITS>&,    \
                                      const SUM*, const float*, const std::uint32_t*, float*)
#define GT_THC(BITS)                                                                                                 \
  template void thc_encode<BITS>(Queue<Space::cuda>, const law::ThcShape&, const law::ThcTable<BITS>&, const float*, \
                                 const float*, const std::uint32_t*, const law::DrawKey&, std::uint32_t*, float*);   \
  GT_THC_SUM(BITS, std::uint8_t);                                                                                    \
  GT_THC_SUM(BITS, std::uint16_t)

GT_THC(3);
GT_THC(4);

}  // namespace gradtool::cuda
