#include "lib/analysis/cuda/gpu.hpp"

#include "lib/core/error.hpp"

namespace gradtool {

View<std::byte, Space::cuda> AnalysisGpu::memory(User user, std::size_t bytes) {
  auto& arena = arenas_.at(static_cast<std::size_t>(user));
  if (!arena || arena->capacity() < bytes) {
    cuda::synchronize(queue());
    arena.reset();
    arena.emplace(bytes);
  }
  arena->rewind();
  return arena->take_bytes(bytes);
}

AnalysisGpu::Staging& AnalysisGpu::staging(std::size_t slot, std::size_t bytes) {
  auto& staging = staging_.at(slot);
  staging.copied.synchronize();
  if (staging.memory.size() < bytes) staging.memory = cuda::PinnedBuffer{bytes};
  return staging;
}

std::shared_ptr<const cuda::WideTransform> AnalysisGpu::transform(std::size_t n) {
  if (!transform_ || transform_length_ != n) {
    transform_ = std::make_shared<const cuda::WideTransform>(n);
    transform_length_ = n;
  }
  return transform_;
}

namespace {

/// Feeds a GPU with slices. The host reads a slice into page-locked memory; the slice is copied from there while the
/// GPU works on earlier slices and the host reads the next one. Copies and kernels share one stream, because reading a
/// file takes far longer than copying it.
class GpuFeed final : public SliceFeed {
 public:
  GpuFeed(std::shared_ptr<AnalysisGpu> gpu, std::size_t elements, std::size_t rows, bool second_moment)
      : gpu_{std::move(gpu)}, elements_{elements}, stride_{(elements + 3) / 4 * 4}, rows_{rows} {
    const auto take = [&](Scratch<Space::cuda> scratch) {
      gradients_ = scratch.take<float>(rows * stride_);
      if (second_moment) second_moment_ = scratch.take<float>(stride_);
      return scratch.bytes();
    };
    take(Scratch{gpu_->memory(AnalysisGpu::User::feed, take({}))});
  }

  [[nodiscard]] std::span<float> gradient() override { return staged().first(elements_).span(); }
  [[nodiscard]] std::span<float> second_moment() override {
    if (second_moment_.empty()) return {};
    return staged().part(stride_, elements_).span();
  }

  [[nodiscard]] Slice slice(std::size_t step, std::size_t worker, std::uint64_t first) override {
    const auto queue = gpu_->queue();
    const auto upload = [&](std::size_t from, View<float, Space::cuda> to) {
      cuda::copy_elements(queue, to, HostView<const float>{staged().part(from, elements_)});
    };
    upload(0, gradients_.part(worker % rows_ * stride_, elements_));
    if (!second_moment_.empty()) upload(stride_, second_moment_.first(elements_));
    gpu_->staging(slot_, 0).copied.record(queue);
    slot_ = 1 - slot_;
    Slice slice{step, worker, first, {}, {}, {}};
    slice.gpu = {gradients_.data(), rows_ > 1 ? stride_ : 0, elements_,
                 second_moment_.empty() ? nullptr : second_moment_.data(), queue};
    return slice;
  }

 private:
  /// The slot that is filled at present; waits until its previous contents have been copied to the GPU.
  [[nodiscard]] HostView<float> staged() {
    return gpu_->staging(slot_, 2 * stride_ * sizeof(float)).memory.as<float>();
  }

  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t elements_, stride_, rows_, slot_ = 0;
  View<float, Space::cuda> gradients_, second_moment_;
};

}  // namespace

std::shared_ptr<AnalysisGpu> open_analysis_gpu(int index) {
  cuda::require_device(index, "analyze --device cuda");
  cuda::set_device(index);
  return std::make_shared<AnalysisGpu>();
}

std::unique_ptr<SliceFeed> make_gpu_feed(std::shared_ptr<AnalysisGpu> gpu, std::size_t elements, std::size_t rows,
                                         bool second_moment) {
  return std::make_unique<GpuFeed>(std::move(gpu), elements, rows, second_moment);
}

Eigensolver gpu_eigensolver(std::shared_ptr<AnalysisGpu> gpu) {
  return [gpu = std::move(gpu)](std::span<double> matrix, std::span<double> values, bool vectors) {
    gpu->eigen().solve(matrix, values, vectors);
  };
}

}  // namespace gradtool
