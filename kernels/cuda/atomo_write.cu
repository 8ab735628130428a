#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/atomo.hpp"
#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kSlots = 16;  ///< kept triplets of one matrix that are worked on side by side

__global__ void copy_kernel(AtomoTable table, AtomoRoom room, const float* gradient, std::byte* payload) {
  const AtomoTile tile = table.tiles[blockIdx.x];
  const AtomoPart part = table.parts[tile.part];
  if (part.rows != 0) return;
  float* to = reinterpret_cast<float*>(payload + table.header_bytes()) + room.places[tile.part] + tile.first;
  const float* from = gradient + part.first + tile.first;
  for (std::uint64_t i = threadIdx.x; i < tile.count; i += kThreads) to[i] = from[i];
}

/// The longer side of kept triplets: M or Mᵀ times the vector, over its value, which leaves a norm of about 1. A warp
/// has a row of a tall matrix, a thread a column of a wide one.
__global__ void other_kernel(AtomoTable table, std::size_t index, AtomoPart part, AtomoRoom room, const float* matrix,
                             std::byte* payload) {
  const std::uint64_t order = part.order();
  const std::uint64_t length = part.rows + part.columns - order;
  const bool wide = part.rows <= part.columns;
  const std::uint64_t first = length * blockIdx.x / gridDim.x;
  const std::uint64_t last = length * (blockIdx.x + 1) / gridDim.x;
  const bool failed = room.failed[part.factored] != 0;
  float* triplets = reinterpret_cast<float*>(payload + table.header_bytes()) + room.places[index];
  for (std::uint32_t slot = blockIdx.y; slot < room.counts[part.factored]; slot += gridDim.y) {
    float* out = triplets + slot * part.triplet() + 1 + (wide ? part.rows : 0);
    double squares = 0.0;
    if (!failed) {
      const std::uint32_t j = room.kept[part.values_at + slot];
      const double* vector = room.vectors + part.vectors_at + (order - 1 - j) * order;
      const double value = room.values[part.values_at + j];
      for (std::uint64_t e = wide ? first + threadIdx.x : first + threadIdx.x / 32; e < last;
           e += wide ? kThreads : kThreads / 32) {
        double sum = 0.0;
        if (wide) {
          for (std::uint64_t i = 0; i < order; ++i) {
            const std::uint64_t at = i * part.columns + e;
            if (at < part.elements) sum += vector[i] * static_cast<double>(matrix[at]);
          }
        } else {
          for (std::uint64_t k = threadIdx.x % 32; k < order; k += 32) {
            const std::uint64_t at = e * part.columns + k;
            if (at < part.elements) sum += vector[k] * static_cast<double>(matrix[at]);
          }
          for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(kAllLanes, sum, half);
        }
        sum /= value;
        if (!wide && threadIdx.x % 32 != 0) continue;
        out[e] = static_cast<float>(sum);
        squares += sum * sum;
      }
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0) room.norms[(part.values_at + slot) * kAtomoChunks + blockIdx.x] = squares;
  }
}

/// The rest of the triplets: (sigma / p, u, v), or a NaN that makes all of the matrix so.
__global__ void finish_kernel(AtomoTable table, std::size_t index, AtomoPart part, AtomoRoom room, unsigned chunks,
                              std::byte* payload) {
  const std::uint64_t order = part.order();
  const bool wide = part.rows <= part.columns;
  const bool failed = room.failed[part.factored] != 0;
  float* triplets = reinterpret_cast<float*>(payload + table.header_bytes()) + room.places[index];
  for (std::uint32_t slot = blockIdx.x; slot < room.counts[part.factored]; slot += gridDim.x) {
    float* triplet = triplets + slot * part.triplet();
    if (failed) {
      for (std::uint64_t i = threadIdx.x; i < part.triplet(); i += kThreads)
        triplet[i] = i == 0 ? __uint_as_float(0x7fc00000u) : 1.0f;
      continue;
    }
    const std::uint32_t j = room.kept[part.values_at + slot];
    double squares = 0.0;
    for (unsigned c = 0; c < chunks; ++c) squares += room.norms[(part.values_at + slot) * kAtomoChunks + c];
    const double norm = sqrt(squares);
    const double factor = norm > 0.0 ? 1.0 / norm : 0.0;
    const double* vector = room.vectors + part.vectors_at + (order - 1 - j) * order;
    if (threadIdx.x == 0) {
      triplet[0] = static_cast<float>(norm * room.values[part.values_at + j] / room.probabilities[part.values_at + j]);
    }
    float* mine = triplet + 1 + (wide ? 0 : part.rows);
    float* other = triplet + 1 + (wide ? part.rows : 0);
    for (std::uint64_t i = threadIdx.x; i < order; i += kThreads) mine[i] = static_cast<float>(vector[i]);
    for (std::uint64_t i = threadIdx.x; i < part.rows + part.columns - order; i += kThreads)
      other[i] = static_cast<float>(static_cast<double>(other[i]) * factor);
  }
}

}  // namespace

void copy_tensors(Queue<Space::cuda> queue, const AtomoTable& table, const AtomoRoom& room, const float* gradient,
                  std::byte* payload) {
  launch(queue, "atomo copy", copy_kernel, static_cast<unsigned>(table.tiles_count), table, room, gradient, payload);
}

void write_atoms(Queue<Space::cuda> queue, const AtomoTable& table, std::size_t index, const AtomoPart& part,
                 const AtomoRoom& room, const float* gradient, std::byte* payload) {
  const std::size_t length = std::max(part.rows, part.columns);
  const unsigned chunks = blocks_for(length, part.rows <= part.columns ? kThreads : kThreads / 32, kAtomoChunks);
  Grid grid{chunks};
  grid.y = kSlots;
  launch(queue, "atomo other side", other_kernel, grid, table, index, part, room, gradient + part.first, payload);
  launch(queue, "atomo finish", finish_kernel, kSlots, table, index, part, room, chunks, payload);
}

}  // namespace gradtool::cuda
