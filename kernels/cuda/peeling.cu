#include "kernels/cuda/peeling.hpp"

#include <cuda_runtime.h>

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/peeling.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kHashes = law::kPeelingHashes;
constexpr std::uint32_t kNoCell = 0xffffffffu;  // of entries that are none
constexpr std::size_t kMostLanes = 1024;

struct Shape {
  std::size_t lanes, rows_each, most;
  std::uint64_t seed;
  [[nodiscard]] GT_HD std::size_t cells() const { return kHashes * rows_each * lanes; }
  [[nodiscard]] GT_HD std::uint32_t hash_of(std::uint32_t cell) const {
    return static_cast<std::uint32_t>(cell / (rows_each * lanes));
  }
};

/// Of each listed element: its cells, and a bit for each hash, 1 is minus.
struct Elements {
  std::uint32_t* cells;  ///< [element][hash]
  std::uint32_t* signs;
  float* values;
  std::uint32_t* round;  ///< in which it came out; 0: not yet
};

/// Entries sorted by cell; within a cell in the order of elements.
struct Lists {
  const std::uint32_t* element;
  const std::uint32_t* first;  ///< of each cell
  const std::uint32_t* last;
};

__device__ float signed_value(float value, std::uint32_t signs, std::uint32_t hash) {
  return (signs >> hash & 1u) != 0 ? -value : value;
}

/// Entry 3 e + j is element e in sub-table j.
__global__ void entries_kernel(Shape shape, const std::uint32_t* positions, const std::uint32_t* count,
                               std::size_t most, Elements elements, std::uint32_t* keys, std::uint32_t* entries,
                               std::uint32_t* first, std::uint32_t* last, PeelingTable::Progress* progress) {
  const std::size_t listed = count == nullptr ? most : *count;
  const std::size_t here = listed < most ? listed : most;
  if (thread_in_grid() == 0 && progress != nullptr) *progress = {0, 0, here};
  for (std::size_t e = thread_in_grid(); e < most; e += threads_in_grid()) {
    if (e < here) {
      const std::size_t block = positions[e] / shape.lanes, lane = positions[e] % shape.lanes;
      const law::Draws draws = law::draw4(law::shared_by_ranks({.seed = shape.seed}), block);
      std::uint32_t signs = 0;
      for (std::uint32_t j = 0; j < kHashes; ++j) {
        const law::PeelingCell cell = law::peeling_cell(draws.bits, j, shape.rows_each, shape.lanes, lane);
        keys[kHashes * e + j] = static_cast<std::uint32_t>(cell.at);
        elements.cells[kHashes * e + j] = static_cast<std::uint32_t>(cell.at);
        signs |= (cell.sign < 0.0f ? 1u : 0u) << j;
      }
      elements.signs[e] = signs;
    } else {
      for (std::uint32_t j = 0; j < kHashes; ++j) keys[kHashes * e + j] = kNoCell;
    }
    elements.round[e] = 0;
    for (std::uint32_t j = 0; j < kHashes; ++j) entries[kHashes * e + j] = static_cast<std::uint32_t>(e);
  }
  for (std::size_t c = thread_in_grid(); c < shape.cells(); c += threads_in_grid()) {
    first[c] = 0;
    last[c] = 0;
  }
}

__global__ void borders_kernel(const std::uint32_t* keys, std::size_t count, std::uint32_t* first,
                               std::uint32_t* last) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
    const std::uint32_t key = keys[i];
    if (key == kNoCell) continue;
    if (i == 0 || keys[i - 1] != key) first[key] = static_cast<std::uint32_t>(i);
    if (i + 1 == count || keys[i + 1] != key) last[key] = static_cast<std::uint32_t>(i + 1);
  }
}

__global__ void unknown_kernel(Shape shape, Lists lists, std::uint32_t* unknown) {
  for (std::size_t c = thread_in_grid(); c < shape.cells(); c += threads_in_grid())
    unknown[c] = lists.last[c] - lists.first[c];
}

