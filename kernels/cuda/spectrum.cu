#include "kernels/cuda/spectrum.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kMostBlocks = 512;  // of one sum; so many partial sums
constexpr std::size_t kPartialBytes = kMostBlocks * (kSpectrumBands * 3 + 4) * sizeof(double);

std::size_t padded(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

struct Cuts {
  std::uint64_t end[kSpectrumTops];
  __device__ std::uint64_t first(unsigned top) const { return top == 0 ? 0 : end[top - 1]; }
};

Cuts cuts_of(const TopCounts& tops) {
  Cuts cuts{};
  std::copy(tops.begin(), tops.end(), cuts.end);
  return cuts;
}

struct Look {
  double total, energy, low, high, non_finite;
};

__device__ Look block_look(Look own) {
  __shared__ double low[kThreads], high[kThreads];
  low[threadIdx.x] = own.low;
  high[threadIdx.x] = own.high;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      low[threadIdx.x] = fmin(low[threadIdx.x], low[threadIdx.x + half]);
      high[threadIdx.x] = fmax(high[threadIdx.x], high[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return {block_sum(own.total), block_sum(own.energy), low[0], high[0], block_sum(own.non_finite)};
}

/// One look at every value: its sums, its magnitude as a key to sort by, and itself in double precision.
__global__ void look_kernel(const float* values, std::size_t n, double* wide, std::uint32_t* keys, Look* partial) {
  Look own{0, 0, static_cast<double>(values[0]), static_cast<double>(values[0]), 0};
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const double x = static_cast<double>(values[i]);
    own.total += x;
    own.energy += x * x;
    own.low = fmin(own.low, x);
    own.high = fmax(own.high, x);
    own.non_finite += x - x == 0 ? 0 : 1;
    wide[i] = x;
    keys[i] = __float_as_uint(values[i]) & 0x7fffffffu;
  }
  const Look all = block_look(own);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

__global__ void join_look_kernel(const Look* partial, unsigned count, ValueSums* sums) {
  Look own{0, 0, partial[0].low, partial[0].high, 0};
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    own.total += partial[i].total;
    own.energy += partial[i].energy;
    own.low = fmin(own.low, partial[i].low);
    own.high = fmax(own.high, partial[i].high);
    own.non_finite += partial[i].non_finite;
  }
  const Look all = block_look(own);
  if (threadIdx.x != 0) return;
  sums->total = all.total;
  sums->energy = all.energy;
  sums->low = all.low;
  sums->high = all.high;
  sums->non_finite = static_cast<std::uint64_t>(all.non_finite);
}

/// Row r of `partial` gets the block's sum of kind r; rows are gridDim.x long.
__global__ void lag_kernel(const float* values, std::size_t n, const ValueSums* sums, double* partial) {
  const double mean = sums->total / static_cast<double>(n);
  double product = 0, centred = 0;
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const double x = static_cast<double>(values[i]) - mean;
    centred += x * x;
    if (i > 0) product += (static_cast<double>(values[i - 1]) - mean) * x;
  }
  const double all_product = block_sum(product), all_centred = block_sum(centred);
  if (threadIdx.x != 0) return;
  partial[blockIdx.x] = all_product;
  partial[gridDim.x + blockIdx.x] = all_centred;
}

/// Block (x, top) sums its share of the keys that selection `top` adds to the one before, squares of values or powers.
template <class Key>
__global__ void tops_kernel(const Key* sorted, const __grid_constant__ Cuts cuts, double* partial) {
  double own = 0;
  for (std::uint64_t i = cuts.first(blockIdx.y) + thread_in_grid(); i < cuts.end[blockIdx.y]; i += threads_in_grid()) {
    if constexpr (sizeof(Key) == sizeof(std::uint32_t)) {
      const double x = static_cast<double>(__uint_as_float(sorted[i]));
      own += x * x;
    } else {
      own += sorted[i];
    }
  }
  const double all = block_sum(own);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = all;
}

/// Block r sums row r of `partial`, `count` numbers.
__global__ void join_kernel(const double* partial, unsigned count, double* sums) {
  double own = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) own += partial[std::size_t{blockIdx.x} * count + i];
  const double all = block_sum(own);
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

/// power[k] := |spectrum[k]|^2 * scale.
__global__ void power_kernel(const double2* spectrum, std::size_t bins, double scale, double* power) {
  for (std::size_t k = thread_in_grid(); k < bins; k += threads_in_grid()) {
    const double2 x = spectrum[k];
    power[k] = (x.x * x.x + x.y * x.y) * scale;
  }
}

/// Block (x, band): the band's bins are those with floor(2 bands k / n) = band; the last one has the Nyquist frequency
/// as well. Rows of `partial`: energies of all bands, then powers, then logarithms.
__global__ void bands_kernel(const double* power, std::size_t n, double* partial) {
  constexpr std::size_t kTwo = 2 * kSpectrumBands;
  const std::size_t band = blockIdx.y;
  const std::size_t first = (band * n + kTwo - 1) / kTwo;
  const std::size_t last = band + 1 == kSpectrumBands ? n / 2 + 1 : ((band + 1) * n + kTwo - 1) / kTwo;
  double energy = 0, interior = 0, logs = 0;
  for (std::size_t k = first + thread_in_grid(); k < last; k += threads_in_grid()) {
    const bool edge = k == 0 || 2 * k == n;
    energy += edge ? power[k] : 2 * power[k];
    if (edge) continue;
    interior += power[k];
    logs += log(power[k]);
  }
  const double all_energy = block_sum(energy), all_interior = block_sum(interior), all_logs = block_sum(logs);
  if (threadIdx.x != 0) return;
  const std::size_t at = band * gridDim.x + blockIdx.x, kind = kSpectrumBands * gridDim.x;
  partial[at] = all_energy;
  partial[kind + at] = all_interior;
  partial[2 * kind + at] = all_logs;
}

/// One warp. `joined`: the rows of bands_kernel.
__global__ void power_sums_kernel(const double* joined, const double* power, const double* sorted, std::size_t bins,
                                  const __grid_constant__ Cuts cuts, PowerSums* sums) {
  if (threadIdx.x < kSpectrumBands) sums->bands[threadIdx.x] = joined[threadIdx.x];
  if (threadIdx.x < kSpectrumTops) {
    const std::uint64_t end = cuts.end[threadIdx.x];
    sums->threshold[threadIdx.x] = end > 0 ? sorted[end - 1] : 0.0;
    sums->next[threadIdx.x] = end < bins ? sorted[end] : -1.0;
  }
  if (threadIdx.x != 0) return;
  double interior = 0, logs = 0;
  for (std::size_t b = 0; b < kSpectrumBands; ++b) {
    interior += joined[kSpectrumBands + b];
    logs += joined[2 * kSpectrumBands + b];
  }
  sums->interior = interior;
  sums->interior_log = logs;
  sums->zero = power[0];
  sums->last = power[bins - 1];
}

template <class Key>
std::size_t sort_bytes(std::size_t count) {
  std::size_t bytes = 0;
  Key* none = nullptr;
  GT_CUDA(cub::DeviceRadixSort::SortKeysDescending(nullptr, bytes, static_cast<const Key*>(none), none,
                                                   static_cast<std::int64_t>(count)));
  return bytes;
}

/// Pieces of the work memory. Keys and sorted keys are those of values or of powers, never both.
struct Work {
  Work(std::byte* memory, std::size_t n) {
    const std::size_t bytes = keys_bytes(n);
    keys = memory;
    sorted = memory + bytes;
    partial = reinterpret_cast<double*>(memory + 2 * bytes);
    joined = partial + kPartialBytes / sizeof(double);
    sort = memory + 2 * bytes + kPartialBytes + 1024;
    sort_room = std::max(sort_bytes<std::uint32_t>(n), sort_bytes<double>(n / 2 + 1));
  }
  static std::size_t keys_bytes(std::size_t n) { return padded(std::max(4 * n, 8 * (n / 2 + 1))); }
  static std::size_t bytes(std::size_t n) {
    return 2 * keys_bytes(n) + kPartialBytes + 1024 +
           padded(std::max(sort_bytes<std::uint32_t>(n), sort_bytes<double>(n / 2 + 1)));
  }
  std::byte *keys, *sorted, *sort;
  double *partial, *joined;
  std::size_t sort_room;
};

template <class Key>
void sum_tops(Queue<Space::cuda> queue, const Work& work, std::size_t count, const Cuts& cuts, double* out) {
  auto* sorted = reinterpret_cast<Key*>(work.sorted);
  std::size_t room = work.sort_room;
  GT_CUDA(cub::DeviceRadixSort::SortKeysDescending(work.sort, room, reinterpret_cast<const Key*>(work.keys), sorted,
                                                   static_cast<std::int64_t>(count), 0, 8 * int{sizeof(Key)},
                                                   queue.stream));
  Grid grid{blocks_for(count / kSpectrumTops, 4 * kThreads, kMostBlocks)};
  grid.y = kSpectrumTops;
  launch(queue, "energy of the largest", tops_kernel<Key>, grid, sorted, cuts, work.partial);
  launch(queue, "sums of blocks", join_kernel, kSpectrumTops, work.partial, grid.x, out);
}

}  // namespace

