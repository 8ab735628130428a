#include "kernels/cuda/spectrum.hpp"

#include <algorithm>
#include <vector>

#include "lib/analysis/cuda/gpu.hpp"

namespace gradtool {
namespace {

using Device = Arena<Space::cuda>;

static_assert(cuda::kSpectrumTops == kTopFractions.size() && cuda::kSpectrumBands == kBands);

/// What the GPU found in one gradient.
struct Found {
  cuda::ValueSums values;
  cuda::PowerSums power;
};

/// Selections come as what each adds to the one before.
template <class Sums>
void add_values(SpectrumSums& sums, const Sums& values) {
  sums.energy += values.energy;
  if (values.low < values.high) {  // constant values have no autocorrelation
    sums.lag_product += values.lag_product;
    sums.centred_energy += values.centred_energy;
  }
  double top = 0;
  for (std::size_t i = 0; i < kTopFractions.size(); ++i) sums.raw[i] += top += values.tops[i];
}

void add_power(SpectrumSums& sums, std::size_t n, const cuda::PowerSums& power) {
  for (std::size_t b = 0; b < kBands; ++b) {
    sums.bands[b] += power.bands[b];
    sums.spectral_energy += power.bands[b];
  }
  add_flatness(sums, n, power.interior, power.interior_log);
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
      : gpu_{std::move(gpu)}, n_{n}, transform_{gpu_->transform(n)} {
    const std::size_t bins = n / 2 + 1, work = cuda::spectrum_work_bytes(n);
    auto& arena = gpu_->arena(AnalysisGpu::User::spectrum,
                              Device::padded_size(n * sizeof(double)) + Device::padded_size(2 * bins * sizeof(double)) +
                                  Device::padded_size(transform_->work_bytes()) + Device::padded_size(work) +
                                  Device::padded_size(gradients * sizeof(Found)));
    wide_ = arena.take<double>(n);
    spectrum_ = arena.take<double>(2 * bins);
    transform_work_ = arena.take_bytes(transform_->work_bytes());
    work_ = arena.take_bytes(work);
    found_ = arena.take<Found>(gradients);
  }

  void observe(const Slice& slice) override {
    const GpuSlice& at = slice.gpu;
    Found* found = found_.data() + next_++;
    cuda::sum_values(at.queue, at.rows, n_, top_counts(n_), wide_.data(), &found->values, work_);
    transform_->forward(at.queue, wide_.data(), spectrum_.data(), transform_work_.data());
    cuda::sum_power(at.queue, spectrum_.data(), n_, top_counts(n_ / 2 + 1), &found->power, work_);
  }

  void close() override {
    std::vector<Found> all(next_);
    gpu_->fetch(found_.first(next_), std::span{all});
    for (const Found& found : all) {
      non_finite_ += found.values.non_finite;
      if (non_finite_ > 0) continue;
      add_values(sums_, found.values);
      add_power(sums_, n_, found.power);
    }
  }

 private:
  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t n_, next_ = 0;
  std::shared_ptr<const cuda::WideTransform> transform_;
  View<double, Space::cuda> wide_, spectrum_;
  View<std::byte, Space::cuda> transform_work_, work_;
  View<Found, Space::cuda> found_;
};

}  // namespace

std::unique_ptr<Accumulator> start_gpu_spectrum(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                const Part& part) {
  return std::make_unique<GpuSpectrum>(std::move(gpu), static_cast<std::size_t>(part.count),
                                       part.steps * scope.workers);
}

}  // namespace gradtool