__global__ void sum_kernel(Shape shape, Lists lists, Elements elements, const float* values, float* table) {
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
__device__ float less_known(const Lists& lists, const Elements& elements, const float* table, std::uint32_t cell,
                            std::uint32_t hash, std::uint32_t element) {
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
__global__ void peel_kernel(Lists lists, Elements elements, const float* table, const std::uint32_t* unknown,
                            std::uint32_t round, const PeelingTable::Progress* progress) {
  for (std::size_t e = thread_in_grid(); e < progress->elements; e += threads_in_grid()) {
    if (elements.round[e] != 0) continue;
    for (std::uint32_t j = 0; j < kHashes; ++j) {
      const std::uint32_t cell = elements.cells[kHashes * e + j];
      if (unknown[cell] != 1) continue;
      elements.values[e] = less_known(lists, elements, table, cell, j, static_cast<std::uint32_t>(e));
      elements.round[e] = round;
      break;
    }
  }
}

__global__ void forget_kernel(Elements elements, std::uint32_t* unknown, std::uint32_t round,
                              PeelingTable::Progress* progress) {
  std::uint32_t found = 0;
  for (std::size_t e = thread_in_grid(); e < progress->elements; e += threads_in_grid()) {
    if (elements.round[e] != round) continue;
    for (std::uint32_t j = 0; j < kHashes; ++j) atomicSub(&unknown[elements.cells[kHashes * e + j]], 1u);
    ++found;
  }
  found = __reduce_add_sync(DeviceWarp::kAll, found);
  if (threadIdx.x % schedule::kLanes == 0 && found != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&progress->peeled), std::uint64_t{found});
    atomicAdd(reinterpret_cast<unsigned long long*>(&progress->last), std::uint64_t{found});
  }
}

__global__ void round_kernel(PeelingTable::Progress* progress) {
  if (threadIdx.x == 0) progress->last = 0;
}

__global__ void finish_kernel(Lists lists, Elements elements, const float* table, const std::uint32_t* positions,
                              float factor, float* out, const PeelingTable::Progress* progress) {
  for (std::size_t e = thread_in_grid(); e < progress->elements; e += threads_in_grid()) {
    float value;
    if (elements.round[e] != 0) {
      value = elements.values[e];
    } else {
      float estimate[kHashes];
#pragma unroll
      for (std::uint32_t j = 0; j < kHashes; ++j) {
        estimate[j] =
            less_known(lists, elements, table, elements.cells[kHashes * e + j], j, static_cast<std::uint32_t>(e));
      }
      value = law::median_of_three(estimate[0], estimate[1], estimate[2]);
    }
    out[positions[e]] = factor * value;
  }
}

__global__ void lanes_kernel(const std::uint32_t* marks, std::size_t words, std::size_t lanes, std::uint32_t* loads) {
  __shared__ std::uint32_t own[kMostLanes];
  for (std::size_t l = threadIdx.x; l < lanes; l += kThreads) own[l] = 0;
  __syncthreads();
  for (std::size_t w = thread_in_grid(); w < words; w += threads_in_grid()) {
    for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) {
      const std::size_t i = 32 * w + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1);
      atomicAdd(&own[i % lanes], 1u);
    }
  }
  __syncthreads();
  for (std::size_t l = threadIdx.x; l < lanes; l += kThreads) {
    if (own[l] != 0) atomicAdd(&loads[l], own[l]);
  }
}

/// One warp.
__global__ void most_kernel(const std::uint32_t* loads, std::size_t lanes, std::uint64_t* most) {
  std::uint32_t largest = 0;
  for (std::size_t l = threadIdx.x; l < lanes; l += schedule::kLanes) largest = max(largest, loads[l]);
  largest = __reduce_max_sync(DeviceWarp::kAll, largest);
  if (threadIdx.x == 0) *most = largest;
}

__global__ void scatter_kernel(const std::uint32_t* positions, std::size_t count, const float* values, float* to) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid())
    to[positions[i]] = values == nullptr ? 0.0f : values[i];
}

std::size_t padded(std::size_t bytes) {
  return Arena<Space::cuda>::padded_size(bytes);
}

cudaError_t sort_entries(void* room, std::size_t& bytes, const std::uint32_t* keys, std::uint32_t* sorted_keys,
                         const std::uint32_t* entries, std::uint32_t* sorted, std::size_t count, CUstream_st* stream) {
  return cub::DeviceRadixSort::SortPairs(room, bytes, keys, sorted_keys, entries, sorted,
                                         static_cast<std::int64_t>(count), 0, 32, stream);
}
std::size_t sort_bytes(std::size_t count) {
  std::size_t bytes = 0;
  GT_CUDA(sort_entries(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, count, nullptr));
  return bytes;
}

}  // namespace

struct PeelingTable::Work {
  Shape shape;
  Elements elements;
  std::uint32_t *keys, *entries, *sorted_keys, *sorted, *first, *last, *unknown;
  Progress* progress;
  View<std::byte, Space::cuda> sort;
  [[nodiscard]] Lists lists() const { return {sorted, first, last}; }
};

PeelingTable::PeelingTable(std::size_t n, std::size_t lanes, std::size_t most_rows, std::size_t most,
                           std::uint64_t seed)
    : n_{n}, lanes_{lanes}, most_cells_{most_rows * lanes}, most_{most}, seed_{seed} {
  expects(n < (std::size_t{1} << 32) - 1 && 3 * most < (std::size_t{1} << 32) && lanes <= kMostLanes,
          "lhc: a unit of more elements than a table has numbers for");
}

