#include <cuda_runtime.h>
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "lib/analysis/cuda/gpu.hpp"
#include "lib/analysis/spectrum.hpp"
#include "lib/core/view.hpp"

/// The sums that the spectrum analysis takes over the values of a gradient and over its spectrum, in double precision.
/// All functions enqueue their work and use memory that the caller provides. The order of all sums depends on the sizes
/// alone.
namespace gradtool::cuda {
namespace {

constexpr std::size_t kSpectrumTops = kTopFractions.size();  ///< number of selections of the strongest values or bins
constexpr std::size_t kSpectrumBands = kBands;               ///< bands of equal width up to the Nyquist frequency

/// Sums over n values, from which SpectrumSums is computed.
struct ValueSums {
  double total = 0, energy = 0;
  double low = 0, high = 0;
  double lag_product = 0, centred_energy = 0;  ///< about the mean total / n
  double tops[kSpectrumTops] = {};             ///< energy of the values that each selection adds to the one before
  std::uint64_t non_finite = 0;
};

/// Sums over the n/2 + 1 bins of the spectrum of n values. The power of a bin is |X|^2 of the unitary transform.
struct PowerSums {
  double bands[kSpectrumBands] = {};      ///< energy of each band, conjugate bins included
  double interior = 0, interior_log = 0;  ///< power and log power, summed over the bins between 0 and Nyquist
  double zero = 0, last = 0;              ///< power of the first and of the last bin
  double tops[kSpectrumTops] = {};        ///< power of the bins that each selection adds to the one before
  double threshold[kSpectrumTops] = {};   ///< the least power in the selection; 0 when it is empty
  double next[kSpectrumTops] = {};        ///< the greatest power outside of the selection; -1 when it has all bins
};

/// How many values or bins each selection has, ascending.
using TopCounts = std::array<std::uint64_t, kSpectrumTops>;

constexpr unsigned kMostSpectrumBlocks = 512;  ///< blocks of one sum, each of which writes a partial sum

/// The ends of the selections in the sorted keys, as an argument of kernels.
struct SpectrumCuts {
  explicit SpectrumCuts(const TopCounts& tops) { std::copy(tops.begin(), tops.end(), end); }
  std::uint64_t end[kSpectrumTops];
  [[nodiscard]] GT_HD std::uint64_t first(unsigned top) const { return top == 0 ? 0 : end[top - 1]; }
};

/// Sums what each selection adds to the one before. Block (x, y) handles its share of selection y. Keys are bit
/// patterns of magnitudes, which are squared, or powers.
template <class Key>
__global__ void tops_kernel(const Key* sorted, const __grid_constant__ SpectrumCuts cuts, double* partial) {
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

/// sums[r] := the sum of row r of `partial`, which has `count` numbers. Block r handles row r.
__global__ void join_kernel(const double* partial, unsigned count, double* sums) {
  double own = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) own += partial[std::size_t{blockIdx.x} * count + i];
  const double all = block_sum(own);
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

template <class Key>
std::size_t sort_bytes(std::size_t count) {
  std::size_t bytes = 0;
  Key* none = nullptr;
  GT_CUDA(cub::DeviceRadixSort::SortKeysDescending(nullptr, bytes, static_cast<const Key*>(none), none,
                                                   static_cast<std::int64_t>(count)));
  return bytes;
}

/// The working memory of sum_values and sum_power for n values. Both use `keys` and `sorted`, one after the other: the
/// former for the bit patterns of magnitudes, the latter for powers.
struct SpectrumWorkspace {
  SpectrumWorkspace(std::size_t n, Scratch<Space::cuda>& scratch) {
    const std::size_t bins = n / 2 + 1;
    keys = scratch.take_bytes(std::max(4 * n, 8 * bins)).data();
    sorted = scratch.take_bytes(std::max(4 * n, 8 * bins)).data();
    partial = scratch.take<double>(kMostSpectrumBlocks * kMostRows).data();
    joined = scratch.take<double>(kMostRows).data();
    sort = scratch.take_bytes(std::max(sort_bytes<std::uint32_t>(n), sort_bytes<double>(bins)));
  }
  static constexpr std::size_t kMostRows = 3 * kSpectrumBands;  ///< the most sums that one kernel computes
  std::byte *keys, *sorted;
  double* partial;                    ///< one number for each block and sum
  double* joined;                     ///< one number for each sum
  View<std::byte, Space::cuda> sort;  ///< for CUB's sort
};

void join_rows(Queue<Space::cuda> queue, const double* partial, unsigned count, unsigned rows, double* sums) {
  launch(queue, "sums of blocks", join_kernel, rows, partial, count, sums);
}

template <class Key>
void sum_tops(Queue<Space::cuda> queue, const SpectrumWorkspace& work, std::size_t count, const SpectrumCuts& cuts,
              double* out) {
  auto* sorted = reinterpret_cast<Key*>(work.sorted);
  std::size_t sort_bytes = work.sort.size();
  GT_CUDA(cub::DeviceRadixSort::SortKeysDescending(
      work.sort.data(), sort_bytes, reinterpret_cast<const Key*>(work.keys), sorted, static_cast<std::int64_t>(count),
      0, 8 * int{sizeof(Key)}, queue.stream));
  Grid grid{blocks_for(count / kSpectrumTops, 4 * kThreads, kMostSpectrumBlocks)};
  grid.y = kSpectrumTops;
  launch(queue, "energy of the largest", tops_kernel<Key>, grid, sorted, cuts, work.partial);
  join_rows(queue, work.partial, grid.x, kSpectrumTops, out);
}

/// Sums over the values that one thread, block or grid has read.
struct ValueStatistics {
  double total, energy, low, high, non_finite;
};

__device__ ValueStatistics block_statistics(const ValueStatistics& own) {
  const Extremes all = block_extremes({own.low, own.high});
  return {block_sum(own.total), block_sum(own.energy), all.low, all.high, block_sum(own.non_finite)};
}

/// Reads every value once: adds it to the sums, stores its magnitude as a key for sorting, and stores it in double
/// precision.
__global__ void value_statistics_kernel(const float* values, std::size_t n, double* wide, std::uint32_t* keys,
                                        ValueStatistics* partial) {
  ValueStatistics own{0, 0, static_cast<double>(values[0]), static_cast<double>(values[0]), 0};
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
  const ValueStatistics all = block_statistics(own);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

__global__ void join_value_statistics_kernel(const ValueStatistics* partial, unsigned count, ValueSums* sums) {
  ValueStatistics own{0, 0, partial[0].low, partial[0].high, 0};
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    own.total += partial[i].total;
    own.energy += partial[i].energy;
    own.low = fmin(own.low, partial[i].low);
    own.high = fmax(own.high, partial[i].high);
    own.non_finite += partial[i].non_finite;
  }
  const ValueStatistics all = block_statistics(own);
  if (threadIdx.x != 0) return;
  sums->total = all.total;
  sums->energy = all.energy;
  sums->low = all.low;
  sums->high = all.high;
  sums->non_finite = static_cast<std::uint64_t>(all.non_finite);
}

/// The lag products and the centred energy. Row 0 of `partial` receives the blocks' sums of the former, row 1 those of
/// the latter; a row has gridDim.x numbers.
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

/// sums := the sums over `values`, n >= 1; wide := the values in double precision.
void sum_values(Queue<Space::cuda> queue, const float* values, std::size_t n, const TopCounts& tops, double* wide,
                ValueSums* sums, const SpectrumWorkspace& work) {
  const unsigned blocks = blocks_for(n, 4 * kThreads, kMostSpectrumBlocks);
  auto* statistics = reinterpret_cast<ValueStatistics*>(work.partial);
  launch(queue, "sums of values by block", value_statistics_kernel, blocks, values, n, wide,
         reinterpret_cast<std::uint32_t*>(work.keys), statistics);
  launch(queue, "sums of values", join_value_statistics_kernel, 1U, statistics, blocks, sums);
  launch(queue, "lag products", lag_kernel, blocks, values, n, sums, work.partial);
  join_rows(queue, work.partial, blocks, 2, &sums->lag_product);
  sum_tops<std::uint32_t>(queue, work, n, SpectrumCuts{tops}, sums->tops);
}

/// power[k] := |spectrum[k]|^2 * scale.
__global__ void power_kernel(const double2* spectrum, std::size_t bins, double scale, double* power) {
  for (std::size_t k = thread_in_grid(); k < bins; k += threads_in_grid()) {
    const double2 x = spectrum[k];
    power[k] = (x.x * x.x + x.y * x.y) * scale;
  }
}

/// Sums over the bins of each band; block (x, y) handles a share of band y. Bin k belongs to band floor(2 bands k / n);
/// the last band has the bin of the Nyquist frequency as well. The rows of `partial` are the energies of all bands,
/// then their interior powers, then the sums of logarithms.
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

/// Writes the results of one spectrum; runs as one warp. `joined` has the sums of the rows of bands_kernel.
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

/// sums := the sums over the unnormalised `spectrum` of n values, which has n/2 + 1 complex numbers, 16-byte aligned.
void sum_power(Queue<Space::cuda> queue, const double* spectrum, std::size_t n, const TopCounts& tops, PowerSums* sums,
               const SpectrumWorkspace& work) {
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
  launch(queue, "power sums", power_sums_kernel, {1, kWarpSize}, work.joined, power,
         reinterpret_cast<const double*>(work.sorted), bins, cuts, sums);
}

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {
namespace {

/// The sums that the GPU computes from one gradient.
struct GradientSums {
  cuda::ValueSums values;
  cuda::PowerSums power;
};

/// Adds the sums of one gradient's values. Each of values.tops counts only what a selection adds to the one before.
void add_values(SpectrumSums& sums, const cuda::ValueSums& values) {
  sums.energy += values.energy;
  if (values.low < values.high) {  // constant values have no autocorrelation
    sums.lag_product += values.lag_product;
    sums.centred_energy += values.centred_energy;
  }
  double top = 0;
  for (std::size_t i = 0; i < kTopFractions.size(); ++i) sums.raw[i] += top += values.tops[i];
}

/// Adds the sums of one gradient's spectrum.
void add_power(SpectrumSums& sums, std::size_t n, const cuda::PowerSums& power) {
  double energy = 0;
  for (std::size_t b = 0; b < kBands; ++b) {
    sums.bands[b] += power.bands[b];
    energy += power.bands[b];
  }
  sums.spectral_energy += energy;
  add_flatness(sums, n, power.interior, power.interior_log, energy);
  const auto counts = top_counts(n / 2 + 1);
  StrongestBins bins;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    bins.power += power.tops[i];
    bins.threshold = power.threshold[i];
    bins.tie_left_out = power.next[i] == bins.threshold;
    if (counts[i] > 0) sums.fft[i] += energy_of(bins, n, power.zero, power.last);
  }
}

class GpuSpectrum final : public SpectrumAccumulator {
 public:
  GpuSpectrum(std::shared_ptr<AnalysisGpu> gpu, std::size_t n, std::size_t gradients)
      : gpu_{std::move(gpu)},
        n_{n},
        transform_{gpu_->transform(n)},
        memory_{*this, gradients,
                Scratch{gpu_->memory(AnalysisGpu::User::spectrum, planned<Workspace>(*this, gradients))}} {}

  void observe(const Slice& slice) override {
    const GpuSlice& gpu = slice.gpu;
    GradientSums* sums = memory_.sums.data() + next_++;
    cuda::sum_values(gpu.queue, gpu.rows, n_, top_counts(n_), memory_.wide, &sums->values, memory_.spectrum_work);
    transform_->forward(gpu.queue, memory_.wide, memory_.spectrum, memory_.transform_work);
    cuda::sum_power(gpu.queue, memory_.spectrum, n_, top_counts(n_ / 2 + 1), &sums->power, memory_.spectrum_work);
  }

  void close() override {
    for (const GradientSums& sums : gpu_->fetch(memory_.sums.first(next_))) {
      non_finite_ += sums.values.non_finite;
      if (non_finite_ > 0) continue;
      add_values(sums_, sums.values);
      add_power(sums_, n_, sums.power);
    }
  }

 private:
  struct Workspace {
    Workspace(const GpuSpectrum& spectrum, std::size_t gradients, Scratch<Space::cuda> scratch)
        : wide{scratch.take<double>(spectrum.n_).data()},
          spectrum{scratch.take<double>(2 * (spectrum.n_ / 2 + 1)).data()},
          transform_work{scratch.take_bytes(spectrum.transform_->work_bytes()).data()},
          sums{scratch.take<GradientSums>(gradients)},
          spectrum_work{spectrum.n_, scratch} {}
    double* wide;      ///< the values in double precision
    double* spectrum;  ///< n/2 + 1 complex numbers
    std::byte* transform_work;
    View<GradientSums, Space::cuda> sums;  ///< of every gradient of the part
    cuda::SpectrumWorkspace spectrum_work;
  };

  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t n_, next_ = 0;
  std::shared_ptr<const cuda::WideTransform> transform_;
  Workspace memory_;
};

}  // namespace

std::unique_ptr<Accumulator> start_gpu_spectrum(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                const Part& part) {
  return std::make_unique<GpuSpectrum>(std::move(gpu), static_cast<std::size_t>(part.count),
                                       part.steps * scope.workers);
}

}  // namespace gradtool
