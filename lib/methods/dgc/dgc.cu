#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/radix_select.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/dgc/plan.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;
using cuda::SelectState;
using cuda::SelectTiles;

constexpr unsigned kMostBlocks = 4096;

/// At most kPieceElements consecutive elements that are treated alike.
struct Piece {
  static constexpr std::size_t kCompetes = ~std::size_t{0};
  std::size_t first = 0, count = 0;
  std::size_t whole = kCompetes;  ///< of elements that are sent whole: their place among all of these
};
constexpr std::size_t kPieceElements = 8192;

/// Consecutive elements that compete for being sent, and how many compete before them.
struct CompetingRun {
  std::size_t first = 0, count = 0, before = 0;
};

/// Writes the sum of squares of every piece of kClipPiece elements, in the order of format::kClipLanes. Half a warp
/// takes a piece.
__global__ void squares_kernel(const float* x, std::size_t n, double* sums) {
  constexpr unsigned kLanes = format::kClipLanes;
  constexpr std::size_t kPiece = format::kClipPiece;
  const unsigned lane = threadIdx.x % kLanes;
  const std::size_t pieces = (n + kPiece - 1) / kPiece;
  // Both halves of a warp make the same number of rounds, because all lanes take part in the shuffles.
  for (std::size_t pair = cuda::warp_in_grid(); 2 * pair < pieces; pair += cuda::warps_in_grid()) {
    const std::size_t piece = 2 * pair + threadIdx.x % cuda::kWarpSize / kLanes;
    const std::size_t first = piece * kPiece;
    const std::size_t count = piece >= pieces ? 0 : n - first < kPiece ? n - first : kPiece;
    const std::size_t rounded = count / kLanes * kLanes;
    double own = 0.0;
#pragma unroll 8
    for (std::size_t i = lane; i < rounded; i += kLanes)
      own += static_cast<double>(x[first + i]) * static_cast<double>(x[first + i]);
    if (lane == 0) {
      for (std::size_t i = rounded; i < count; ++i)
        own += static_cast<double>(x[first + i]) * static_cast<double>(x[first + i]);
    }
    double sum = 0.0;
    for (unsigned source = 0; source < kLanes; ++source)
      sum += __shfl_sync(cuda::kAllLanes, own, static_cast<int>(source), kLanes);
    if (lane == 0 && piece < pieces) sums[piece] = sum;
  }
}

/// One block: *scale := the factor of local clipping.
__global__ void scale_kernel(const double* sums, std::size_t pieces, double limit, float* scale) {
  __shared__ cuda::ChunkSumsShared<1> shared;
  double squares[1];
  cuda::sums_of_chunks<1>(sums, 0, 0, pieces, shared, squares);
  if (threadIdx.x == 0) *scale = format::clip_scale(squares[0], limit);
}

/// The arrays that a step reads and writes besides the gradient.
struct StepState {
  float *u, *v;
  float* whole;        ///< where the payload has the elements that are sent whole
  const float* scale;  ///< of the gradient, from local clipping; null for 1
};

