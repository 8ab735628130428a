#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/sparse_read.hpp"

namespace gradtool::cuda {
namespace {

__global__ void units_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units) {
  __shared__ std::uint32_t words[kUnitWords + 3];
  __shared__ Walk walks[kChunks * kEntries];
  const Sections at = sections_of(shape, payload, size, units.size);
  const std::size_t used = units_of(at);
  for (std::size_t unit = blockIdx.x; unit < used; unit += gridDim.x) {
    if (at.code == IndexCode::bitmap) {
      std::uint32_t own = 0;
      for (std::size_t word = unit * kBitmapWords + threadIdx.x; word < (unit + 1) * kBitmapWords && word < at.words;
           word += kThreads)
        own += static_cast<std::uint32_t>(__popc(at.index[word]));
      std::uint32_t total = 0;
      block_sum_through(own, total);
      if (threadIdx.x == 0) units.starts[unit].ordinal = total;
      continue;
    }
    load_unit(at, unit, words);
    walk_chunks(words, walks);
    if (threadIdx.x < kEntries) {
      Walk all;
      all.leaves = threadIdx.x;
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const Walk& next = walks[chunk * kEntries + all.leaves];
        all = {next.leaves, all.count + next.count, all.sum + next.sum};
      }
      units.walks[unit * kEntries + threadIdx.x] = all;
      units.leaves[unit * kEntries + threadIdx.x] = static_cast<std::uint8_t>(all.leaves);
    }
    __syncthreads();
  }
}

/// One block: from unit to unit.
__global__ void starts_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units) {
  alignas(2) __shared__ std::uint8_t leaves[kThreads * kEntries];
  __shared__ std::uint8_t enters[kThreads];
  __shared__ std::uint32_t entry;
  const Sections at = sections_of(shape, payload, size, units.size);
  const std::size_t used = units_of(at);
  if (threadIdx.x == 0) entry = 0;
  std::uint32_t ordinal = 0;
  std::uint32_t next = 0;
  for (std::size_t first = 0; first < used; first += kThreads) {
    const std::size_t unit = first + threadIdx.x;
    Walk own;
    if (at.code == IndexCode::bitmap) {
      if (unit < used) own.count = units.starts[unit].ordinal;
    } else {
      const std::size_t here = (used - first < kThreads ? used - first : kThreads);
      static_assert(kEntries % 2 == 0);
      for (std::size_t i = threadIdx.x; i < here * kEntries / 2; i += kThreads)
        reinterpret_cast<std::uint16_t*>(leaves)[i] =
            reinterpret_cast<const std::uint16_t*>(units.leaves + first * kEntries)[i];
      __syncthreads();
      if (threadIdx.x == 0) {
        for (std::size_t i = 0; i < here; ++i) {
          enters[i] = static_cast<std::uint8_t>(entry);
          entry = leaves[i * kEntries + entry];
        }
      }
      __syncthreads();
      if (unit < used) own = units.walks[unit * kEntries + enters[threadIdx.x]];
    }
    std::uint32_t counts = 0;
    std::uint32_t sums = 0;
    const std::uint32_t count = block_sum_through(own.count, counts) - own.count;
    const std::uint32_t sum = block_sum_through(own.sum, sums) - own.sum;
    if (unit < used)
      units.starts[unit] = {at.code == IndexCode::elias ? enters[threadIdx.x] : 0u, ordinal + count, next + sum};
    ordinal += counts;
    next += sums;
    __syncthreads();
  }
}

/// The units that a payload of the largest size may have.
std::size_t most_units(const SparseShape& shape) {
  const std::size_t bitmap = law::words_of_bits(shape.n);
  const std::size_t bitmap_units = (bitmap + kBitmapWords - 1) / kBitmapWords;
  // With index=auto codes are smaller than a bitmap and a list; else no gap takes more than two bits for each of it.
  std::size_t words = std::min(2 * bitmap + 1, (shape.most * law::kEliasLongest + 31) / 32);
  if (shape.automatic) words = std::min(bitmap, shape.most);
  const std::size_t elias_units = (words + kUnitWords - 1) / kUnitWords;
  if (shape.automatic) return std::max(bitmap_units, elias_units);
  return shape.fixed == IndexCode::bitmap ? bitmap_units : shape.fixed == IndexCode::elias ? elias_units : 0;
}
std::size_t start_bytes(std::size_t units) {
  return Arena<Space::cuda>::padded_size(sizeof(Start) * units);
}
std::size_t walk_bytes(std::size_t units) {
  return Arena<Space::cuda>::padded_size(sizeof(Walk) * kEntries * units);
}

}  // namespace

std::size_t sparse_find_scratch_bytes(const SparseShape& shape) {
  const std::size_t units = most_units(shape);
  const bool walks = shape.automatic || shape.fixed == IndexCode::elias;
  if (!walks) return start_bytes(units);
  return start_bytes(units) + walk_bytes(units) + Arena<Space::cuda>::padded_size(kEntries * units);
}

Units find_units(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 View<std::byte, Space::cuda> scratch) {
  expects(payload.size() >= sizeof(SparseHeader) && aligned_to(payload.data(), 4) &&
              scratch.size() >= sparse_find_scratch_bytes(shape),
          "sparse payload: needs a header, 4-byte aligned, and scratch as planned");
  const std::size_t most = most_units(shape);
  std::byte* walks = scratch.data() + start_bytes(most);
  const Units units{reinterpret_cast<Start*>(scratch.data()), reinterpret_cast<Walk*>(walks),
                    reinterpret_cast<std::uint8_t*>(walks + walk_bytes(most)), most};
  if (most == 0) return units;
  launch(queue, "sparse units", units_kernel, blocks_for(most, 1, 2048), shape, payload.data(), payload.size(), units);
  launch(queue, "sparse starts", starts_kernel, 1, shape, payload.data(), payload.size(), units);
  return units;
}

}  // namespace gradtool::cuda
