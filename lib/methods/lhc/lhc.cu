#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/draws.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "kernels/vector.hpp"
#include "lib/methods/lhc/format.hpp"
#include "lib/methods/lhc/reducer.hpp"

/// lhc on the GPU. Its tables are those of peeling.cpp, bit for bit: entries are sorted by cell, keep the order of the
/// elements within a cell, and each cell adds its own. Reading peels in rounds: all cells with one unknown element give
/// it at once, as the cell less its known elements in ascending order. So results are the same from run to run, and
/// differ from the CPU's by rounding.
namespace gradtool {
namespace cuda {
namespace {

constexpr std::uint32_t kHashes = format::kPeelingHashes;
constexpr std::uint32_t kNoCell = 0xffffffffu;  // the key of entries that are not used

/// The progress of reading, on the device.
struct PeelingProgress {
  std::uint64_t peeled = 0;    ///< elements, in all rounds
  std::uint64_t last = 0;      ///< elements, in the last round
  std::uint64_t elements = 0;  ///< that the table holds
};

/// A table's sizes, and what is known of its elements and cells, in device memory. An entry is an element in one of its
/// cells: entry kHashes * e + j is element e in sub-table j.
struct Peeling {
  std::size_t lanes = 0, rows = 0;  ///< rows of a sub-table
  std::size_t most = 0;             ///< elements, at most
  std::uint64_t seed = 0;

  std::uint32_t* cell_of = nullptr;  ///< [entry]
  std::uint32_t* signs = nullptr;    ///< [element]: bit j is set where it has a minus sign in sub-table j
  std::uint32_t* round = nullptr;    ///< [element]: the round in which it peeled, or 0
  float* values = nullptr;           ///< [element], once it has peeled

  std::uint32_t* listed = nullptr;  ///< elements of all cells, cell by cell, ascending within a cell
  std::uint32_t* first = nullptr;   ///< [cell]: its elements are listed[first .. last)
  std::uint32_t* last = nullptr;
  std::uint32_t* unknown = nullptr;  ///< [cell]: how many of its elements have not peeled

  PeelingProgress* progress = nullptr;
  std::uint32_t *keys = nullptr, *entries = nullptr, *sorted_keys = nullptr;  ///< what sorting works on
  View<std::byte, Space::cuda> sort{};                                        ///< temporary memory of sorting
  std::size_t bytes = 0;                                                      ///< scratch that all of this takes