/// Updates u and v; a block takes a piece at a time. Counts the leading digits of |v| in select->counters[0], which
/// saves the selection a pass.
__global__ void accumulate_kernel(const Piece* pieces, std::size_t count, format::MomentumCorrection correction,
                                  const float* g, StepState state, bool aligned, SelectState* select) {
  constexpr std::uint32_t kCopies = cuda::kCopies;
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  cuda::clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own_counters = counters + threadIdx.x % kCopies;
  if (state.scale != nullptr) correction.scale = *state.scale;
  const auto step = [&](float gradient, float& u, float& v) {
    const auto next = correction.step(gradient, u);
    u = next.u;
    v = format::one_nan(v + next.increment);
    cuda::count_top_digit<kCopies>(__float_as_uint(v), own_counters);
  };
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Piece piece = pieces[i];
    const float* gradient = g + piece.first;
    float* u = state.u + piece.first;
    float* v = state.v + piece.first;
    if (piece.whole != Piece::kCompetes) {
      for (std::size_t j = threadIdx.x; j < piece.count; j += kThreads) {
        const auto next = correction.step(gradient[j], u[j]);
        u[j] = next.u;
        state.whole[piece.whole + j] = format::one_nan(next.increment);
      }
      continue;
    }
    const std::size_t fours = aligned && piece.first % 4 == 0 ? piece.count / 4 : 0;
#pragma unroll 2
    for (std::size_t j = threadIdx.x; j < fours; j += kThreads) {
      const float4 g4 = reinterpret_cast<const float4*>(gradient)[j];
      float4 u4 = reinterpret_cast<const float4*>(u)[j];
      float4 v4 = reinterpret_cast<const float4*>(v)[j];
      step(g4.x, u4.x, v4.x);
      step(g4.y, u4.y, v4.y);
      step(g4.z, u4.z, v4.z);
      step(g4.w, u4.w, v4.w);
      reinterpret_cast<float4*>(u)[j] = u4;
      reinterpret_cast<float4*>(v)[j] = v4;
    }
    for (std::size_t j = 4 * fours + threadIdx.x; j < piece.count; j += kThreads) {
      float velocity = u[j];
      float sum = v[j];
      step(gradient[j], velocity, sum);
      u[j] = velocity;
      v[j] = sum;
    }
  }
  cuda::add_counters<kCopies>(counters, SelectState::kCounters, select->counters[0]);
}

/// sample[i] := competing element start + i stride.
__global__ void sample_kernel(const CompetingRun* runs, std::size_t count, const float* v, std::size_t start,
                              std::size_t stride, float* sample, std::size_t taken) {
  for (std::size_t i = cuda::thread_in_grid(); i < taken; i += cuda::threads_in_grid()) {
    const std::size_t element = start + i * stride;
    std::size_t run = 0;  // binary search for the last run that starts at or before the element
    for (std::size_t left = count; left > 1;) {
      const std::size_t half = left / 2;
      if (runs[run + half].before <= element) run += half;
      left -= half;
    }
    sample[i] = v[runs[run].first + (element - runs[run].before)];
  }
}

/// All thresholds that corrections can reach from the first one, with the first one in the middle.
struct ThresholdChain {
  static constexpr int kTries = format::ThresholdCorrection::kTries;
  static constexpr int kSize = 2 * kTries + 1;
  std::uint32_t pattern[kSize];  ///< ascending

  __device__ void start(std::uint32_t first) {
    pattern[kTries] = first;
    for (int i = 0; i < kTries; ++i) {
      pattern[kTries + 1 + i] = format::ThresholdCorrection::moved(pattern[kTries + i], true);
      pattern[kTries - 1 - i] = format::ThresholdCorrection::moved(pattern[kTries - i], false);
    }
  }
  /// How many thresholds a magnitude reaches.
  __device__ std::uint32_t reached(std::uint32_t magnitude) const {
    std::uint32_t count = 0;
    for (int i = 0; i < kSize; ++i) count += magnitude >= pattern[i] ? 1u : 0u;
    return count;
  }
};

/// The state of settling the threshold, in device memory.
struct SettleState {
  std::uint32_t first;                                ///< threshold
  std::uint32_t ticket;                               ///< counts finished blocks
  std::uint32_t reaching[ThresholdChain::kSize + 1];  ///< [i]: candidates that reach exactly i thresholds of the chain
};

/// One block. Finds the leading digit of the k-th largest magnitude, and the lowest threshold that corrections may end
/// at: they stop lowering where enough magnitudes have a larger leading digit than the threshold. What reaches it are
/// the candidates of the selection.
__global__ void lowest_threshold_kernel(format::ThresholdCorrection correction, const std::uint32_t* sampled,
                                        SelectState* select, SettleState* settle) {
  __shared__ std::uint32_t above[SelectState::kCounters];  // magnitudes with a larger leading digit
  constexpr std::uint32_t kEach = SelectState::kCounters / kThreads;
  const volatile std::uint32_t* counters = select->counters[0];
  const std::uint32_t top = SelectState::kCounters - 1 - threadIdx.x * kEach;
  std::uint32_t own = 0;
  for (std::uint32_t i = 0; i < kEach; ++i) own += counters[top - i];
  std::uint32_t total = 0;
  std::uint32_t sum = cuda::block_sum_through(own, total) - own;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    above[top - i] = sum;
    sum += counters[top - i];
  }
  __syncthreads();
  cuda::find_digit<SelectState::kCounters>(counters, static_cast<std::uint32_t>(correction.k),
                                           [&](std::uint32_t digit, std::uint32_t left) {
                                             select->prefix = digit;
                                             select->left = left;
                                           });
  if (threadIdx.x != 0) return;
  const std::uint32_t first = sampled == nullptr ? 1u : format::ThresholdCorrection::clamped(*sampled);
  std::uint32_t low = first;
  for (int i = 0; i < ThresholdChain::kTries && correction.too_few(above[low >> cuda::kTopShift]); ++i)
    low = format::ThresholdCorrection::moved(low, false);
  select->low = low;
  *settle = {first, 0, {}};
}

