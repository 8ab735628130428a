// The choice of dct.cpp, bit for bit. The threshold stays on the GPU, so nothing waits to learn it.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/radix_select.hpp"
#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/dct/format.hpp"

namespace gradtool::cuda {
namespace {

using format::kInfinity;
using format::kNoThreshold;

constexpr std::uint32_t kNoPrefix = 0xffffffffu;  ///< no pattern of a magnitude has this leading digit

/// The memory of one rank beside its residual. Filled with zeros it is new.
struct DctThreshold {
  std::uint32_t pattern = kNoThreshold;
  std::uint32_t refreshed = 0;  ///< 1 in a step that finds the threshold anew
};

__device__ bool refreshes(const DctThreshold& threshold, bool scheduled) {
  return scheduled || threshold.pattern == kNoThreshold || threshold.pattern >= kInfinity;
}

/// residual += gradient, and in a step that finds a threshold the histogram of the leading digits of the sums.
__global__ void accumulate_kernel(const float* gradient, float* residual, std::size_t n, bool aligned, bool scheduled,
                                  const DctThreshold* threshold, SelectState* state) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  const bool counts = refreshes(*threshold, scheduled);
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
__global__ void low_kernel(std::uint32_t k, bool scheduled, DctThreshold* threshold, SelectState* state) {
  const bool finds = refreshes(*threshold, scheduled);
  __syncthreads();
  if (threadIdx.x == 0) {
    threshold->refreshed = finds ? 1u : 0u;
    state->prefix = kNoPrefix;
    state->left = 0;
    state->low = threshold->pattern;
  }
  __syncthreads();
  if (!finds) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    const std::uint32_t low = digit << kTopShift;
    state->low = low < kInfinity ? low : kInfinity;  // infinities are sent together with NaNs
  });
}

/// One thread: everything that reaches the threshold is chosen, and zeros never are.
__global__ void settle_kernel(DctThreshold* threshold, SelectState* state) {
  if (threadIdx.x != 0) return;
  if (threshold->refreshed != 0) {
    const std::uint32_t found = state->threshold;
    threshold->pattern = found < 1 ? 1u : found < kInfinity ? found : kInfinity;
  }
  state->threshold = threshold->pattern - 1;  // what lies above it is chosen
  state->ties = 0;
}

/// residual += gradient, and chooses what reaches the threshold among the numbers of `select`, which are the residual.
/// The threshold is first the k-th largest magnitude if `scheduled`, or if there is no usable one.
void choose(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, float* residual, std::size_t k,
            bool scheduled, const Select& select, DctThreshold* threshold) {
  const std::size_t n = gradient.size();
  select.clear();
  const bool aligned = aligned_to(gradient.data(), 16) && aligned_to(residual, 16);
  launch(queue, "dct accumulate", accumulate_kernel, blocks_for(n, 16 * kThreads, 2048), gradient.data(), residual, n,
         aligned, scheduled, threshold, select.state());
  launch(queue, "dct low", low_kernel, 1, static_cast<std::uint32_t>(k), scheduled, threshold, select.state());
  select.refine();
  launch(queue, "dct settle", settle_kernel, {1, kWarpSize}, threshold, select.state());
  select.count_chosen();
}

class Dct final : public GpuCodec {
 public:
  explicit Dct(const Params& params) : GpuCodec{"dct", params}, options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(options_.coding, n, n),
            .scratch_bytes = planned<Workspace>(*this, n),
            .exact = false};
  }

  /// The first step, from an empty residual.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const Workspace workspace{*this, gradient.size(), Scratch<Space::cuda>{scratch}};
    fill(queue, as_writable_bytes(workspace.residual), 0);
    fill(queue, as_writable_bytes(workspace.threshold), 0);
    step(queue, gradient, true, workspace.residual, workspace.threshold.data(), payload, scratch);
  }

  /// residual += gradient; what reaches the threshold is sent and becomes 0 in the residual.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, bool scheduled,
            View<float, Space::cuda> residual, DctThreshold* threshold, View<std::byte, Space::cuda> payload,
            View<std::byte, Space::cuda> scratch) const {
    const std::size_t n = gradient.size();
    if (n == 0) return write_empty_sparse(queue, shape(0), payload.data());
    const Workspace workspace{*this, n, Scratch<Space::cuda>{scratch}};
    std::uint32_t* positions = workspace.positions.data();
    const Select select{queue, residual, workspace.selection};
    choose(queue, gradient, residual.data(), options_.kept(n), scheduled, select, threshold);
    select.write(positions, sparse_values(payload, n).data());
    zero_at(queue, positions, select.count(), n, residual.data());
    write_sparse(queue, shape(n), positions, select.count(), payload.data(), workspace.sparse);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("dct", payload.size(), sizeof(SparseHeader), sparse_bound(options_.coding, n, n));
    const Workspace workspace{*this, n, Scratch<Space::cuda>{scratch}};
    add_sparse(queue, shape(n), payload, weight, out.data(), workspace.sparse);
  }

  [[nodiscard]] const DctOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  struct Workspace {
    Workspace(const Dct& codec, std::size_t n, Scratch<Space::cuda> scratch)
        : threshold{scratch.take<DctThreshold>(1)},
          residual{scratch.take<float>(n)},
          positions{scratch.take<std::uint32_t>(n)},
          selection{scratch.take_bytes(Select::scratch_bytes(n))},
          sparse{scratch.take_bytes(sparse_scratch_bytes(codec.shape(n)))} {}
    View<DctThreshold, Space::cuda> threshold;  ///< with the residual, for `encode`, which has no memory
    View<float, Space::cuda> residual;
    View<std::uint32_t, Space::cuda> positions;
    View<std::byte, Space::cuda> selection, sparse;
  };
  [[nodiscard]] SparseShape shape(std::size_t n) const { return sparse_shape(options_.coding, n, n); }

  DctOptions options_;
};

/// Residual and threshold of one rank.
class DctEncoder final : public Encoder<Space::cuda> {
 public:
  DctEncoder(const Dct& codec, std::size_t n, Queue<Space::cuda> queue)
      : codec_{codec}, residual_{4 * n}, threshold_{sizeof(DctThreshold)} {
    DctEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) override {
    const bool scheduled = steps_++ % codec_.options().refresh == 0;
    codec_.step(queue, gradient, scheduled, residual_.as<float>(), threshold_.as<DctThreshold>().data(), payload,
                scratch);
  }
  void visit_state(StateVisitor& /*visitor*/) override {
    throw Error{Fault::unavailable, "what is kept between steps cannot be saved from the memory of a GPU"};
  }
  void reset(Queue<Space::cuda> queue) override {
    fill(queue, residual_.bytes(), 0);
    fill(queue, threshold_.bytes(), 0);
    steps_ = 0;
  }
  [[nodiscard]] View<const float, Space::cuda> residual() const override { return residual_.as<float>(); }
  [[nodiscard]] std::string note() const override { return codec_.options().note(steps_); }

 private:
  const Dct& codec_;
  DeviceBuffer residual_, threshold_;
  std::int64_t steps_ = 0;
};

std::unique_ptr<Encoder<Space::cuda>> Dct::make_encoder(std::size_t n, int /*ranks*/, Queue<Space::cuda> queue) const {
  return std::make_unique<DctEncoder>(*this, n, queue);
}

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {

extern constinit const GpuFactories dct_gpu{.codec = make_method_codec<Space::cuda, cuda::Dct>};

}  // namespace gradtool