  [[nodiscard]] GT_HD std::size_t cells() const { return kHashes * rows * lanes; }
  [[nodiscard]] GT_HD std::size_t entry_count() const { return kHashes * most; }
  [[nodiscard]] GT_HD std::uint32_t hash_of(std::uint32_t cell) const {
    return static_cast<std::uint32_t>(cell / (rows * lanes));
  }
};

/// Computes the cells of the *count elements at `positions`, or of `most` elements where `count` is null. No element
/// has peeled yet, and all lists are empty.
__global__ void entries_kernel(Peeling table, const std::uint32_t* positions, const std::uint32_t* count) {
  const std::size_t stated = count == nullptr ? table.most : *count;
  const std::size_t elements = stated < table.most ? stated : table.most;
  if (thread_in_grid() == 0) *table.progress = {0, 0, elements};
  for (std::size_t e = thread_in_grid(); e < table.most; e += threads_in_grid()) {
    if (e < elements) {
      const std::size_t block = positions[e] / table.lanes, lane = positions[e] % table.lanes;
      const format::Draws draws = format::draw4(format::shared_by_ranks({.seed = table.seed}), block);
      std::uint32_t signs = 0;
      for (std::uint32_t j = 0; j < kHashes; ++j) {
        const format::PeelingCell cell = format::peeling_cell(draws.bits, j, table.rows, table.lanes, lane);
        table.keys[kHashes * e + j] = static_cast<std::uint32_t>(cell.index);
        table.cell_of[kHashes * e + j] = static_cast<std::uint32_t>(cell.index);
        signs |= (cell.sign < 0.0f ? 1u : 0u) << j;
      }
      table.signs[e] = signs;
    } else {
      for (std::uint32_t j = 0; j < kHashes; ++j) table.keys[kHashes * e + j] = kNoCell;
    }
    table.round[e] = 0;
    for (std::uint32_t j = 0; j < kHashes; ++j) table.entries[kHashes * e + j] = static_cast<std::uint32_t>(e);
  }
  for (std::size_t c = thread_in_grid(); c < table.cells(); c += threads_in_grid()) {
    table.first[c] = 0;
    table.last[c] = 0;
  }
}

/// Finds where the list of each cell starts and ends among the sorted entries.
__global__ void borders_kernel(Peeling table) {
  const std::size_t count = table.entry_count();
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
    const std::uint32_t key = table.sorted_keys[i];
    if (key == kNoCell) continue;
    if (i == 0 || table.sorted_keys[i - 1] != key) table.first[key] = static_cast<std::uint32_t>(i);
    if (i + 1 == count || table.sorted_keys[i + 1] != key) table.last[key] = static_cast<std::uint32_t>(i + 1);
  }
}

__global__ void unknown_kernel(Peeling table) {
  for (std::size_t c = thread_in_grid(); c < table.cells(); c += threads_in_grid())
    table.unknown[c] = table.last[c] - table.first[c];
}

__device__ float signed_value(float value, std::uint32_t signs, std::uint32_t hash) {
  return (signs >> hash & 1u) != 0 ? -value : value;
}

/// A thread for each cell adds the values of its elements, in the order of the elements.
__global__ void sum_kernel(Peeling table, const float* values, float* cells) {
  for (std::size_t c = thread_in_grid(); c < table.cells(); c += threads_in_grid()) {
    const std::uint32_t hash = table.hash_of(static_cast<std::uint32_t>(c));
    float sum = 0.0f;
    for (std::uint32_t i = table.first[c]; i < table.last[c]; ++i) {
      const std::uint32_t e = table.listed[i];
      sum += signed_value(values[e], table.signs[e], hash);
    }
    cells[c] = sum;
  }
}

/// The value of an element from a cell: the cell less its other elements, as far as they are known.
__device__ float less_known(const Peeling& table, const float* cells, std::uint32_t cell, std::uint32_t hash,
                            std::uint32_t element) {
  float rest = cells[cell];
  for (std::uint32_t i = table.first[cell]; i < table.last[cell]; ++i) {
    const std::uint32_t other = table.listed[i];
    if (other != element && table.round[other] != 0)
      rest -= signed_value(table.values[other], table.signs[other], hash);
  }
  return signed_value(rest, table.signs[element], hash);
}

/// One round. It writes nothing that it reads: in a cell whose only unknown is this element, all others have peeled in
/// earlier rounds.
__global__ void peel_kernel(Peeling table, const float* cells, std::uint32_t round) {
  if (thread_in_grid() == 0) table.progress->last = 0;
  for (std::size_t e = thread_in_grid(); e < table.progress->elements; e += threads_in_grid()) {
    if (table.round[e] != 0) continue;
    for (std::uint32_t j = 0; j < kHashes; ++j) {
      const std::uint32_t cell = table.cell_of[kHashes * e + j];
      if (table.unknown[cell] != 1) continue;
      table.values[e] = less_known(table, cells, cell, j, static_cast<std::uint32_t>(e));
      table.round[e] = round;
      break;
    }
  }
}

/// Counts what has peeled in this round, and takes it off the unknowns of its cells.
__global__ void count_peeled_kernel(Peeling table, std::uint32_t round) {
  std::uint32_t peeled = 0;
  for (std::size_t e = thread_in_grid(); e < table.progress->elements; e += threads_in_grid()) {
    if (table.round[e] != round) continue;
    for (std::uint32_t j = 0; j < kHashes; ++j) atomicSub(&table.unknown[table.cell_of[kHashes * e + j]], 1u);
    ++peeled;
  }
  peeled = __reduce_add_sync(kAllLanes, peeled);
  if (lane_in_warp() == 0 && peeled != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.progress->peeled), std::uint64_t{peeled});
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.progress->last), std::uint64_t{peeled});
  }
}

/// out := factor times the values that have peeled; the median of its three cells for an element that has not.
__global__ void finish_kernel(Peeling table, const float* cells, const std::uint32_t* positions, float factor,
                              float* out) {
  for (std::size_t e = thread_in_grid(); e < table.progress->elements; e += threads_in_grid()) {
    float value;
    if (table.round[e] != 0) {
      value = table.values[e];
    } else {
      float estimate[kHashes];
#pragma unroll
      for (std::uint32_t j = 0; j < kHashes; ++j)
        estimate[j] = less_known(table, cells, table.cell_of[kHashes * e + j], j, static_cast<std::uint32_t>(e));
      value = format::median_of_three(estimate[0], estimate[1], estimate[2]);
    }
    out[positions[e]] = factor * value;
  }
}

}  // namespace
}  // namespace cuda

