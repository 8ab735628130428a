#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/elias_codes.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/sparse.hpp"
#include "kernels/cuda/sparse_units.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/law/elias.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kEach = 4;   // positions that a thread codes
constexpr std::uint32_t kHalo = 32;  // those behind a chunk whose codes may start in its last word: a bit at least each
constexpr std::uint32_t kChunk = kEach * kThreads - kHalo;
constexpr std::uint32_t kChunkWords = (kEach * kThreads * law::kEliasLongest + 31) / 32 + 3;

// A payload that is the end of a larger one is aligned to 4 bytes only.
__device__ void write_size(std::byte* to, std::uint64_t bytes) {
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  words[0] = static_cast<std::uint32_t>(bytes);
  words[1] = static_cast<std::uint32_t>(bytes >> 32);
}
__device__ void write_header(std::byte* to, const SparseHeader& header) {
  write_size(to, header.bytes);
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  words[2] = header.count;
  words[3] = header.code;
}

__device__ std::uint32_t gap_at(const std::uint32_t* positions, std::size_t i) {
  return i == 0 ? positions[0] + 1 : positions[i] - positions[i - 1];
}

/// bits[chunk] := the bits of the codes of a chunk's gaps; the last one closes the row.
__global__ void elias_bits_kernel(const std::uint32_t* positions, const std::uint32_t* count, std::size_t chunks,
                                  std::uint64_t* bits) {
  const std::size_t k = *count;
  for (std::size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    std::uint32_t own = 0;
    for (std::size_t i = chunk * kChunk + threadIdx.x; i < chunk * kChunk + kChunk && i < k; i += kThreads)
      own += law::elias_delta_bits(gap_at(positions, i));
    std::uint32_t total = 0;
    block_sum_through(own, total);
    if (threadIdx.x == 0) bits[chunk] = total;
  }
  if (thread_in_grid() == 0) bits[chunks] = 0;
}

/// 32 words of a bitmap by a warp: it looks for the first position that they have, 32 steps of a search at a time.
__device__ void write_bitmap(const std::uint32_t* positions, std::size_t k, std::size_t n, std::uint32_t* room,
                             std::uint32_t* words) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::size_t count = law::words_of_bits(n);
  for (std::size_t word = schedule::kLanes * warp_in_grid(); word < count; word += schedule::kLanes * warps_in_grid()) {
    std::size_t first = 0;  // positions in front of it are below
    std::size_t left = k;   // where the first that is not may be, or behind them
    while (left > 0) {
      const std::size_t step = (left + schedule::kLanes - 1) / schedule::kLanes;
      const std::size_t probe = first + step * lane;
      const bool is_below = step * lane < left && positions[probe] < 32 * word;
      const auto below = static_cast<std::uint32_t>(__popc(__ballot_sync(kAllLanes, is_below)));
      if (below == 0) break;
      const std::size_t known = step * (below - 1) + 1;  // so many from `first` on are below
      const std::size_t end = step * below < left ? step * below : left;
      first += known;
      left = end - known;
    }
    room[lane] = 0;
    __syncwarp();
    for (std::size_t i = first + lane; i < k; i += schedule::kLanes) {
      const std::size_t bit = positions[i] - 32 * word;
      if (bit >= 32 * schedule::kLanes) break;
      atomicOr(&room[bit / 32], 1u << bit % 32);
    }
    __syncwarp();
    if (word + lane < count) words[word + lane] = room[lane];
    __syncwarp();
  }
}

/// Chunks of codes by blocks. A block owns the words that start with one of its bits, so it codes some positions of the
/// next chunk, whose bits the last of them may have.
__device__ void write_elias(const std::uint32_t* positions, std::size_t k, const std::uint64_t* starts,
                            std::uint32_t* room, std::uint32_t* words) {
  for (std::size_t chunk = blockIdx.x; chunk * kChunk < k; chunk += gridDim.x) {
    const std::uint64_t start = starts[chunk];
    const std::uint64_t end = starts[chunk + 1];
    const std::size_t first_word = static_cast<std::size_t>(start / 32);
    for (std::uint32_t i = threadIdx.x; i < kChunkWords; i += kThreads) room[i] = 0;
    law::EliasCode codes[kEach];
    std::uint32_t own = 0;
    for (std::uint32_t j = 0; j < kEach; ++j) {
      const std::size_t i = chunk * kChunk + threadIdx.x * kEach + j;
      codes[j] = i < k ? law::elias_delta(gap_at(positions, i)) : law::EliasCode{};
      own += codes[j].count;
    }
    std::uint32_t total = 0;
    std::uint32_t bit = block_sum_through(own, total) - own + static_cast<std::uint32_t>(start % 32);
    for (std::uint32_t j = 0; j < kEach; bit += codes[j].count, ++j) {
      if (codes[j].count != 0) put_code(room, bit, codes[j]);
    }
    __syncthreads();
    const std::size_t owned = law::words_of_bits(start);  // the first word that starts here
    for (std::size_t word = owned + threadIdx.x; word < law::words_of_bits(end); word += kThreads)
      words[word] = room[word - first_word];
    __syncthreads();
  }
}