std::size_t PeelingTable::scratch_bytes() const {
  return 4 * padded(4 * kHashes * most_) + padded(4 * kHashes * most_) + 3 * padded(4 * most_) +
         3 * padded(4 * most_cells_) + padded(sizeof(Progress)) + padded(sort_bytes(kHashes * most_));
}

PeelingTable::Work PeelingTable::work(View<std::byte, Space::cuda> scratch) const {
  std::size_t used = 0;
  const auto bytes = [&](std::size_t count) {
    const auto piece = scratch.part(used, count);
    used += padded(count);
    return piece;
  };
  const auto words = [&](std::size_t count) { return reinterpret_cast<std::uint32_t*>(bytes(4 * count).data()); };
  Work work{};
  work.shape = {lanes_, rows_each_, most_, seed_};
  work.keys = words(kHashes * most_);
  work.entries = words(kHashes * most_);
  work.sorted_keys = words(kHashes * most_);
  work.sorted = words(kHashes * most_);
  work.elements.cells = words(kHashes * most_);
  work.elements.signs = words(most_);
  work.elements.round = words(most_);
  work.elements.values = reinterpret_cast<float*>(words(most_));
  work.first = words(most_cells_);
  work.last = words(most_cells_);
  work.unknown = words(most_cells_);
  work.progress = reinterpret_cast<Progress*>(bytes(sizeof(Progress)).data());
  work.sort = scratch.part(used, scratch.size() - used);
  return work;
}

void PeelingTable::begin(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count,
                         View<std::byte, Space::cuda> scratch) {
  const Work at = work(scratch);
  next_round_ = 1;
  const std::size_t entries = kHashes * most_, items = most_ > at.shape.cells() ? most_ : at.shape.cells();
  launch(queue, "cells of elements", entries_kernel, blocks_for(items, kThreads), at.shape, positions, count, most_,
         at.elements, at.keys, at.entries, at.first, at.last, at.progress);
  std::size_t room = at.sort.size();
  GT_CUDA(sort_entries(at.sort.data(), room, at.keys, at.sorted_keys, at.entries, at.sorted, entries, queue.stream));
  launch(queue, "borders of cells", borders_kernel, blocks_for(entries, kThreads), at.sorted_keys, entries, at.first,
         at.last);
  launch(queue, "elements of cells", unknown_kernel, blocks_for(at.shape.cells(), kThreads), at.shape, at.lists(),
         at.unknown);
}

void PeelingTable::write(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions,
                         const float* values, float* table, View<std::byte, Space::cuda> scratch) const {
  PeelingTable exact = *this;  // lists of as many elements as there are
  exact.most_ = positions.size();
  exact.begin(queue, positions.data(), nullptr, scratch);
  const Work at = exact.work(scratch);
  launch(queue, "sums of cells", sum_kernel, blocks_for(at.shape.cells(), kThreads), at.shape, at.lists(), at.elements,
         values, table);
}

void PeelingTable::peel(Queue<Space::cuda> queue, const float* table, std::uint32_t rounds,
                        View<std::byte, Space::cuda> scratch) {
  const Work at = work(scratch);
  const unsigned blocks = blocks_for(most_, kThreads);
  for (std::uint32_t r = 0; r < rounds; ++r) {
    const std::uint32_t round = next_round_++;
    launch(queue, "next round", round_kernel, {1, schedule::kLanes}, at.progress);
    launch(queue, "peel", peel_kernel, blocks, at.lists(), at.elements, table, at.unknown, round, at.progress);
    launch(queue, "take out", forget_kernel, blocks, at.elements, at.unknown, round, at.progress);
  }
}

void PeelingTable::finish(Queue<Space::cuda> queue, const float* table, const std::uint32_t* positions, float factor,
                          float* out, View<std::byte, Space::cuda> scratch) const {
  const Work at = work(scratch);
  launch(queue, "peeled", finish_kernel, blocks_for(most_, kThreads), at.lists(), at.elements, table, positions, factor,
         out, at.progress);
}

View<const PeelingTable::Progress, Space::cuda> PeelingTable::progress(View<std::byte, Space::cuda> scratch) const {
  return {work(scratch).progress, 1};
}

void count_lanes(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> marks, std::size_t lanes,
                 std::uint32_t* loads, std::uint64_t* most) {
  fill(queue, as_writable_bytes(View<std::uint32_t, Space::cuda>{loads, lanes}), 0);
  launch(queue, "marks of lanes", lanes_kernel, blocks_for(marks.size(), 4 * kThreads, 1024), marks.data(),
         marks.size(), lanes, loads);
  launch(queue, "fullest lane", most_kernel, {1, schedule::kLanes}, loads, lanes, most);
}

void scatter_at(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* values,
                float* to) {
  if (positions.empty()) return;
  launch(queue, "scatter", scatter_kernel, blocks_for(positions.size(), kThreads), positions.data(), positions.size(),
         values, to);
}

}  // namespace gradtool::cuda
