#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/dgc/plan.hpp"

namespace gradtool {

namespace {
constexpr double kSampledShare = 0.01;
constexpr double kWarmupStages = 4.0;
}  // namespace

DgcPlan::DgcPlan(const Params& params, const Layout& layout)
    : elements_{layout.elements},
      momentum_{.momentum = static_cast<float>(params.real("momentum")), .nesterov = params.is("nesterov", "on")},
      masks_momentum_{params.is("masking", "on")},
      clip_{params.is("clip", "off") ? 0.0 : params.real("clip")},
      ratio_{params.real("ratio")},
      raises_threshold_{params.is("over", "scale")},
      warmup_{params.integer("warmup")},
      coding_{params.word("index")} {
  const bool sends_vectors_whole = params.is("vectors", "dense") && layout.tensors.size() > 1;
  for (const auto& tensor : layout.tensors) {
    const bool whole = sends_vectors_whole && tensor.shape.size() < 2;
    auto& runs = whole ? whole_runs_ : competing_runs_;
    if (!runs.empty() && runs.back().first + runs.back().count == tensor.first)
      runs.back().count += tensor.elements;
    else
      runs.push_back({tensor.first, tensor.elements});
    (whole ? whole_ : competing_) += tensor.elements;
  }
  most_kept_ = kept(density(0));  // the density falls during the warm-up
}

double DgcPlan::density(std::int64_t iteration) const {
  if (iteration >= warmup_) return ratio_;
  const double stage = std::floor(kWarmupStages * static_cast<double>(iteration) / static_cast<double>(warmup_));
  return std::pow(ratio_, (stage + 1.0) / (kWarmupStages + 1.0));
}

std::size_t DgcPlan::kept(double density) const {
  const auto wanted = static_cast<std::size_t>(std::llround(density * static_cast<double>(competing_)));
  return std::clamp<std::size_t>(wanted, std::min<std::size_t>(competing_, 1), competing_);
}

DgcPlan::Sampling DgcPlan::sampling(double density) const {
  const double wanted = std::max(kSampledShare * static_cast<double>(competing_), 2.0 / std::max(density, 1e-12));
  const double most = static_cast<double>(std::max<std::size_t>(1, competing_));
  const auto count = static_cast<std::size_t>(std::clamp(wanted, 1.0, most));
  const std::size_t stride = std::max<std::size_t>(1, competing_ / count);
  return {stride, competing_ / stride + 1};
}

std::size_t DgcPlan::samples_above(double density, std::size_t taken) {
  const auto wanted = static_cast<std::size_t>(std::ceil(density * static_cast<double>(taken)));
  return std::clamp<std::size_t>(wanted, 1, taken);
}

namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;

/// Updates the velocities and accumulated velocities of up to 32 elements, and returns the largest pattern of |v|.
template <bool Nesterov>
inline std::uint32_t update_block(const float* g, float* u, float* v, std::size_t count,
                                  format::MomentumCorrection correction) {
  correction.nesterov = Nesterov;
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = correction.step(g[j], u[j]);
    const float sum = format::one_nan(v[j] + step.increment);
    u[j] = step.u;
    v[j] = sum;
    largest = std::max(largest, format::bits_of(sum) & kMagnitude);
  }
  return largest;
}
/// Writes one maximum for each block of 32 elements.
template <bool Nesterov>
GT_SIMD_CLONES void update(const float* g, float* u, float* v, std::size_t count, format::MomentumCorrection correction,
                           std::uint32_t* maxima) {
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) *maxima++ = update_block<Nesterov>(g + i, u + i, v + i, 32, correction);
  if (i < count) *maxima = update_block<Nesterov>(g + i, u + i, v + i, count - i, correction);
}

/// Elements that are sent whole: out := what the accumulated velocity would grow by.
GT_SIMD_CLONES void update_whole(const float* g, float* u, float* out, std::size_t count,
                                 format::MomentumCorrection correction) {
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = correction.step(g[j], u[j]);
    u[j] = step.u;
    out[j] = format::one_nan(step.increment);
  }
}

