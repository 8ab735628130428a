#include "kernels/cuda/variance.hpp"

#include <vector>

#include "lib/analysis/cuda/gpu.hpp"

namespace gradtool {
namespace {

using Device = Arena<Space::cuda>;

/// One kernel for every step, or for every slice where its second moment is what the variance is taken from.
class GpuVariance final : public VarianceAccumulator {
 public:
  GpuVariance(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope, const Part& part)
      : VarianceAccumulator{source_of(scope, scope.tensors.at(part.tensor))},
        gpu_{std::move(gpu)},
        workers_{scope.workers},
        micro_batches_{static_cast<double>(scope.micro_batches)} {
    constexpr std::size_t kBins = law::kRatioBins * sizeof(std::uint64_t);
    auto& arena = gpu_->arena(AnalysisGpu::User::variance,
                              Device::padded_size(kBins) +
                                  Device::padded_size(cuda::kVarianceBlocks * sizeof(cuda::VarianceSums)) +
                                  Device::padded_size(sizeof(cuda::VarianceSums)));
    bins_ = arena.take<std::uint64_t>(law::kRatioBins);
    partial_ = arena.take<cuda::VarianceSums>(cuda::kVarianceBlocks);
    sums_ = arena.take<cuda::VarianceSums>(1);
    cuda::fill(gpu_->queue(), as_writable_bytes(bins_), 0);
    cuda::fill(gpu_->queue(), as_writable_bytes(sums_), 0);
  }

  void observe(const Slice& slice) override {
    const GpuSlice& at = slice.gpu;
    const bool steps = source_ == VarianceSource::workers;
    if (steps && slice.worker + 1 < workers_) return;
    const cuda::GradientRows rows{steps ? at.rows : at.rows + slice.worker * at.stride, steps ? workers_ : 1,
                                  at.elements, at.stride};
    cuda::SignalSource source;
    source.over_rows = steps;
    if (source_ == VarianceSource::second_moment) {
      source.second_moment = at.second_moment;
      source.micro_batches = micro_batches_;
    }
    cuda::add_variance(at.queue, rows, source, kAlphas, partial_.data(), sums_.data(), bins_.data());
  }

  void close() override {
    cuda::VarianceSums sums;
    gpu_->fetch(sums_, {&sums, 1});
    non_finite_ = sums.non_finite;
    if (non_finite_ > 0) return;
    moments_.merge(sums.moments);
    std::vector<std::uint64_t> bins(law::kRatioBins);
    gpu_->fetch(bins_, std::span{bins});
    SignalRatio::Counts counts{sums.samples, sums.undefined, sums.inconsistent, {}};
    std::copy(std::begin(sums.passed), std::end(sums.passed), counts.passed.begin());
    ratio_.add(bins, counts);
  }

 private:
  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t workers_;
  double micro_batches_;
  View<std::uint64_t, Space::cuda> bins_;
  View<cuda::VarianceSums, Space::cuda> partial_, sums_;
};

}  // namespace

std::unique_ptr<Accumulator> start_gpu_variance(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                const Part& part) {
  return std::make_unique<GpuVariance>(std::move(gpu), scope, part);
}

}  // namespace gradtool
