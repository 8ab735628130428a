#include "kernels/cuda/atomo.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/law/atomo.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kSlots = 16;  ///< kept triplets of one matrix that are worked on side by side
constexpr double kInfinity = std::numeric_limits<double>::infinity();

__device__ std::uint64_t order_of(const AtomoPart& part) {
  return part.rows < part.columns ? part.rows : part.columns;
}
__device__ std::uint64_t triplet_of(const AtomoPart& part) {
  return 1 + part.rows + part.columns;
}
__device__ std::size_t header_bytes(const AtomoTable& table) {
  return 8 + 4 * table.factored;
}

__global__ void widen_kernel(AtomoPart part, const float* matrix, std::size_t first, std::size_t width, double* out) {
  const bool wide = part.rows <= part.columns;
  const std::size_t count = order_of(part) * width;
  for (std::size_t k = std::size_t{blockIdx.x} * kThreads + threadIdx.x; k < count;
       k += std::size_t{gridDim.x} * kThreads) {
    // Neighbours read neighbours: along the row either way.
    const std::size_t s = wide ? k / width : k % order_of(part);
    const std::size_t l = wide ? k % width : k / order_of(part);
    const std::size_t at = wide ? s * part.columns + first + l : (first + l) * part.columns + s;
    out[s * width + l] = at < part.elements ? static_cast<double>(matrix[at]) : 0.0;
  }
}

/// One block.
__global__ void guard_kernel(double* gram, std::size_t order, int* odd) {
  double trace = 0.0;
  for (std::size_t s = threadIdx.x; s < order; s += kThreads) trace += gram[s * order + s];
  trace = block_sum(trace);
  const bool finite = trace < kInfinity;  // squares: never below 0, and a NaN is not less
  if (threadIdx.x == 0) *odd = finite ? 0 : 1;
  if (finite) return;
  for (std::size_t k = threadIdx.x; k < order * order; k += kThreads) gram[k] = k % (order + 1) == 0 ? 1.0 : 0.0;
}

