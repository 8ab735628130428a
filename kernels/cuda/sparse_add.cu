#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/sparse_read.hpp"

namespace gradtool::cuda {
namespace {

template <class Visit>
__device__ void visit_bitmap_unit(const Sections& at, const Visit& visit, const Start& start, std::size_t unit) {
  constexpr std::uint32_t kEach = kBitmapWords / kThreads;
  const std::size_t first = unit * kBitmapWords + threadIdx.x * kEach;
  std::uint32_t words[kEach];
  std::uint32_t own = 0;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    words[i] = first + i < at.words ? at.index[first + i] : 0u;
    own += static_cast<std::uint32_t>(__popc(words[i]));
  }
  std::uint32_t total = 0;
  std::uint32_t ordinal = start.ordinal + block_sum_through(own, total) - own;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    for (std::uint32_t rest = words[i]; rest != 0; rest &= rest - 1)
      visit(ordinal++, 32 * (first + i) + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1));
  }
}

template <class Visit>
__device__ void visit_elias_unit(const Sections& at, const Visit& visit, const Start& start, std::size_t unit,
                                 std::uint32_t* words, Walk* walks, std::uint32_t* positions) {
  __shared__ Start chunks[kChunks];
  __shared__ std::uint32_t total;
  load_unit(at, unit, words);
  walk_chunks(words, walks);
  if (threadIdx.x == 0) {
    Start here{start.enters, 0, start.next};
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      chunks[chunk] = here;
      const Walk& walk = walks[chunk * kEntries + here.enters];
      here = {walk.leaves, here.ordinal + walk.count, here.next + walk.sum};
    }
    total = here.ordinal;
  }
  __syncthreads();  // the walks are done with: the positions take their place
  if (threadIdx.x < kChunks) {
    Start here = chunks[threadIdx.x];
    const std::uint32_t end = (threadIdx.x + 1) * kChunkBits;
    for (std::uint32_t bit = end - kChunkBits + here.enters; bit < end;) {
      const law::EliasFront code = code_at(words, bit);
      bit += code.count;
      here.next += code.value;
      positions[here.ordinal++] = here.next - 1;
    }
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < total; i += kThreads) visit(start.ordinal + i, positions[i]);
  __syncthreads();
}

/// visit(ordinal, position) for all that a good payload states, in any order, by the grid. What lies behind the last
/// value or the last element is left out.
template <class Visit>
__device__ void visit_all(const SparseShape& shape, const Sections& at, const Units& units, const Visit& visit_one) {
  __shared__ std::uint32_t words[kUnitWords + 3];
  __shared__ std::uint32_t room[kUnitBits];
  static_assert(sizeof(Walk) * kChunks * kEntries <= sizeof room && alignof(Walk) == alignof(std::uint32_t));
  const auto visit = [&](std::uint32_t ordinal, std::size_t position) {
    if (at.as_words) position &= law::kWordIndex;
    if (ordinal < at.count && position < shape.n) visit_one(ordinal, position);
  };
  if (at.code == IndexCode::u32) {
    for (std::size_t i = thread_in_grid(); i < at.count; i += threads_in_grid())
      visit(static_cast<std::uint32_t>(i), at.index[i]);
    return;
  }
  const std::size_t used = units_of(at);
  for (std::size_t unit = blockIdx.x; unit < used; unit += gridDim.x) {
    const Start start = units.starts[unit];
    if (at.code == IndexCode::bitmap)
      visit_bitmap_unit(at, visit, start, unit);
    else
      visit_elias_unit(at, visit, start, unit, words, reinterpret_cast<Walk*>(room), room);
  }
}

__global__ void add_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units, float weight,
                           float* out, SparseForget forget) {
  const Sections at = sections_of(shape, payload, size, units.size);
  if (!at.good) {
    for (std::size_t i = thread_in_grid(); i < shape.n; i += threads_in_grid()) out[i] = __uint_as_float(0x7fc00000u);
    return;
  }
  const float factor = at.not_finite ? __uint_as_float(0x7fc00000u) : weight;
  visit_all(shape, at, units, [&](std::uint32_t ordinal, std::size_t position) {
    if (shape.value_bits == 32) {
      out[position] += factor * __uint_as_float(at.values[ordinal]);
    } else {
      const std::uint32_t word = at.as_words ? at.index[ordinal] >> 31 : at.values[ordinal / 32] >> ordinal % 32;
      out[position] += __uint_as_float(__float_as_uint(factor) ^ word << 31);
    }
    if (forget.kept != nullptr && (__float_as_uint(forget.kept[position]) & 0x7fffffffu) >= forget.low)
      forget.kept[position] = 0.0F;
  });
}

__global__ void mark_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units,
                            std::uint32_t* words) {
  const Sections at = sections_of(shape, payload, size, units.size);
  if (!at.good) {
    for (std::size_t w = thread_in_grid(); 32 * w < shape.n; w += threads_in_grid())
      words[w] =
          shape.n - 32 * w < 32 ? schedule::lanes_below(static_cast<std::uint32_t>(shape.n - 32 * w)) : 0xffffffffu;
    return;
  }
  visit_all(shape, at, units, [&](std::uint32_t /*ordinal*/, std::size_t position) {
    atomicOr(&words[position / 32], 1u << position % 32);
  });
}

Grid blocks_of(const SparseShape& shape, const Units& units) {
  return blocks_for(std::max(units.size, (shape.most + kThreads - 1) / kThreads), 1, 2048);
}

}  // namespace

std::size_t sparse_scratch_bytes(const SparseShape& shape) {
  return std::max(sparse_write_scratch_bytes(shape), sparse_find_scratch_bytes(shape));
}

void add_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                float weight, float* out, View<std::byte, Space::cuda> scratch, const SparseForget& forget) {
  const Units units = find_units(queue, shape, payload, scratch);
  launch(queue, "sparse add", add_kernel, blocks_of(shape, units), shape, payload.data(), payload.size(), units, weight,
         out, forget);
}

void mark_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 std::uint32_t* words, View<std::byte, Space::cuda> scratch) {
  const Units units = find_units(queue, shape, payload, scratch);
  launch(queue, "sparse marks", mark_kernel, blocks_of(shape, units), shape, payload.data(), payload.size(), units,
         words);
}

}  // namespace gradtool::cuda
