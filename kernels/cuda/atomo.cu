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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

__global__ void widen_kernel(AtomoPart part, const float* matrix, std::size_t first, std::size_t width, double* out) {
  const bool wide = part.rows <= part.columns;
  const std::size_t count = part.order() * width;
  for (std::size_t k = std::size_t{blockIdx.x} * kThreads + threadIdx.x; k < count;
       k += std::size_t{gridDim.x} * kThreads) {
    // Neighbours read neighbours: along the row either way.
    const std::size_t s = wide ? k / width : k % part.order();
    const std::size_t l = wide ? k % width : k / part.order();
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
  const std::uint64_t order = part.order();
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
    at += count * part.triplet();
  }
  *reinterpret_cast<std::uint64_t*>(payload) = table.header_bytes() + 4 * at;
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

}  // namespace gradtool::cuda