namespace {

using Bytes = View<std::byte, Space::cuda>;
template <class T>
using DeviceView = View<T, Space::cuda>;

/// The steps of a rank by itself, on a GPU; see LhcReducer.
class CudaSteps {
 public:
  CudaSteps(Queue<Space::cuda> /*queue*/, const LhcPlan& plan)
      : plan_{plan},
        most_{std::min(plan.n, plan.ranks * plan.kept)},
        key_bits_{std::clamp(static_cast<int>(std::bit_width(plan.most_rows * plan.lanes)), 1, 32)},
        select_bytes_{plan.n == 0 ? 0 : cuda::Select::scratch_bytes(plan.n)},
        mark_bytes_{cuda::mark_scratch_bytes(plan.n)},
        progress_{sizeof(cuda::PeelingProgress) / sizeof(std::uint64_t)} {
    expect_valid(plan.n < (std::size_t{1} << 32) - 1 && cuda::kHashes * most_ < (std::size_t{1} << 32),
                 "lhc: a unit of more elements than a table has numbers for");
    GT_CUDA(sort(table(most_, {}), nullptr, sort_bytes_, {}));
  }

  [[nodiscard]] std::size_t scratch_bytes() const {
    std::size_t table_bytes = 0;
    static_cast<void>(table(most_, Planning{&table_bytes}));
    return std::max({select_bytes_, table_bytes, planned<ReadWorkspace>(*this), planned<LaneWorkspace>(plan_.lanes)});
  }

  void keep(Queue<Space::cuda> queue, DeviceView<const float> u, DeviceView<float> residual,
            DeviceView<std::uint32_t> positions, DeviceView<float> values, DeviceView<std::uint32_t> marks,
            Bytes scratch) const {
    cuda::fill(queue, as_writable_bytes(marks), 0);
    if (plan_.kept == 0) return;
    const cuda::Select select{queue, u, scratch.first(select_bytes_)};
    select.largest(plan_.kept);
    select.write(positions.data(), values.data());
    cuda::set_marks(queue, positions.data(), nullptr, positions.size(), marks.data());
    if (!residual.empty()) cuda::zero_at(queue, positions.data(), nullptr, positions.size(), residual.data());
  }
  void merge(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> other, DeviceView<std::uint32_t> marks) const {
    cuda::or_marks(queue, other, marks);
  }
  [[nodiscard]] std::size_t fullest_lane(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> marks,
                                         Bytes scratch) {
    const LaneWorkspace work{plan_.lanes, Scratch<Space::cuda>{scratch}};
    cuda::count_lanes(queue, marks, plan_.lanes, work.loads.data(), work.most.data());
    progress_.fetch(queue, as_bytes(work.most));
    return static_cast<std::size_t>(progress_.wait(queue)[0]);
  }

  void set_rows(std::size_t rows) { rows_ = rows / cuda::kHashes; }
  [[nodiscard]] std::size_t cells() const { return cuda::kHashes * rows_ * plan_.lanes; }

  void write(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> positions, DeviceView<const float> values,
             DeviceView<float> cells, Bytes scratch) const {
    const cuda::Peeling list = table(positions.size(), Scratch<Space::cuda>{scratch});
    list_cells(queue, list, positions.data(), nullptr);
    cuda::launch(queue, "lhc sums of cells", cuda::sum_kernel, cuda::blocks_for(list.cells(), cuda::kThreads), list,
                 values.data(), cells.data());
  }
  void write_whole(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> positions, DeviceView<const float> values,
                   DeviceView<float> out) const {
    fill_zero(queue, out);
    cuda::scatter_at(queue, positions, values.data(), out.data());
  }

  std::size_t read(Queue<Space::cuda> queue, DeviceView<std::uint32_t> marks, DeviceView<float> cells, float factor,
                   DeviceView<float> out, Bytes scratch) {
    const ReadWorkspace work{*this, Scratch<Space::cuda>{scratch}};
    const cuda::Peeling& list = work.table;
    const std::uint32_t* positions = work.positions.data();
    cuda::mark_positions(queue, cuda::scan_marks(queue, marks, plan_.n, work.scan), work.positions.data(),
                         work.count.data());
    list_cells(queue, list, positions, work.count.data());
    // Only the GPU sees whether a round has found anything, so rounds are enqueued many at a time. Large tables that
    // peel at all do so within some dozen rounds.
    constexpr std::uint32_t kRounds = 16;
    const unsigned blocks = cuda::blocks_for(most_, cuda::kThreads);
    std::uint64_t left = 0;
    std::uint32_t round = 0;
    for (bool more = true; more;) {
      for (std::uint32_t r = 0; r < kRounds; ++r) {
        ++round;
        cuda::launch(queue, "lhc peel", cuda::peel_kernel, blocks, list, cells.data(), round);
        cuda::launch(queue, "lhc count peeled", cuda::count_peeled_kernel, blocks, list, round);
      }
      progress_.fetch(queue, as_bytes(DeviceView<const cuda::PeelingProgress>{list.progress, 1}));
      const auto numbers = progress_.wait(queue);  // the members of PeelingProgress
      left = numbers[2] - numbers[0];
      more = left > 0 && numbers[1] > 0;
    }
    cuda::launch(queue, "lhc finish", cuda::finish_kernel, blocks, list, cells.data(), positions, factor, out.data());
    return static_cast<std::size_t>(left);
  }
  void copy(Queue<Space::cuda> queue, DeviceView<const float> in, DeviceView<float> out) const {
    cuda::copy_elements(queue, out, in);
  }

