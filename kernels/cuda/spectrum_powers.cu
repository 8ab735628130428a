#include <cuda_runtime.h>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/spectrum.hpp"
#include "kernels/cuda/spectrum_tops.hpp"

namespace gradtool::cuda {
namespace {

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
                                  const __grid_constant__ SpectrumCuts cuts, PowerSums* sums) {
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

}  // namespace

void sum_power(Queue<Space::cuda> queue, const double* spectrum, std::size_t n, const TopCounts& tops, PowerSums* sums,
               View<std::byte, Space::cuda> memory) {
  const SpectrumWork work{memory, n};
  const std::size_t bins = n / 2 + 1;
  auto* power = reinterpret_cast<double*>(work.keys);
  launch(queue, "power", power_kernel, blocks_for(bins, 4 * kThreads, kMostSpectrumBlocks),
         reinterpret_cast<const double2*>(spectrum), bins, 1.0 / static_cast<double>(n), power);
  Grid grid{blocks_for(bins / kSpectrumBands, 4 * kThreads, kMostSpectrumBlocks / 4)};
  grid.y = kSpectrumBands;
  launch(queue, "bands", bands_kernel, grid, power, n, work.partial);
  join_rows(queue, work.partial, grid.x, 3 * kSpectrumBands, work.joined);
  const SpectrumCuts cuts{tops};
  sum_tops<double>(queue, work, bins, cuts, sums->tops);
  launch(queue, "power sums", power_sums_kernel, {1, schedule::kLanes}, work.joined, power,
         reinterpret_cast<const double*>(work.sorted), bins, cuts, sums);
}

}  // namespace gradtool::cuda
