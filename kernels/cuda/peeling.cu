#include "kernels/cuda/peeling.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/peeling_lists.hpp"

namespace gradtool::cuda {
namespace {

__device__ float signed_value(float value, std::uint32_t signs, std::uint32_t hash) {
  return (signs >> hash & 1u) != 0 ? -value : value;
}

/// A thread for each cell adds what is listed there, in the order of elements.
__global__ void sum_kernel(PeelingShape shape, PeelingLists lists, PeelingElements elements, const float* values,
                           float* table) {
  for (std::size_t c = thread_in_grid(); c < shape.cells(); c += threads_in_grid()) {
    const std::uint32_t hash = shape.hash_of(static_cast<std::uint32_t>(c));
    float sum = 0.0f;
    for (std::uint32_t i = lists.first[c]; i < lists.last[c]; ++i) {
      const std::uint32_t e = lists.element[i];
      sum += signed_value(values[e], elements.signs[e], hash);
    }
    table[c] = sum;
  }
}

/// What a cell says of an element: itself, less what is known of the others.
__device__ float less_known(const PeelingLists& lists, const PeelingElements& elements, const float* table,
                            std::uint32_t cell, std::uint32_t hash, std::uint32_t element) {
  float rest = table[cell];
  for (std::uint32_t i = lists.first[cell]; i < lists.last[cell]; ++i) {
    const std::uint32_t other = lists.element[i];
    if (other != element && elements.round[other] != 0)
      rest -= signed_value(elements.values[other], elements.signs[other], hash);
  }
  return signed_value(rest, elements.signs[element], hash);
}

/// In a cell whose only unknown is this element, all others came out in earlier rounds: nothing that is read here is
/// written in this round.
__global__ void peel_kernel(PeelingLists lists, PeelingElements elements, const float* table,
                            const std::uint32_t* unknown, std::uint32_t round, PeelingTable::Progress* progress) {
  if (thread_in_grid() == 0) progress->last = 0;
  for (std::size_t e = thread_in_grid(); e < progress->elements; e += threads_in_grid()) {
    if (elements.round[e] != 0) continue;
    for (std::uint32_t j = 0; j < kPeelingHashes; ++j) {
      const std::uint32_t cell = elements.cells[kPeelingHashes * e + j];
      if (unknown[cell] != 1) continue;
      elements.values[e] = less_known(lists, elements, table, cell, j, static_cast<std::uint32_t>(e));
      elements.round[e] = round;
      break;
    }
  }
}

/// Takes what came out in this round out of its other cells.
__global__ void forget_kernel(PeelingElements elements, std::uint32_t* unknown, std::uint32_t round,
                              PeelingTable::Progress* progress) {
  std::uint32_t found = 0;
  for (std::size_t e = thread_in_grid(); e < progress->elements; e += threads_in_grid()) {
    if (elements.round[e] != round) continue;
    for (std::uint32_t j = 0; j < kPeelingHashes; ++j) atomicSub(&unknown[elements.cells[kPeelingHashes * e + j]], 1u);
    ++found;
  }
  found = __reduce_add_sync(kAllLanes, found);
  if (threadIdx.x % schedule::kLanes == 0 && found != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&progress->peeled), std::uint64_t{found});
    atomicAdd(reinterpret_cast<unsigned long long*>(&progress->last), std::uint64_t{found});
  }
}

/// What did not peel has the median of its three cells.
__global__ void finish_kernel(PeelingLists lists, PeelingElements elements, const float* table,
                              const std::uint32_t* positions, float factor, float* out,
                              const PeelingTable::Progress* progress) {
  for (std::size_t e = thread_in_grid(); e < progress->elements; e += threads_in_grid()) {
    float value;
    if (elements.round[e] != 0) {
      value = elements.values[e];
    } else {
      float estimate[kPeelingHashes];
#pragma unroll
      for (std::uint32_t j = 0; j < kPeelingHashes; ++j) {
        estimate[j] = less_known(lists, elements, table, elements.cells[kPeelingHashes * e + j], j,
                                 static_cast<std::uint32_t>(e));
      }
      value = law::median_of_three(estimate[0], estimate[1], estimate[2]);
    }
    out[positions[e]] = factor * value;
  }
}

}  // namespace

PeelingTable::PeelingTable(std::size_t n, std::size_t lanes, std::size_t most_rows, std::size_t most,
                           std::uint64_t seed)
    : lanes_{lanes}, most_cells_{most_rows * lanes}, most_{most}, seed_{seed} {
  expects(n < (std::size_t{1} << 32) - 1 && kPeelingHashes * most < (std::size_t{1} << 32),
          "lhc: a unit of more elements than a table has numbers for");
}

std::size_t PeelingTable::scratch_bytes() const {
  const PeelingWork planned = work({});
  return planned.bytes + Arena<Space::cuda>::padded_size(peeling_sort_bytes(planned));
}

PeelingWork PeelingTable::work(View<std::byte, Space::cuda> scratch) const {
  return {{lanes_, rows_each_, most_, seed_}, most_cells_, scratch};
}

void PeelingTable::write(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions,
                         const float* values, float* table, View<std::byte, Space::cuda> scratch) const {
  PeelingTable exact = *this;  // lists of as many elements as there are
  exact.most_ = positions.size();
  const PeelingWork at = exact.work(scratch);
  list_cells(queue, at, positions.data(), nullptr);
  launch(queue, "sums of cells", sum_kernel, blocks_for(at.shape.cells(), kThreads), at.shape, at.lists, at.elements,
         values, table);
}

void PeelingTable::begin(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count,
                         View<std::byte, Space::cuda> scratch) {
  list_cells(queue, work(scratch), positions, count);
  next_round_ = 1;
}

void PeelingTable::peel(Queue<Space::cuda> queue, const float* table, std::uint32_t rounds,
                        View<std::byte, Space::cuda> scratch) {
  const PeelingWork at = work(scratch);
  const unsigned blocks = blocks_for(most_, kThreads);
  for (std::uint32_t r = 0; r < rounds; ++r) {
    const std::uint32_t round = next_round_++;
    launch(queue, "peel", peel_kernel, blocks, at.lists, at.elements, table, at.unknown, round, at.progress);
    launch(queue, "take out", forget_kernel, blocks, at.elements, at.unknown, round, at.progress);
  }
}

void PeelingTable::finish(Queue<Space::cuda> queue, const float* table, const std::uint32_t* positions, float factor,
                          float* out, View<std::byte, Space::cuda> scratch) const {
  const PeelingWork at = work(scratch);
  launch(queue, "peeled", finish_kernel, blocks_for(most_, kThreads), at.lists, at.elements, table, positions, factor,
         out, at.progress);
}

View<const PeelingTable::Progress, Space::cuda> PeelingTable::progress(View<std::byte, Space::cuda> scratch) const {
  return {work(scratch).progress, 1};
}

}  // namespace gradtool::cuda