/// How many candidates reach a threshold of the chain.
struct CandidateCount {
  const ThresholdChain& chain;
  const std::uint32_t* count;  ///< of each threshold
  GT_HD std::size_t operator()(std::uint32_t pattern) const {
    std::size_t found = 0;
    for (int i = 0; i < ThresholdChain::kSize; ++i) {
      if (chain.pattern[i] == pattern) found = count[i];
    }
    return found;
  }
};

/// Counts the candidates by how many thresholds they reach. The last block to finish corrects the threshold. Where more
/// than k elements reach that, the selection's own threshold of the k largest stays.
__global__ void settle_kernel(format::ThresholdCorrection correction, SelectTiles candidates, SelectState* select,
                              SettleState* settle) {
  __shared__ ThresholdChain chain;
  __shared__ std::uint32_t reaching[ThresholdChain::kSize + 1];
  if (threadIdx.x == 0) chain.start(settle->first);
  cuda::clear_counters(reaching, ThresholdChain::kSize + 1);
  for (std::size_t tile = cuda::warp_in_grid(); tile < candidates.size; tile += cuda::warps_in_grid()) {
    const std::uint32_t count = candidates.counts[tile];
    const std::uint32_t* patterns = candidates.patterns + tile * SelectTiles::kTile;
    for (std::uint32_t i = threadIdx.x % cuda::kWarpSize; i < count; i += cuda::kWarpSize)
      atomicAdd(&reaching[chain.reached(patterns[i] & cuda::kMagnitude)], 1u);
  }
  cuda::add_counters<1>(reaching, ThresholdChain::kSize + 1, settle->reaching);
  if (!cuda::last_block(&settle->ticket)) return;
  if (threadIdx.x != 0) return;
  const volatile std::uint32_t* all = settle->reaching;
  std::uint32_t count[ThresholdChain::kSize];
  std::uint32_t sum = 0;
  for (int i = ThresholdChain::kSize - 1; i >= 0; --i) {
    sum += all[i + 1];
    count[i] = sum;
  }
  const auto settled = correction.settle(settle->first, CandidateCount{chain, count});
  if (settled.count > correction.k) return;
  select->threshold = settled.pattern - 1;
  select->ties = 0;
}

/// out += weight * the elements that were sent whole.
__global__ void add_whole_kernel(const Piece* pieces, std::size_t count, const float* whole, float weight, float* out) {
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Piece piece = pieces[i];
    if (piece.whole == Piece::kCompetes) continue;
    for (std::size_t j = threadIdx.x; j < piece.count; j += kThreads)
      out[piece.first + j] += weight * whole[piece.whole + j];
  }
}

std::vector<Piece> pieces_of(const DgcPlan& plan) {
  std::vector<Piece> pieces;
  const auto cut = [&](const DgcPlan::Run& run, std::size_t whole) {
    for (std::size_t first = 0; first < run.count; first += kPieceElements) {
      pieces.push_back({run.first + first, std::min(kPieceElements, run.count - first),
                        whole == Piece::kCompetes ? whole : whole + first});
    }
  };
  for (const auto& run : plan.competing_runs()) cut(run, Piece::kCompetes);
  std::size_t whole = 0;
  for (const auto& run : plan.whole_runs()) cut(run, std::exchange(whole, whole + run.count));
  return pieces;
}

std::vector<CompetingRun> competing_runs_of(const DgcPlan& plan) {
  std::vector<CompetingRun> runs;
  std::size_t before = 0;
  for (const auto& run : plan.competing_runs())
    runs.push_back({run.first, run.count, std::exchange(before, before + run.count)});
  return runs;
}