/// A block for each part; one thread decides, in the host's order.
__global__ void choose_kernel(AtomoTable table, AtomoRoom room, const int* solved, double budget, law::DrawKey key) {
  const AtomoPart part = table.parts[blockIdx.x];
  if (part.rows == 0) return;
  const std::uint64_t order = order_of(part);
  double* values = room.values + part.values_at;
  double* probabilities = room.probabilities + part.values_at;
  for (std::uint64_t j = threadIdx.x; j < order; j += kThreads) {
    const double value = room.eigenvalues[part.values_at + order - 1 - j];
    values[j] = value > 0.0 ? sqrt(value) : 0.0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (room.failed[part.factored] != 0 || solved[part.factored] != 0) {
    room.failed[part.factored] = 1;
    room.counts[part.factored] = 1;
    return;
  }
  law::atomic_probabilities(values, order, budget, probabilities);
  std::uint32_t kept = 0;
  for (std::uint64_t j = 0; j < order; ++j) {
    const std::uint64_t draw = part.draw + j;
    const float u = law::uniform(law::draw4(key, draw / 4).bits[draw % 4]);
    if (static_cast<double>(u) < probabilities[j]) room.kept[part.values_at + kept++] = static_cast<std::uint32_t>(j);
  }
  room.counts[part.factored] = kept;
}

/// One thread: the places of all parts follow each other.
__global__ void place_kernel(AtomoTable table, AtomoRoom room, std::byte* payload) {
  if (threadIdx.x != 0) return;
  std::uint64_t at = 0;
  for (std::size_t p = 0; p < table.count; ++p) {
    const AtomoPart& part = table.parts[p];
    room.places[p] = at;
    if (part.rows == 0) {
      at += part.elements;
      continue;
    }
    const std::uint32_t count = room.counts[part.factored];
    reinterpret_cast<std::uint32_t*>(payload + 8)[part.factored] = count;
    at += count * triplet_of(part);
  }
  *reinterpret_cast<std::uint64_t*>(payload) = header_bytes(table) + 4 * at;
}

__global__ void copy_kernel(AtomoTable table, AtomoRoom room, const float* gradient, std::byte* payload) {
  const AtomoTile tile = table.tiles[blockIdx.x];
  const AtomoPart part = table.parts[tile.part];
  if (part.rows != 0) return;
  float* to = reinterpret_cast<float*>(payload + header_bytes(table)) + room.places[tile.part] + tile.first;
  const float* from = gradient + part.first + tile.first;
  for (std::uint64_t i = threadIdx.x; i < tile.count; i += kThreads) to[i] = from[i];
}

/// The longer side of kept triplets: M or Mᵀ times the vector, over its value, which leaves a norm of about 1. A warp
/// has a row of a tall matrix, a thread a column of a wide one.
__global__ void other_kernel(AtomoTable table, std::size_t index, AtomoPart part, AtomoRoom room, const float* matrix,
                             std::byte* payload) {
  const std::uint64_t order = order_of(part);
  const std::uint64_t length = part.rows + part.columns - order;
  const bool wide = part.rows <= part.columns;
  const std::uint64_t first = length * blockIdx.x / gridDim.x;
  const std::uint64_t last = length * (blockIdx.x + 1) / gridDim.x;
  const bool failed = room.failed[part.factored] != 0;
  float* triplets = reinterpret_cast<float*>(payload + header_bytes(table)) + room.places[index];
  for (std::uint32_t slot = blockIdx.y; slot < room.counts[part.factored]; slot += gridDim.y) {
    float* out = triplets + slot * triplet_of(part) + 1 + (wide ? part.rows : 0);
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
          for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
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
  const std::uint64_t order = order_of(part);
  const bool wide = part.rows <= part.columns;
  const bool failed = room.failed[part.factored] != 0;
  float* triplets = reinterpret_cast<float*>(payload + header_bytes(table)) + room.places[index];
  for (std::uint32_t slot = blockIdx.x; slot < room.counts[part.factored]; slot += gridDim.x) {
    float* triplet = triplets + slot * triplet_of(part);
    if (failed) {
      for (std::uint64_t i = threadIdx.x; i < triplet_of(part); i += kThreads)
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

/// One thread. places[table.count + 1] := whether the payload is one: its counts, its size and the view agree.
__global__ void locate_kernel(AtomoTable table, const std::byte* payload, std::size_t bytes, std::uint64_t* places) {
  if (threadIdx.x != 0) return;
  const auto* counts = reinterpret_cast<const std::uint32_t*>(payload + 8);
  std::uint64_t at = 0;
  bool sound = true;
  for (std::size_t p = 0; p < table.count; ++p) {
    const AtomoPart& part = table.parts[p];
    places[p] = at;
    if (part.rows == 0) {
      at += part.elements;
      continue;
    }
    const std::uint32_t count = counts[part.factored];
    sound = sound && count <= order_of(part);
    at += sound ? count * triplet_of(part) : 0;
  }
  const std::uint64_t expected = header_bytes(table) + 4 * at;
  places[table.count] = at;
  places[table.count + 1] =
      sound && expected <= bytes && *reinterpret_cast<const std::uint64_t*>(payload) == expected ? 1 : 0;
}

__global__ void add_kernel(AtomoTable table, const std::byte* payload, float weight, float* out,
                           const std::uint64_t* places) {
  const AtomoTile tile = table.tiles[blockIdx.x];
  const AtomoPart part = table.parts[tile.part];
  float* to = out + part.first + tile.first;
  const bool sound = places[table.count + 1] != 0;
  const float* values = reinterpret_cast<const float*>(payload + header_bytes(table)) + places[tile.part];
  const std::uint32_t count =
      part.rows == 0 || !sound ? 0 : reinterpret_cast<const std::uint32_t*>(payload + 8)[part.factored];
  const auto columns = static_cast<std::uint32_t>(part.columns);
  for (std::uint32_t e = threadIdx.x; e < tile.count; e += kThreads) {
    if (!sound) {
      to[e] = __uint_as_float(0x7fc00000u);
      continue;
    }
    const std::uint64_t element = tile.first + e;
    if (part.rows == 0) {
      to[e] += weight * values[element];
      continue;
    }
    const auto i = static_cast<std::uint32_t>(static_cast<std::uint32_t>(element) / columns);
    const std::uint32_t k = static_cast<std::uint32_t>(element) - i * columns;
    float sum = to[e];
    const float* triplet = values;
    for (std::uint32_t t = 0; t < count; ++t, triplet += triplet_of(part)) {
      const float factor = weight * (triplet[0] * triplet[1 + i]);
      sum += factor * triplet[1 + part.rows + k];
    }
    to[e] = sum;
  }
}

}  // namespace

void widen(Queue<Space::cuda> queue, const AtomoPart& part, const float* gradient, std::size_t first, std::size_t width,
           double* out) {
  const std::size_t count = std::min(part.rows, part.columns) * width;
  launch(queue, "atomo widen", widen_kernel, blocks_for(count, 4 * kThreads), part, gradient + part.first, first, width,
         out);
}

void guard_gram(Queue<Space::cuda> queue, double* gram, std::size_t order, int* odd) {
  launch(queue, "atomo guard", guard_kernel, 1, gram, order, odd);
}

void choose_atoms(Queue<Space::cuda> queue, const AtomoTable& table, const AtomoRoom& room, const int* solved,
                  double budget, const law::DrawKey& key, std::byte* payload) {
  launch(queue, "atomo choose", choose_kernel, static_cast<unsigned>(table.count), table, room, solved, budget, key);
  launch(queue, "atomo place", place_kernel, {1, 32}, table, room, payload);
}

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

void add_atoms(Queue<Space::cuda> queue, const AtomoTable& table, View<const std::byte, Space::cuda> payload,
               float weight, float* out, std::uint64_t* places) {
  launch(queue, "atomo locate", locate_kernel, {1, 32}, table, payload.data(), payload.size(), places);
  launch(queue, "atomo add", add_kernel, static_cast<unsigned>(table.tiles_count), table, payload.data(), weight, out,
         places);
}

}  // namespace gradtool::cuda