__device__ void write_signs(const float* values, std::size_t k, std::byte* to) {
  for (std::size_t word = warp_in_grid(); 32 * word < k; word += warps_in_grid()) {
    const std::size_t i = 32 * word + threadIdx.x % schedule::kLanes;
    const std::uint32_t signs = __ballot_sync(kAllLanes, i < k && __float_as_uint(values[i]) >> 31 != 0);
    if (threadIdx.x % schedule::kLanes == 0) reinterpret_cast<std::uint32_t*>(to)[word] = signs;
  }
}

__global__ void write_kernel(SparseShape shape, const std::uint32_t* positions, const std::uint32_t* count,
                             const std::uint64_t* starts, std::size_t chunks, std::byte* payload, std::size_t front,
                             SparseSigns signs) {
  __shared__ std::uint32_t room[kChunkWords];
  static_assert(kChunkWords >= kBlockWarpCount * schedule::kLanes);
  const std::size_t k = *count;
  const std::size_t bits = starts == nullptr ? 0 : static_cast<std::size_t>(starts[chunks]);
  const law::IndexChoice choice = shape.automatic
                                      ? law::smallest_index(k, shape.n, bits)
                                      : law::IndexChoice{shape.fixed, law::index_bytes(shape.fixed, k, shape.n, bits)};
  const std::size_t signed_bytes = choice.bytes + sparse_value_bytes(shape, k);
  const bool as_words = shape.words == SparseShape::Words::always ||
                        (shape.words == SparseShape::Words::smallest && 4 * k <= signed_bytes);
  const std::size_t values = as_words ? 0 : sparse_value_bytes(shape, k);
  if (thread_in_grid() == 0) {
    const std::size_t bytes = sizeof(SparseHeader) + (as_words ? 4 * k : values + choice.bytes);
    std::uint32_t code = as_words ? law::kSignedWords : static_cast<std::uint32_t>(choice.code);
    if (signs.values != nullptr && *signs.not_finite != 0) code += law::kNotFinite;
    write_header(payload, {bytes, static_cast<std::uint32_t>(k), code});
    if (front > 0) write_size(payload - front, front + bytes);
  }
  auto* words = reinterpret_cast<std::uint32_t*>(payload + sizeof(SparseHeader) + values);
  if (as_words) {
    for (std::size_t i = thread_in_grid(); i < k; i += threads_in_grid())
      words[i] = positions[i] | (__float_as_uint(signs.values[i]) & ~law::kWordIndex);
    return;
  }
  if (signs.values != nullptr) write_signs(signs.values, k, payload + sizeof(SparseHeader));
  if (choice.code == IndexCode::u32) {
    for (std::size_t i = thread_in_grid(); i < k; i += threads_in_grid()) words[i] = positions[i];
  } else if (choice.code == IndexCode::bitmap) {
    write_bitmap(positions, k, shape.n, room + threadIdx.x / schedule::kLanes * schedule::kLanes, words);
  } else {
    write_elias(positions, k, starts, room, words);
  }
}

__global__ void empty_kernel(std::uint32_t code, std::byte* payload) {
  if (thread_in_grid() == 0) write_header(payload, {sizeof(SparseHeader), 0, code});
}

std::size_t chunks_of(std::size_t k) {
  return (k + kChunk - 1) / kChunk;
}
bool needs_bits(const SparseShape& shape) {
  return shape.automatic || shape.fixed == IndexCode::elias;
}
std::size_t row_bytes(std::size_t chunks) {
  return Arena<Space::cuda>::padded_size(8 * (chunks + 1));
}

}  // namespace

std::size_t sparse_write_scratch_bytes(const SparseShape& shape) {
  const std::size_t chunks = chunks_of(shape.most);
  return row_bytes(chunks) + scan_bytes<std::uint64_t>(chunks + 1);
}

void write_sparse(Queue<Space::cuda> queue, const SparseShape& shape, const std::uint32_t* positions,
                  const std::uint32_t* count, std::byte* payload, View<std::byte, Space::cuda> scratch,
                  std::size_t front, const SparseSigns& signs) {
  const std::size_t chunks = chunks_of(shape.most);
  std::uint64_t* bits = nullptr;
  if (needs_bits(shape)) {
    bits = reinterpret_cast<std::uint64_t*>(scratch.data());
    launch(queue, "elias bits", elias_bits_kernel, blocks_for(chunks, 1, 2048), positions, count, chunks, bits);
    const std::size_t row = row_bytes(chunks);
    scan_tiles(queue, bits, chunks + 1, scratch.part(row, scratch.size() - row));
  }
  const bool bitmap = shape.automatic || shape.fixed == IndexCode::bitmap;
  const std::size_t blocks = bitmap ? (law::words_of_bits(shape.n) + kThreads - 1) / kThreads : 0;
  launch(queue, "sparse index", write_kernel, blocks_for(chunks > blocks ? chunks : blocks, 1, 2048), shape, positions,
         count, bits, chunks, payload, front, signs);
}

void write_empty_sparse(Queue<Space::cuda> queue, const SparseShape& shape, std::byte* payload) {
  const auto index = static_cast<std::uint32_t>(shape.automatic ? IndexCode::u32 : shape.fixed);
  const std::uint32_t code = shape.words == SparseShape::Words::never ? index : law::kSignedWords;
  launch(queue, "sparse header", empty_kernel, {1, schedule::kLanes}, code, payload);
}

}  // namespace gradtool::cuda
