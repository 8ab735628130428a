// The choice of dct.cpp, bit for bit. The threshold stays on the GPU, so nothing waits to learn it.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/radix_select.hpp"
#include "lib/codecs/gpu_sparse_codec.hpp"
#include "lib/methods/dct/codec.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kNoPrefix = 0xffffffffu;  ///< no pattern of a magnitude has this leading digit

/// residual += gradient, and in a step that finds a threshold the histogram of the leading digits of the sums.
__global__ void accumulate_kernel(const float* gradient, float* residual, std::size_t n, bool aligned, bool scheduled,
                                  const std::uint32_t* threshold, SelectState* state) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  const bool counts = format::refreshes(*threshold, scheduled);
  if (counts) clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const auto step = [&](float addend, float& sum) {
    sum += addend;
    if (counts) count_top_digit<kCopies>(__float_as_uint(sum), own);
  };
  const std::size_t fours = aligned ? n / 4 : 0;
#pragma unroll 2
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const float4 addend = reinterpret_cast<const float4*>(gradient)[i];
    float4 sum = reinterpret_cast<const float4*>(residual)[i];
    step(addend.x, sum.x);
    step(addend.y, sum.y);
    step(addend.z, sum.z);
    step(addend.w, sum.w);
    reinterpret_cast<float4*>(residual)[i] = sum;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < n; i += threads_in_grid()) {
    float sum = residual[i];
    step(gradient[i], sum);
    residual[i] = sum;
  }
  if (counts) add_counters<kCopies>(counters, SelectState::kCounters, state->counters[0]);
}

/// One block: the lowest pattern that the gather must take in. In a step without a refresh that is the threshold, and
/// the gather is given a leading digit that no pattern has, so that it counts nothing.
__global__ void low_kernel(std::uint32_t k, bool scheduled, const std::uint32_t* threshold, SelectState* state) {
  if (threadIdx.x == 0) {
    state->prefix = kNoPrefix;
    state->left = 0;
    state->low = *threshold;
  }
  __syncthreads();
  if (!format::refreshes(*threshold, scheduled)) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    const std::uint32_t low = digit << kTopShift;
    state->low = low < format::kInfinity ? low : format::kInfinity;  // infinities are sent together with NaNs
  });
}

/// One thread: everything that reaches the threshold is chosen, and zeros never are.
__global__ void settle_kernel(bool scheduled, std::uint32_t* threshold, SelectState* state) {
  if (threadIdx.x != 0) return;
  if (format::refreshes(*threshold, scheduled)) *threshold = format::usable_threshold(state->threshold);
  state->threshold = *threshold - 1;  // what lies above it is chosen
  state->ties = 0;
}

/// residual += gradient, and chooses what reaches the threshold among the numbers of `select`, which are the residual.
/// The threshold is first the k-th largest magnitude if `scheduled`, or if there is no usable one.
void choose(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, float* residual, std::size_t k,
            bool scheduled, const Select& select, std::uint32_t* threshold) {
  const std::size_t n = gradient.size();
  select.clear();
  const bool aligned = aligned_to(gradient.data(), 16) && aligned_to(residual, 16);
  launch(queue, "dct accumulate", accumulate_kernel, blocks_for(n, 16 * kThreads, 2048), gradient.data(), residual, n,
         aligned, scheduled, threshold, select.state());
  launch(queue, "dct low", low_kernel, 1, static_cast<std::uint32_t>(k), scheduled, threshold, select.state());
  select.refine();
  launch(queue, "dct settle", settle_kernel, {1, kWarpSize}, scheduled, threshold, select.state());
  select.count_chosen();
}

class GpuDct final : public GpuSparseCodec {
 public:
  explicit GpuDct(const Params& params)
      : GpuSparseCodec{"dct", params}, ratio_{params.real("ratio")}, refresh_{params.integer("refresh")} {}

  /// The first step, from an empty residual.
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    const std::size_t n = gradient.size();
    const auto state = elements<float>(rule_scratch(n, scratch), 0, n + 1);
    fill_zero(queue, state);
    step(queue, gradient, true, state.first(n), reinterpret_cast<std::uint32_t*>(state.data() + n), payload, scratch);
  }

  /// residual += gradient; what reaches the threshold is sent and becomes 0 in the residual.
  void step(Queue<Space::cuda> queue, ConstFloats gradient, bool scheduled, Floats residual, std::uint32_t* threshold,
            Bytes payload, Bytes scratch) const {
    const std::size_t k = share_of(ratio_, gradient.size());
    send(
        queue, residual, payload, scratch,
        [&](const Select& select) { choose(queue, gradient, residual.data(), k, scheduled, select, threshold); },
        residual.data());
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::cuda> queue) const override {
    return std::make_unique<DctEncoder<Space::cuda, GpuDct>>(*this, refresh_, n, queue);
  }

 private:
  /// For `encode`, which has no memory: the residual, and behind it the threshold.
  [[nodiscard]] std::size_t rule_bytes(std::size_t n) const override { return sizeof(float) * (n + 1); }

  double ratio_;
  std::int64_t refresh_;
};

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {

extern constinit const GpuFactories dct_gpu{.codec = make_method_codec<Space::cuda, cuda::GpuDct>};

}  // namespace gradtool