std::size_t spectrum_work_bytes(std::size_t n) {
  return Work::bytes(n);
}

void sum_values(Queue<Space::cuda> queue, const float* values, std::size_t n, const TopCounts& tops, double* wide,
                ValueSums* sums, std::byte* memory) {
  const Work work{memory, n};
  const unsigned blocks = blocks_for(n, 4 * kThreads, kMostBlocks);
  auto* looks = reinterpret_cast<Look*>(work.partial);
  launch(queue, "look at values", look_kernel, blocks, values, n, wide, reinterpret_cast<std::uint32_t*>(work.keys),
         looks);
  launch(queue, "sums of values", join_look_kernel, 1U, looks, blocks, sums);
  launch(queue, "lag products", lag_kernel, blocks, values, n, sums, work.partial);
  launch(queue, "sums of blocks", join_kernel, 2U, work.partial, blocks, &sums->lag_product);
  sum_tops<std::uint32_t>(queue, work, n, cuts_of(tops), sums->tops);
}

void sum_power(Queue<Space::cuda> queue, const double* spectrum, std::size_t n, const TopCounts& tops, PowerSums* sums,
               std::byte* memory) {
  const Work work{memory, n};
  const std::size_t bins = n / 2 + 1;
  auto* power = reinterpret_cast<double*>(work.keys);
  launch(queue, "power", power_kernel, blocks_for(bins, 4 * kThreads, kMostBlocks),
         reinterpret_cast<const double2*>(spectrum), bins, 1.0 / static_cast<double>(n), power);
  Grid grid{blocks_for(bins / kSpectrumBands, 4 * kThreads, kMostBlocks / 4)};
  grid.y = kSpectrumBands;
  launch(queue, "bands", bands_kernel, grid, power, n, work.partial);
  launch(queue, "sums of blocks", join_kernel, unsigned{3 * kSpectrumBands}, work.partial, grid.x, work.joined);
  const Cuts cuts = cuts_of(tops);
  sum_tops<double>(queue, work, bins, cuts, sums->tops);
  launch(queue, "power sums", power_sums_kernel, {1, schedule::kLanes}, work.joined, power,
         reinterpret_cast<const double*>(work.sorted), bins, cuts, sums);
}

}  // namespace gradtool::cuda