class GpuDgc final : public GpuCodec {
  using Queue = gradtool::Queue<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;
  using Floats = View<float, Space::cuda>;

 public:
  GpuDgc(const Params& params, const Layout& layout)
      : GpuCodec{"dgc", params, layout},
        plan_{params, layout},
        shape_{sparse_shape(plan_.coding(), plan_.most_kept(), plan_.elements())},
        pieces_{pieces_of(plan_)},
        runs_{competing_runs_of(plan_)} {}

  [[nodiscard]] const DgcPlan& step_plan() const { return plan_; }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == plan_.elements(), "codec dgc: made for another layout");
    pieces_.make();
    runs_.make();
    return {.payload_bytes = plan_.payload_bound(), .scratch_bytes = planned<Workspace>(*this), .exact = false};
  }

  /// The first step, from empty state.
  void encode(Queue queue, View<const float, Space::cuda> gradient, const EncodeContext& context, Bytes payload,
              Bytes scratch) const override {
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    fill_zero(queue, work.u);
    fill_zero(queue, work.v);
    step(queue, gradient, context, 1, work.u, work.v, payload, scratch);
  }

  /// One step of one of `ranks` ranks.
  void step(Queue queue, View<const float, Space::cuda> gradient, const EncodeContext& context, int ranks, Floats u,
            Floats v, Bytes payload, Bytes scratch) const {
    if (plan_.elements() == 0) return cuda::write_empty_sparse(queue, shape_, payload.data());
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const cuda::Select select{queue, v, work.select};
    accumulate(queue, gradient, ranks, u, v, payload, select, work);
    std::byte* sparse = payload.data() + plan_.sparse_offset();
    std::uint32_t* positions = work.positions.data();
    if (plan_.competing() > 0) {
      choose(queue, context, v, select, work);
      select.write(positions, reinterpret_cast<float*>(sparse + sizeof(SparseHeader)));
      cuda::zero_at(queue, positions, select.count(), plan_.most_kept(), v.data(),
                    plan_.masks_momentum() ? u.data() : nullptr);
    }
    cuda::write_sparse(queue, shape_, positions, select.count(), sparse, work.sparse, plan_.sparse_offset());
  }

  void decode_add(Queue queue, View<const std::byte, Space::cuda> payload, float weight, Floats out,
                  Bytes scratch) const override {
    const std::size_t offset = plan_.sparse_offset();
    expect_room("dgc", payload.size(), offset + sizeof(SparseHeader), plan_.payload_bound());
    cuda::add_sparse(queue, shape_, payload.part(offset, payload.size() - offset), weight, out.data(),
                     Workspace{*this, Scratch<Space::cuda>{scratch}}.sparse);
    if (plan_.whole() == 0) return;
    cuda::launch(queue, "dgc add whole", add_whole_kernel, cuda::blocks_for(pieces_.size(), 1, kMostBlocks),
                 pieces_.get(), pieces_.size(), elements<float>(payload, DgcPlan::kWholeOffset, plan_.whole()).data(),
                 weight, out.data());
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t /*n*/, int ranks,
                                                                   Queue queue) const override {
    return std::make_unique<DgcEncoder<Space::cuda, GpuDgc>>(*this, ranks, queue);
  }

 private:
  struct Workspace {
    Workspace(const GpuDgc& codec, Scratch<Space::cuda> scratch)
        : scale{scratch.take<float>(1)},
          settle{scratch.take<SettleState>(1)},
          positions{scratch.take<std::uint32_t>(codec.plan_.most_kept())},
          squares{scratch.take<double>(clip_pieces(codec.plan_))},
          sample{scratch.take<float>(codec.plan_.most_samples())},
          sample_select{scratch.take_bytes(cuda::Select::scratch_bytes(codec.plan_.most_samples()))},
          select{scratch.take_bytes(cuda::Select::scratch_bytes(codec.plan_.elements()))},
          u{scratch.take<float>(codec.plan_.elements())},
          v{scratch.take<float>(codec.plan_.elements())},
          sparse{scratch.take_bytes(cuda::sparse_scratch_bytes(codec.shape_))} {}
    Floats scale;  ///< of local clipping
    View<SettleState, Space::cuda> settle;
    View<std::uint32_t, Space::cuda> positions;  ///< of what is sent
    View<double, Space::cuda> squares;           ///< sums of the gradient's squares by piece, for local clipping
    Floats sample;                               ///< elements of v
    Bytes sample_select, select;                 ///< of cuda::Select
    Floats u, v;                                 ///< state of a codec without an encoder
    Bytes sparse;                                ///< of cuda::write_sparse and add_sparse
  };

  static std::size_t clip_pieces(const DgcPlan& plan) {
    return plan.clips() ? (plan.elements() + format::kClipPiece - 1) / format::kClipPiece : 0;
  }

  /// Updates u and v by a gradient, and writes the elements that are sent whole.
  void accumulate(Queue queue, View<const float, Space::cuda> gradient, int ranks, Floats u, Floats v, Bytes payload,
                  const cuda::Select& select, const Workspace& work) const {
    if (const std::size_t pieces = clip_pieces(plan_); pieces > 0) {
      cuda::launch(queue, "dgc squares", squares_kernel, cuda::blocks_for(pieces, 2 * cuda::kBlockWarpCount),
                   gradient.data(), gradient.size(), work.squares.data());
      cuda::launch(queue, "dgc scale", scale_kernel, 1, work.squares.data(), pieces, plan_.norm_limit(ranks),
                   work.scale.data());
    }
    select.clear();
    const StepState state{u.data(), v.data(), elements<float>(payload, DgcPlan::kWholeOffset, plan_.whole()).data(),
                          plan_.clips() ? work.scale.data() : nullptr};
    const bool aligned =
        cuda::aligned_to(gradient.data(), 16) && cuda::aligned_to(state.u, 16) && cuda::aligned_to(state.v, 16);
    cuda::launch(queue, "dgc accumulate", accumulate_kernel, cuda::blocks_for(pieces_.size(), 1, kMostBlocks),
                 pieces_.get(), pieces_.size(), plan_.momentum(), gradient.data(), state, aligned, select.state());
  }

  /// Chooses in `select`, which has counted the leading digits, the competing elements that are sent: those that reach
  /// the corrected threshold, and of more than k the k largest.
  void choose(Queue queue, const EncodeContext& context, View<const float, Space::cuda> v, const cuda::Select& select,
              const Workspace& work) const {
    const double density = plan_.density(context.iteration);
    const std::size_t k = plan_.kept(density);
    const format::ThresholdCorrection correction = plan_.correction(k);
    const std::uint32_t* sampled = nullptr;  // everything competes that is not zero
    if (k < plan_.competing()) {
      const DgcPlan::Sampling sampling = plan_.sampling(density);
      const std::size_t start = DgcPlan::first_sample(context, sampling);
      const std::size_t taken = (plan_.competing() - start + sampling.stride - 1) / sampling.stride;
      cuda::launch(queue, "dgc sample", sample_kernel, cuda::blocks_for(taken, kThreads), runs_.get(), runs_.size(),
                   v.data(), start, sampling.stride, work.sample.data(), taken);
      const cuda::Select sample_select{queue, View<const float, Space::cuda>{work.sample.first(taken)},
                                       work.sample_select};
      sample_select.largest(DgcPlan::samples_above(density, taken));
      sampled = sample_select.threshold();
    }
    SettleState* settle = work.settle.data();
    cuda::launch(queue, "dgc lowest threshold", lowest_threshold_kernel, 1, correction, sampled, select.state(),
                 settle);
    select.refine();
    const SelectTiles& candidates = select.candidates();
    cuda::launch(queue, "dgc settle", settle_kernel,
                 cuda::blocks_for(candidates.size, cuda::kBlockWarpCount, cuda::kMostHistograms), correction,
                 candidates, select.state(), settle);
    select.count_chosen();
  }

  DgcPlan plan_;
  cuda::SparseShape shape_;
  DeviceTable<Piece> pieces_;
  DeviceTable<CompetingRun> runs_;
};

}  // namespace

extern constinit const GpuFactories dgc_gpu{.codec = make_method_codec<Space::cuda, GpuDgc>};

}  // namespace gradtool
