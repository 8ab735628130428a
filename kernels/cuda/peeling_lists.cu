#include "kernels/cuda/peeling_lists.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kHashes = kPeelingHashes;
constexpr std::uint32_t kNoCell = 0xffffffffu;  // of entries that are none

/// Entry 3 e + j is element e in sub-table j. Lists are empty.
__global__ void entries_kernel(PeelingWork work, const std::uint32_t* positions, const std::uint32_t* count) {
  const PeelingShape& shape = work.shape;
  const PeelingElements& elements = work.elements;
  const std::size_t listed = count == nullptr ? shape.most : *count;
  const std::size_t here = listed < shape.most ? listed : shape.most;
  if (thread_in_grid() == 0) *work.progress = {0, 0, here};
  for (std::size_t e = thread_in_grid(); e < shape.most; e += threads_in_grid()) {
    if (e < here) {
      const std::size_t block = positions[e] / shape.lanes, lane = positions[e] % shape.lanes;
      const law::Draws draws = law::draw4(law::shared_by_ranks({.seed = shape.seed}), block);
      std::uint32_t signs = 0;
      for (std::uint32_t j = 0; j < kHashes; ++j) {
        const law::PeelingCell cell = law::peeling_cell(draws.bits, j, shape.rows_each, shape.lanes, lane);
        work.keys[kHashes * e + j] = static_cast<std::uint32_t>(cell.at);
        elements.cells[kHashes * e + j] = static_cast<std::uint32_t>(cell.at);
        signs |= (cell.sign < 0.0f ? 1u : 0u) << j;
      }
      elements.signs[e] = signs;
    } else {
      for (std::uint32_t j = 0; j < kHashes; ++j) work.keys[kHashes * e + j] = kNoCell;
    }
    elements.round[e] = 0;
    for (std::uint32_t j = 0; j < kHashes; ++j) work.entries[kHashes * e + j] = static_cast<std::uint32_t>(e);
  }
  for (std::size_t c = thread_in_grid(); c < shape.cells(); c += threads_in_grid()) {
    work.lists.first[c] = 0;
    work.lists.last[c] = 0;
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

__global__ void unknown_kernel(std::size_t cells, PeelingLists lists, std::uint32_t* unknown) {
  for (std::size_t c = thread_in_grid(); c < cells; c += threads_in_grid()) unknown[c] = lists.last[c] - lists.first[c];
}

/// Entries that are none end up behind all cells: the lowest bits of kNoCell are above any cell.
cudaError_t sort_entries(void* room, std::size_t& bytes, const PeelingWork& work, CUstream_st* stream) {
  return cub::DeviceRadixSort::SortPairs(room, bytes, static_cast<const std::uint32_t*>(work.keys), work.sorted_keys,
                                         static_cast<const std::uint32_t*>(work.entries), work.lists.element,
                                         static_cast<std::int64_t>(work.shape.entries()), 0, work.key_bits, stream);
}

}  // namespace

PeelingWork::PeelingWork(const PeelingShape& of, std::size_t most_cells, View<std::byte, Space::cuda> scratch)
    : shape{of}, key_bits{std::clamp(static_cast<int>(std::bit_width(most_cells)), 1, 32)} {
  ScratchPieces pieces{scratch};
  pieces.take(keys, shape.entries());
  pieces.take(entries, shape.entries());
  pieces.take(sorted_keys, shape.entries());
  pieces.take(lists.element, shape.entries());
  pieces.take(elements.cells, shape.entries());
  pieces.take(elements.signs, shape.most);
  pieces.take(elements.round, shape.most);
  pieces.take(elements.values, shape.most);
  pieces.take(lists.first, most_cells);
  pieces.take(lists.last, most_cells);
  pieces.take(unknown, most_cells);
  pieces.take(progress, 1);
  bytes = pieces.bytes();
  if (!scratch.empty()) sort = scratch.part(bytes, scratch.size() - bytes);
}

std::size_t peeling_sort_bytes(const PeelingWork& work) {
  std::size_t bytes = 0;
  GT_CUDA(sort_entries(nullptr, bytes, work, nullptr));
  return bytes;
}

void list_cells(Queue<Space::cuda> queue, const PeelingWork& work, const std::uint32_t* positions,
                const std::uint32_t* count) {
  const std::size_t cells = work.shape.cells(), entries = work.shape.entries();
  const PeelingLists& lists = work.lists;
  launch(queue, "cells of elements", entries_kernel, blocks_for(std::max(work.shape.most, cells), kThreads), work,
         positions, count);
  std::size_t room = work.sort.size();
  GT_CUDA(sort_entries(work.sort.data(), room, work, queue.stream));
  launch(queue, "borders of cells", borders_kernel, blocks_for(entries, kThreads), work.sorted_keys, entries,
         lists.first, lists.last);
  launch(queue, "elements of cells", unknown_kernel, blocks_for(cells, kThreads), cells, lists, work.unknown);
}

}  // namespace gradtool::cuda