 private:
  struct LaneWorkspace {
    LaneWorkspace(std::size_t lanes, Scratch<Space::cuda> scratch)
        : loads{scratch.take<std::uint32_t>(lanes)}, most{scratch.take<std::uint64_t>(1)} {}
    DeviceView<std::uint32_t> loads;  ///< marked elements of each lane
    DeviceView<std::uint64_t> most;
  };
  struct ReadWorkspace {
    ReadWorkspace(const CudaSteps& steps, Scratch<Space::cuda> scratch)
        : scan{scratch.take_bytes(steps.mark_bytes_)},
          positions{scratch.take<std::uint32_t>(steps.most_)},
          count{scratch.take<std::uint32_t>(1)},
          table{steps.table(steps.most_, scratch)} {}
    Bytes scan;
    DeviceView<std::uint32_t> positions;  ///< of the marked elements, ascending
    DeviceView<std::uint32_t> count;
    cuda::Peeling table;
  };

  /// The arrays for a table of at most `most` elements.
  [[nodiscard]] cuda::Peeling table(std::size_t most, Scratch<Space::cuda> scratch) const {
    const std::size_t cells = plan_.most_rows * plan_.lanes;
    cuda::Peeling table{.lanes = plan_.lanes, .rows = rows_, .most = most, .seed = plan_.seed};
    for (auto** per_entry : {&table.keys, &table.entries, &table.sorted_keys, &table.listed, &table.cell_of})
      *per_entry = scratch.take<std::uint32_t>(table.entry_count()).data();
    for (auto** per_element : {&table.signs, &table.round}) *per_element = scratch.take<std::uint32_t>(most).data();
    table.values = scratch.take<float>(most).data();
    for (auto** per_cell : {&table.first, &table.last, &table.unknown})
      *per_cell = scratch.take<std::uint32_t>(cells).data();
    table.progress = scratch.take<cuda::PeelingProgress>(1).data();
    table.sort = scratch.take_bytes(sort_bytes_);
    return table;
  }

  /// Sorts entries by cell. Those with kNoCell end up behind all others, because its lowest key_bits_ bits, all set,
  /// are above any cell. A null `temporary` asks how many bytes of temporary memory it needs.
  [[nodiscard]] cudaError_t sort(const cuda::Peeling& table, void* temporary, std::size_t& bytes,
                                 Queue<Space::cuda> queue) const {
    return cub::DeviceRadixSort::SortPairs(temporary, bytes, static_cast<const std::uint32_t*>(table.keys),
                                           table.sorted_keys, static_cast<const std::uint32_t*>(table.entries),
                                           table.listed, static_cast<std::int64_t>(table.entry_count()), 0, key_bits_,
                                           queue.stream);
  }

  /// Enqueued: lists the elements of each cell, for the *count positions given, or `table.most` where `count` is null.
  void list_cells(Queue<Space::cuda> queue, const cuda::Peeling& table, const std::uint32_t* positions,
                  const std::uint32_t* count) const {
    const auto blocks = [](std::size_t items) { return cuda::blocks_for(items, cuda::kThreads); };
    cuda::launch(queue, "lhc entries", cuda::entries_kernel, blocks(std::max(table.most, table.cells())), table,
                 positions, count);
    std::size_t bytes = table.sort.size();
    GT_CUDA(sort(table, table.sort.data(), bytes, queue));
    cuda::launch(queue, "lhc borders", cuda::borders_kernel, blocks(table.entry_count()), table);
    cuda::launch(queue, "lhc unknown", cuda::unknown_kernel, blocks(table.cells()), table);
  }

  LhcPlan plan_;
  std::size_t most_;      ///< elements that a table of all ranks may hold
  std::size_t rows_ = 0;  ///< of a sub-table
  int key_bits_;
  std::size_t sort_bytes_ = 0, select_bytes_, mark_bytes_;  ///< asked for once: `reduce` is in the timed region
  ReadBack<Space::cuda> progress_;
};

}  // namespace

extern constinit const GpuFactories lhc_gpu{.reducer =
                                                make_method_reducer<Space::cuda, LhcReducer<Space::cuda, CudaSteps>>};

}  // namespace gradtool
