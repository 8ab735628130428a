#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/units.hpp"
#include "kernels/cuda/warp.hpp"

/// Kernels over units, for .cu files. A kernel is a type with
///   std::size_t blocks(std::size_t n) const                       thread blocks for a unit of n > 0 elements
///   __device__ void run(unit, index, const Place&) const          what one thread does; `index` numbers the units
/// and members that all units share. The same code serves one unit and many. `Work::Item` is the type of its units
/// where that is not Unit; it has a member n, and then blocks takes the unit itself.
namespace gradtool::cuda {

/// The place of a thread among those of its unit, for loops over elements by thread and over pieces by warp.
struct Place {
  std::size_t block, blocks;

  __device__ std::size_t thread() const { return block * kThreads + threadIdx.x; }
  __device__ std::size_t threads() const { return blocks * kThreads; }
  __device__ std::size_t warp() const { return thread() / kWarpSize; }
  __device__ std::size_t warps() const { return threads() / kWarpSize; }
};

/// The place of a thread in a kernel that works on a single tensor.
__device__ inline Place whole_grid() {
  return {blockIdx.x, gridDim.x};
}

template <class Work>
struct ItemOf {
  using Type = Unit;
};
template <class Work>
requires requires {
  typename Work::Item;
}
struct ItemOf<Work> {
  using Type = typename Work::Item;
};

/// Units of a launch of `Work`, at most.
template <class Work>
inline constexpr std::size_t kMostItems = std::min<std::size_t>(kMostUnits,
                                                                (4096 - 64 - sizeof(Work)) /
                                                                    (sizeof(typename ItemOf<Work>::Type) + 4) / 2 * 2);

/// The parameters of a launch, which say which thread blocks of the grid work on which unit.
template <class Work>
struct UnitTable {
  Work work;
  std::uint32_t count;
  std::uint32_t first_index;             ///< index of units[0] among all units of the caller
  std::uint32_t ends[kMostItems<Work>];  ///< one more than the last block of each unit; none without elements
  typename ItemOf<Work>::Type units[kMostItems<Work>];
};

/// Thread blocks that fit a multiprocessor together, at least. A kernel says so (kResident) where the compiler would
/// otherwise spend too many registers.
template <class Work>
constexpr unsigned resident_blocks() {
  if constexpr (requires { Work::kResident; })
    return Work::kResident;
  else
    return 1;
}

template <class Work>
__global__ void __launch_bounds__(kThreads, resident_blocks<Work>())
    units_kernel(const __grid_constant__ UnitTable<Work> table) {
  // Find the first unit whose end lies behind this block. A single one is found at once: a kernel of its own for it
  // would be compiled for every codec again, to pass a smaller table.
  std::uint32_t unit = 0;
  for (std::uint32_t behind = table.count - 1; unit < behind;) {
    const std::uint32_t middle = (unit + behind) / 2;
    if (blockIdx.x < table.ends[middle])
      behind = middle;
    else
      unit = middle + 1;
  }
  const std::uint32_t begin = unit == 0 ? 0 : table.ends[unit - 1];
  table.work.run(table.units[unit], table.first_index + unit, Place{blockIdx.x - begin, table.ends[unit] - begin});
}

/// Enqueues the kernel for all units, kMostItems a launch.
template <class Work>
void launch_units(Queue<Space::cuda> queue, const char* name, const Work& work,
                  std::span<const typename ItemOf<Work>::Type> units) {
  for (std::size_t first = 0; first < units.size(); first += kMostItems<Work>) {
    const auto batch = units.subspan(first, std::min(kMostItems<Work>, units.size() - first));
    UnitTable<Work> table{.work = work,
                          .count = static_cast<std::uint32_t>(batch.size()),
                          .first_index = static_cast<std::uint32_t>(first),
                          .ends = {},
                          .units = {}};
    static_assert(sizeof table <= 4096, "more than the parameters of a kernel");
    std::uint32_t end = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (batch[i].n > 0) {
        if constexpr (requires { work.blocks(batch[i]); })
          end += static_cast<std::uint32_t>(work.blocks(batch[i]));
        else
          end += static_cast<std::uint32_t>(work.blocks(batch[i].n));
      }
      table.ends[i] = end;
      table.units[i] = batch[i];
    }
    if (end > 0) launch(queue, name, units_kernel<Work>, end, table);
  }
}

}  // namespace gradtool::cuda