/// Sum of squares of a piece, in the order of format::kClipLanes.
GT_SIMD_CLONES double sum_of_squares(const float* x, std::size_t count) {
  constexpr std::size_t kLanes = format::kClipLanes;
  std::array<double, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

class HostDgc final : public Codec<Space::host> {
 public:
  HostDgc(const Params& params, const Layout& layout) : plan_{params, layout} {
    for (const auto& run : plan_.competing_runs()) {
      for (std::size_t first = 0; first < run.count; first += host::kPiece) {
        const std::size_t count = std::min(host::kPiece, run.count - first);
        pieces_.push_back({run.first + first, count, blocks_, 0});
        blocks_ += (count + 31) / 32;
      }
    }
  }

  [[nodiscard]] const DgcPlan& step_plan() const { return plan_; }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == plan_.elements(), "codec dgc: made for another layout");
    return {.payload_bytes = plan_.payload_bound(), .scratch_bytes = planned<Workspace>(*this), .exact = false};
  }

  /// The first step, from empty state.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    fill_zero(queue, work.u);
    fill_zero(queue, work.v);
    step(queue, gradient, context, 1, work.u, work.v, payload, scratch);
  }

  /// One step of one of `ranks` ranks.
  void step(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context, int ranks,
            HostView<float> u, HostView<float> v, HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    accumulate(queue, gradient, ranks, u.data(), v.data(), section<float>(payload, DgcPlan::kWholeOffset), work);
    const auto sparse = payload.part(plan_.sparse_offset(), payload.size() - plan_.sparse_offset());
    float* sent = section<float>(sparse, sizeof(SparseHeader));  // where write_sparse expects the values
    const std::size_t k = plan_.competing() == 0 ? 0 : choose(queue, context, v.data(), sent, work);
    const HostView<const std::uint32_t> positions = work.positions.first(k);
    const bool masks_momentum = plan_.masks_momentum();
    parallel_for(queue, k, 64, 1 << 12, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) {
        v[positions[first]] = 0.0F;
        if (masks_momentum) u[positions[first]] = 0.0F;  // momentum factor masking (section 3.3)
      }
    });
    const std::size_t written = write_sparse(queue, plan_.coding(), positions, {sent, k}, plan_.elements(), sparse);
    const std::uint64_t bytes = plan_.sparse_offset() + written;
    if (plan_.whole() > 0) std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t offset = plan_.sparse_offset();
    std::uint64_t bytes = payload.size();
    if (plan_.whole() > 0 && payload.size() >= offset) std::memcpy(&bytes, payload.data(), sizeof bytes);
    if (payload.size() < offset || bytes != payload.size())
      throw Error{Fault::data, "dgc payload: its length is not the one it states"};
    add_sparse("dgc", payload.part(offset, payload.size() - offset), weight, out,
               Workspace{*this, Scratch<Space::host>{scratch}}.positions);
    const float* whole = section<float>(payload, DgcPlan::kWholeOffset);
    for (const auto& run : plan_.whole_runs()) {
      for (std::size_t i = 0; i < run.count; ++i) out[run.first + i] += weight * *whole++;
    }
  }

  /// Holds for the first step, which sends elements of the gradient; with nesterov it sends (1 + momentum) times these,
  /// at most twice.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 1.0 + 1e-6, .of_largest = 1.0 + 1e-6};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return plan_.whole() + plan_.most_kept(); }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    SparseHeader header;
    std::memcpy(&header, payload.data() + plan_.sparse_offset(), sizeof header);
    return plan_.whole() + header.count;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t /*n*/, int ranks,
                                                                   Queue<Space::host> queue) const override {
    return std::make_unique<DgcEncoder<Space::host, HostDgc>>(*this, ranks, queue);
  }

 private:
  struct Workspace {
    Workspace(const HostDgc& codec, Scratch<Space::host> scratch)
        : positions{scratch.take<std::uint32_t>(codec.plan_.most_kept())},
          maxima{scratch.take<std::uint32_t>(codec.blocks_)},
          squares{scratch.take<double>(codec.plan_.clips() ? host::pieces_of(codec.plan_.elements()) : 0)},
          select{scratch.take_bytes(host::BlockSelect::scratch_bytes(codec.pieces_.size()))},
          sample{scratch.take<float>(codec.plan_.most_samples())},
          sample_positions{scratch.take<std::uint32_t>(codec.plan_.most_samples())},
          sample_values{scratch.take<float>(codec.plan_.most_samples())},
          candidates{scratch.take<std::uint32_t>(format::ThresholdCorrection::most(codec.plan_.most_kept()))},
          candidate_values{scratch.take<float>(candidates.size())},
          largest{scratch.take_bytes(host::Largest::scratch_bytes(
              std::max(codec.plan_.most_samples(), candidates.size()), codec.plan_.most_kept()))},
          u{scratch.take<float>(codec.plan_.elements())},
          v{scratch.take<float>(codec.plan_.elements())} {}
    HostView<std::uint32_t> positions;  ///< of what is sent
    HostView<std::uint32_t> maxima;     ///< largest pattern of |v| in each block of 32 elements
    HostView<double> squares;           ///< sums of the gradient's squares by piece, for local clipping
    HostView<std::byte> select;         ///< of host::BlockSelect
    HostView<float> sample;             ///< elements of v
    HostView<std::uint32_t> sample_positions;
    HostView<float> sample_values;       ///< samples that reach the threshold
    HostView<std::uint32_t> candidates;  ///< positions of more than k elements, of which k are sent
    HostView<float> candidate_values;
    HostView<std::byte> largest;  ///< of host::Largest
    HostView<float> u, v;         ///< state of a codec without an encoder
  };

  /// Updates u and v by a gradient. Elements that are sent whole leave v alone; `whole` := what they send.
  void accumulate(Queue<Space::host> queue, HostView<const float> gradient, int ranks, float* u, float* v, float* whole,
                  const Workspace& work) const {
    format::MomentumCorrection correction = plan_.momentum();
    correction.scale = clip_scale(queue, gradient, ranks, work);
    host::for_pieces(queue, pieces_.size(), plan_.competing(), [&](std::size_t i) {
      const host::Piece& piece = pieces_[i];
      const float* g = gradient.data() + piece.first;
      std::uint32_t* maxima = work.maxima.data() + piece.word;
      if (correction.nesterov)
        update<true>(g, u + piece.first, v + piece.first, piece.count, correction, maxima);
      else
        update<false>(g, u + piece.first, v + piece.first, piece.count, correction, maxima);
    });
    for (const auto& run : plan_.whole_runs()) {
      update_whole(gradient.data() + run.first, u + run.first, whole, run.count, correction);
      whole += run.count;
    }
  }

  /// The factor of local clipping, 1 where it is off.
  float clip_scale(Queue<Space::host> queue, HostView<const float> gradient, int ranks, const Workspace& work) const {
    if (!plan_.clips()) return 1.0F;
    static_assert(host::kPiece == format::kClipPiece);
    const host::Pieces pieces{gradient.size()};
    host::for_pieces(queue, pieces.size(), gradient.size(), [&](std::size_t i) {
      work.squares[i] = sum_of_squares(gradient.data() + pieces[i].first, pieces[i].count);
    });
    format::GroupedSum sum;
    for (std::size_t i = 0; i < pieces.size(); ++i) sum.add(work.squares[i]);
    return format::clip_scale(sum.value(), plan_.norm_limit(ranks));
  }

  /// The pattern of the magnitude that the share `density` of the samples reaches.
  std::uint32_t sampled_threshold(Queue<Space::host> queue, const EncodeContext& context, double density,
                                  const float* v, const Workspace& work) const {
    const DgcPlan::Sampling sampling = plan_.sampling(density);
    std::size_t taken = 0;
    std::size_t next = DgcPlan::first_sample(context, sampling);  // counted among the competing elements
    std::size_t before = 0;
    for (const auto& run : plan_.competing_runs()) {
      for (; next < before + run.count; next += sampling.stride) work.sample[taken++] = v[run.first + (next - before)];
      before += run.count;
    }
    const std::size_t above = DgcPlan::samples_above(density, taken);
    host::Largest{queue, work.sample.first(taken), work.largest}.select(work.sample_positions.first(above),
                                                                        work.sample_values.data());
    std::uint32_t threshold = kMagnitude;
    for (std::size_t i = 0; i < above; ++i)
      threshold = std::min(threshold, format::bits_of(work.sample_values[i]) & kMagnitude);
    return format::ThresholdCorrection::clamped(threshold);
  }

  /// Chooses the competing elements that are sent. Writes work.positions and `values`, returns their number.
  std::size_t choose(Queue<Space::host> queue, const EncodeContext& context, const float* v, float* values,
                     const Workspace& work) const {
    const double density = plan_.density(context.iteration);
    const std::size_t k = plan_.kept(density);
    const format::ThresholdCorrection correction = plan_.correction(k);
    host::BlockSelect select{queue, host::Pieces{pieces_.data(), pieces_.size(), plan_.competing()}, v,
                             work.maxima.data(), work.select.data()};
    const std::uint32_t first = k == plan_.competing() ? 1U : sampled_threshold(queue, context, density, v, work);
    const auto settled = correction.settle(first, [&](std::uint32_t threshold) { return select.count(threshold); });
    host::BlockSelect::Cut cut{settled.pattern - 1, 0, settled.count};
    if (cut.count > k && !correction.too_many(cut.count)) {  // a short list, so an exact selection from it is cheap
      select.collect(cut, work.candidates.data(), work.candidate_values.data());
      host::Largest{queue, work.candidate_values.first(cut.count), work.largest}.select(work.positions.first(k),
                                                                                        values);
      for (std::size_t i = 0; i < k; ++i) work.positions[i] = work.candidates[work.positions[i]];
      return k;
    }
    if (cut.count > k) cut = select.largest(k, settled.pattern);
    if (cut.count > 0) select.collect(cut, work.positions.data(), values);
    return cut.count;
  }

  DgcPlan plan_;
  std::vector<host::Piece> pieces_;  ///< of the competing elements
  std::size_t blocks_ = 0;           ///< of 32 elements, in all pieces; piece.word is the number of its first block
};

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.001", {1e-6, 1.0}, "share of the elements that is sent, at most; at least one is")
        .searched("0.001|0.004|0.016|0.064|0.25"),
    real_param("momentum", "0.9", {0.0, 1.0}, "m of the momentum correction"),
    choice_param("nesterov", "off", "off|on", "Nesterov's form of it: u = m (u + g), v = v + u + g"),
    choice_param("masking", "on", "on|off", "momentum factor masking: u = 0 where v was sent"),
    real_param("clip", "off", {0.0, 1e30},
               "local clipping: a rank's gradient is scaled to an l2 norm of at most clip / sqrt(ranks)")
        .or_words("off"),
    integer_param("warmup", "0", {0, 1e12},
                  "iterations of warm-up, in four stages of densities ratio^(1/5), ^(2/5), ^(3/5), ^(4/5)"),
    choice_param("over", "topk", "topk|scale",
                 "what happens when more than 1.3 k pass: exact top-k of them at once, or threshold times 1.3 first"),
    choice_param("vectors", "dense", "dense|sparse",
                 "one-dimensional tensors (biases, norms) of a larger bucket: whole, or like the others"),
    kIndexParam};

}  // namespace

extern constinit const CodecDescriptor dgc_codec{
    .name = "dgc",
    .summary =
        "sends the largest elements of an accumulated velocity: top-k with momentum correction, masking and clipping",
    .reference = "Lin et al., Deep Gradient Compression, ICLR 2018, arXiv 1712.01887",
    .params = kParams,
    .memory = true,
    .delays = true,
    .by_layout = true,
    .momentum = "momentum",
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, and with dense vectors of d elements 64 + 32 d more",
    .passes =
        [](const Params& p) {
          MemoryPasses passes{.kept = p.real("momentum") > 0.0 ? 2 : 1, .scatters = true};
          if (!p.is("clip", "off")) passes.again = ReadAgain::unit, passes.why = "clipping needs the norm first";
          return passes;
        },
    .make_host = make_method_codec<Space::host, HostDgc>,
};

}  // namespace gradtool
