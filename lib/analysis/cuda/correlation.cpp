#include <vector>

#include "kernels/cuda/gram.hpp"
#include "lib/analysis/cuda/gpu.hpp"

namespace gradtool {
namespace {

using Device = Arena<Space::cuda>;

/// What CorrelationAccumulator is made from, of one part: the rows of a step are multiplied as soon as its last worker
/// is there, the samples at the end. Only the products leave the GPU.
class GpuCorrelation final : public CorrelationAccumulator {
 public:
  GpuCorrelation(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope, const Part& part, const Slicing& slicing,
                 std::size_t samples)
      : CorrelationAccumulator{{scope.workers, part.steps}, SliceGrams{samples}},
        gpu_{std::move(gpu)},
        rows_{scope.workers + 1},
        steps_{part.steps},
        n_{static_cast<std::size_t>(part.count)},
        samples_{samples} {
    for (std::size_t s = 0; s < slicing.slices(); ++s) {
      const auto columns = slicing.columns(s, part.first, part.count);
      if (columns.count > 0) slices_.push_back({s, columns});
    }
    const std::size_t work = std::max(cuda::gram_work(rows_), cuda::gram_work(samples_));
    const std::size_t numbers[] = {n_ * rows_,
                                   n_ * rows_,
                                   n_ * samples_,
                                   work,
                                   steps_ * rows_,
                                   steps_ * rows_,
                                   steps_ * rows_ * rows_,
                                   slices_.size() * samples_,
                                   slices_.size() * samples_ * samples_,
                                   1};
    std::size_t capacity = 0;
    for (const std::size_t count : numbers) capacity += Device::padded_size(count * sizeof(double));
    auto& arena = gpu_->arena(AnalysisGpu::User::correlation, capacity);
    View<double, Space::cuda>* const views[] = {&now_,    &before_, &sample_rows_,     &work_, &means_, &lags_,
                                                &within_, &norms_,  &grams_of_slices_, &bad_};
    for (std::size_t i = 0; i < std::size(views); ++i) *views[i] = arena.take<double>(numbers[i]);
    cuda::fill(gpu_->queue(), as_writable_bytes(bad_), 0);
    cuda::fill(gpu_->queue(), as_writable_bytes(lags_), 0);
  }

  void observe(const Slice& slice) override {
    if (slice.worker + 2 < rows_) return;
    const GpuSlice& at = slice.gpu;
    const cuda::RowsOf now{now_.data(), rows_, n_, n_}, before{before_.data(), rows_, n_, n_};
    cuda::widen_with_mean(at.queue, at.rows, at.stride, now, bad());
    if (next_ < samples_) {
      cuda::copy_elements(at.queue, sample_rows_.part(next_ * n_, n_),
                          View<const double, Space::cuda>{now_.part((rows_ - 1) * n_, n_)});
    }
    cuda::centre_rows(at.queue, now, means_.data() + next_ * rows_, work_.data());
    cuda::gram(at.queue, now, within_.data() + next_ * rows_ * rows_, work_.data());
    if (next_ > 0) cuda::row_dots(at.queue, now, before, lags_.data() + next_ * rows_, work_.data());
    std::swap(now_, before_);
    ++next_;
  }

  void close() override {
    gpu_->fetch(View<std::uint64_t, Space::cuda>{bad(), 1}, {&non_finite_, 1});
    if (non_finite_ > 0) return;
    const auto queue = gpu_->queue();
    const cuda::RowsOf samples{sample_rows_.data(), samples_, n_, n_};
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      cuda::row_dots(queue, samples, samples, slices_[i].columns, norms_.data() + i * samples_, work_.data());
    }
    cuda::centre_columns(queue, samples);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      cuda::gram(queue, samples, slices_[i].columns, grams_of_slices_.data() + i * samples_ * samples_, work_.data());
    }
    const auto means = fetch(means_), within = fetch(within_), lags = fetch(lags_);
    for (std::size_t s = 0; s < steps_; ++s) {
      pearson_.add_sums(static_cast<double>(n_), std::span{means}.subspan(s * rows_, rows_),
                        std::span{within}.subspan(s * rows_ * rows_, rows_ * rows_),
                        std::span{lags}.subspan(s * rows_, rows_));
    }
    const auto norms = fetch(norms_), grams = fetch(grams_of_slices_);
    const auto row_of = [](const std::vector<double>& all, std::size_t i, std::size_t size) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(i * size);
      return std::vector<double>{first, first + static_cast<std::ptrdiff_t>(size)};
    };
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      grams_.put(slices_[i].number, {row_of(grams, i, samples_ * samples_), row_of(norms, i, samples_)});
    }
  }

 private:
  struct PartOfSlice {
    std::size_t number;
    law::SliceColumns columns;
  };

  [[nodiscard]] std::uint64_t* bad() const { return reinterpret_cast<std::uint64_t*>(bad_.data()); }
  [[nodiscard]] std::vector<double> fetch(View<double, Space::cuda> from) const {
    std::vector<double> numbers(from.size());
    gpu_->fetch(from, std::span{numbers});
    return numbers;
  }

  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t rows_, steps_, n_, samples_, next_ = 0;
  std::vector<PartOfSlice> slices_;
  View<double, Space::cuda> now_, before_;  ///< [R][n]: this step's gradients and their mean, and the step before's
  View<double, Space::cuda> sample_rows_;   ///< [M][n]
  View<double, Space::cuda> work_;
  View<double, Space::cuda> means_, lags_, within_;    ///< [S][R], [S][R], [S][R][R]
  View<double, Space::cuda> norms_, grams_of_slices_;  ///< [slices][M], [slices][M][M]
  View<double, Space::cuda> bad_;                      ///< a count of values that are not finite
};

}  // namespace

std::unique_ptr<Accumulator> start_gpu_correlation(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                   const Part& part, const Slicing& slicing, std::size_t samples) {
  return std::make_unique<GpuCorrelation>(std::move(gpu), scope, part, slicing, samples);
}

}  // namespace gradtool
