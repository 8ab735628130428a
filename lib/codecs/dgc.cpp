#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/host/block_select.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/law/dgc.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

using host::Piece;

constexpr double kSampled = 0.01;    // share of the elements that the threshold is estimated from
constexpr float kRaise = 1.3F;       // a threshold that lets more than 1.3 k pass is too low,
constexpr float kLower = 0.8F;       // one that lets less than 0.8 k pass too high
constexpr int kTries = 10;           // corrections of the threshold
constexpr double kWarmupStages = 4;  // 25 %, 6.25 %, 1.5625 %, 0.4 % on the way to 0.1 %
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;

/// Velocities and accumulated velocities of up to 32 elements.
template <bool Nesterov>
inline std::uint32_t update_block(const float* g, float* u, float* v, std::size_t count, law::Dgc law) {
  law.nesterov = Nesterov;
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = law.step(g[j], u[j]);
    const float sum = v[j] + step.increment;
    u[j] = step.u;
    v[j] = sum;
    largest = std::max(largest, law::bits_of(sum) & kMagnitude);
  }
  return largest;
}
template <bool Nesterov>
GT_SIMD_CLONES void update(const float* g, float* u, float* v, std::size_t count, law::Dgc law, std::uint32_t* maxima) {
  std::size_t at = 0;
  for (; at + 32 <= count; at += 32) *maxima++ = update_block<Nesterov>(g + at, u + at, v + at, 32, law);
  if (at < count) *maxima = update_block<Nesterov>(g + at, u + at, v + at, count - at, law);
}

/// Tensors that are sent as they are: out := what v would grow by.
GT_SIMD_CLONES void update_dense(const float* g, float* u, float* out, std::size_t count, law::Dgc law) {
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = law.step(g[j], u[j]);
    u[j] = step.u;
    out[j] = step.increment;
  }
}

/// Sum of squares in an order that does not depend on the processor.
GT_SIMD_CLONES double sum_of_squares(const float* x, std::size_t count) {
  std::array<double, 16> lanes{};
  std::size_t at = 0;
  for (; at + 16 <= count; at += 16) {
    for (std::size_t j = 0; j < 16; ++j) lanes[j] += static_cast<double>(x[at + j]) * static_cast<double>(x[at + j]);
  }
  for (; at < count; ++at) lanes[0] += static_cast<double>(x[at]) * static_cast<double>(x[at]);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Consecutive elements of the unit that are sent in the same way.
struct Run {
  std::size_t first = 0, count = 0;
};

class DgcCodec final : public Codec<Space::host> {
 public:
  [[nodiscard]] float momentum() const { return momentum_; }

  DgcCodec(const Params& params, const Layout& layout)
      : ratio_{params.real("ratio")},
        momentum_{static_cast<float>(params.real("momentum"))},
        nesterov_{params.is("nesterov", "on")},
        masks_{params.is("masking", "on")},
        scales_{params.is("over", "scale")},
        clip_{params.is("clip", "off") ? 0.0 : params.real("clip")},
        warmup_{params.integer("warmup")},
        coding_{params.word("index")},
        n_{layout.elements} {
    for (const auto& tensor : layout.tensors) {
      const bool dense = params.is("vectors", "dense") && tensor.shape.size() < 2 && layout.tensors.size() > 1;
      auto& runs = dense ? dense_runs_ : sparse_runs_;
      if (!runs.empty() && runs.back().first + runs.back().count == tensor.first)
        runs.back().count += tensor.elements;
      else
        runs.push_back({tensor.first, tensor.elements});
    }
    for (const Run& run : sparse_runs_) {
      for (std::size_t at = 0; at < run.count; at += host::kPiece) {
        const std::size_t count = std::min(host::kPiece, run.count - at);
        pieces_.push_back({run.first + at, count, maxima_, 0});
        maxima_ += (count + 31) / 32;
      }
      sparse_ += run.count;
    }
    for (const Run& run : dense_runs_) dense_ += run.count;
    most_kept_ = kept(warmup_ > 0 ? std::pow(ratio_, 1.0 / (kWarmupStages + 1.0)) : ratio_);
    most_sampled_ = std::max(samples(ratio_).count, samples(density(0)).count);
    places_ = Places{n_, maxima_, most_kept_, most_sampled_, pieces_.size()};
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec dgc: made for another layout");
    return {.payload_bytes = sparse_offset() + sparse_bound(coding_, most_kept_, n),
            .scratch_bytes = places_.bytes,
            .exact = false};
  }

  /// The first step, from empty state.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    auto* u = section<float>(scratch, places_.u);
    auto* v = section<float>(scratch, places_.v);
    std::fill_n(u, n_, 0.0F);
    std::fill_n(v, n_, 0.0F);
    step(queue, gradient, context, 1, u, v, payload, scratch);
  }

  /// One step of one of `ranks` ranks.
  void step(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context, int ranks, float* u,
            float* v, HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const law::Dgc law{momentum_, clip_scale(queue, gradient, ranks, scratch), nesterov_};
    auto* maxima = section<std::uint32_t>(scratch, places_.maxima);
    host::for_pieces(queue, pieces_.size(), sparse_, [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      const float* g = gradient.data() + piece.first;
      if (nesterov_)
        update<true>(g, u + piece.first, v + piece.first, piece.count, law, maxima + piece.word);
      else
        update<false>(g, u + piece.first, v + piece.first, piece.count, law, maxima + piece.word);
    });
    float* dense = section<float>(payload, 8);
    for (const Run& run : dense_runs_) {
      update_dense(gradient.data() + run.first, u + run.first, dense, run.count, law);
      dense += run.count;
    }
    const auto sparse = payload.part(sparse_offset(), payload.size() - sparse_offset());
    auto* sent = section<float>(sparse, sizeof(SparseHeader));  // where write_sparse wants values
    auto* places = section<std::uint32_t>(scratch, places_.positions);
    const std::size_t k = sparse_ == 0 ? 0 : choose(queue, context, v, scratch, places, sent);
    const HostView<const std::uint32_t> positions{places, k};
    const HostView<const float> values{sent, k};
    parallel_for(queue, k, 64, 1 << 12, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) {
        v[positions[first]] = 0.0F;
        if (masks_) u[positions[first]] = 0.0F;  // factor masking: no stale momentum behind what was sent
      }
    });
    const std::size_t written = write_sparse(queue, coding_, positions, values, n_, sparse);
    const std::uint64_t bytes = sparse_offset() + written;
    if (dense_ > 0) std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t at = sparse_offset();
    std::uint64_t bytes = payload.size();
    if (dense_ > 0 && payload.size() >= at) std::memcpy(&bytes, payload.data(), sizeof bytes);
    if (payload.size() < at || bytes != payload.size())
      throw Error{Fault::data, "dgc payload: its length is not the one it states"};
    add_sparse("dgc", payload.part(at, payload.size() - at), weight, out,
               {section<std::uint32_t>(scratch, places_.positions), most_kept_});
    const float* dense = section<float>(payload, 8);
    for (const Run& run : dense_runs_) {
      for (std::size_t i = 0; i < run.count; ++i) out[run.first + i] += weight * *dense++;
    }
    static_cast<void>(queue);
  }

  /// What is not sent is kept; the first step sends the gradient itself (with nesterov, at most twice it).
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 1.0 + 1e-6, .of_largest = 1.0 + 1e-6};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return dense_ + most_kept_; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    SparseHeader header;
    std::memcpy(&header, payload.data() + sparse_offset(), sizeof header);
    return dense_ + header.count;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  /// Where things lie in the scratch.
  struct Places {
    Places() = default;
    Places(std::size_t n, std::size_t blocks, std::size_t kept, std::size_t sampled, std::size_t pieces) {
      const auto take = [this](std::size_t size) { return std::exchange(bytes, bytes + (size + 63) / 64 * 64); };
      positions = take(4 * kept);
      maxima = take(4 * blocks);
      select = take(host::BlockSelect::scratch_bytes(pieces));
      norms = take(8 * host::pieces_of(n));
      sample = take(4 * sampled);
      sample_places = take(4 * sampled);
      sample_values = take(4 * sampled);
      candidates = take(4 * raised(kept));
      candidate_values = take(4 * raised(kept));
      largest = take(host::Largest::scratch_bytes(std::max(sampled, raised(kept))));
      u = take(4 * n);
      v = take(4 * n);
    }
    std::size_t positions = 0, maxima = 0, select = 0, norms = 0, sample = 0, sample_places = 0, sample_values = 0,
                candidates = 0, candidate_values = 0, largest = 0, u = 0, v = 0, bytes = 0;
  };

  struct Samples {
    std::size_t stride = 1, count = 0;
  };

  [[nodiscard]] std::size_t sparse_offset() const { return dense_ == 0 ? 0 : 8 + 4 * dense_; }

  /// k of the elements that compete, at least one.
  [[nodiscard]] std::size_t kept(double density) const {
    const auto wanted = static_cast<std::size_t>(std::llround(density * static_cast<double>(sparse_)));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(sparse_, 1), sparse_);
  }

  /// Warm-up: ratio^(1/5), ratio^(2/5), ... in four stages.
  [[nodiscard]] double density(std::int64_t iteration) const {
    if (iteration >= warmup_) return ratio_;
    const double stage = std::floor(kWarmupStages * static_cast<double>(iteration) / static_cast<double>(warmup_));
    return std::pow(ratio_, (stage + 1.0) / (kWarmupStages + 1.0));
  }

  /// Every `stride`-th of the elements that compete: 1 %, but enough for two values above the threshold.
  [[nodiscard]] Samples samples(double density) const {
    const double wanted = std::max(kSampled * static_cast<double>(sparse_), 2.0 / std::max(density, 1e-12));
    const auto count =
        static_cast<std::size_t>(std::clamp(wanted, 1.0, static_cast<double>(std::max<std::size_t>(1, sparse_))));
    const std::size_t stride = std::max<std::size_t>(1, sparse_ / count);
    return {stride, sparse_ / stride + 1};
  }

  /// Local clipping (section 3.3): by the share of one rank in the global norm. 1 where it is off.
  [[nodiscard]] float clip_scale(Queue<Space::host> queue, HostView<const float> gradient, int ranks,
                                 HostView<std::byte> scratch) const {
    if (clip_ <= 0.0) return 1.0F;
    auto* squares = section<double>(scratch, places_.norms);
    const host::Pieces pieces{n_};
    host::for_pieces(queue, pieces.size(), n_, [&](std::size_t i) {
      squares[i] = sum_of_squares(gradient.data() + pieces[i].first, pieces[i].count);
    });
    double sum = 0.0;
    for (std::size_t i = 0; i < pieces.size(); ++i) sum += squares[i];
    const double limit = clip_ / std::sqrt(static_cast<double>(ranks));
    const double norm = std::sqrt(sum);
    return norm > limit ? static_cast<float>(limit / norm) : 1.0F;
  }

  /// The magnitude that the sample's share `density` reaches, as a pattern; at least that of the smallest number, so
  /// that zeros are never sent, and at most infinity, so that NaNs are.
  [[nodiscard]] std::uint32_t sampled_threshold(Queue<Space::host> queue, const EncodeContext& context, double density,
                                                const float* v, HostView<std::byte> scratch) const {
    const Samples plan = samples(density);
    auto* sample = section<float>(scratch, places_.sample);
    std::size_t taken = 0;
    std::size_t next = law::draw4(context.key, 0).bits[0] % plan.stride;  // among the elements that compete
    std::size_t before = 0;
    for (const Run& run : sparse_runs_) {
      for (; next < before + run.count; next += plan.stride) sample[taken++] = v[run.first + (next - before)];
      before += run.count;
    }
    const auto wanted = static_cast<std::size_t>(std::ceil(density * static_cast<double>(taken)));
    const std::size_t top = std::clamp<std::size_t>(wanted, 1, taken);
    const HostView<std::uint32_t> places{section<std::uint32_t>(scratch, places_.sample_places), top};
    auto* values = section<float>(scratch, places_.sample_values);
    const auto bytes = scratch.part(places_.largest, host::Largest::scratch_bytes(taken));
    host::Largest{queue, {sample, taken}, bytes}.select(places, values);
    std::uint32_t threshold = kMagnitude;
    for (std::size_t i = 0; i < top; ++i) threshold = std::min(threshold, law::bits_of(values[i]) & kMagnitude);
    return std::clamp(threshold, 1U, kInfinity);
  }

  /// positions and values := what passes the sampled threshold, corrected until it lets about k pass; of more than k
  /// the k largest. Returns how many they are.
  [[nodiscard]] std::size_t choose(Queue<Space::host> queue, const EncodeContext& context, const float* v,
                                   HostView<std::byte> scratch, std::uint32_t* positions, float* values) const {
    const double now = density(context.iteration);
    const std::size_t k = kept(now);
    const std::size_t most = raised(k);
    host::BlockSelect select{queue, host::Pieces{pieces_.data(), pieces_.size(), sparse_}, v,
                             section<std::uint32_t>(scratch, places_.maxima), scratch.data() + places_.select};
    std::uint32_t threshold = k == sparse_ ? 1U : sampled_threshold(queue, context, now, v, scratch);
    auto cut = select.at_least(threshold);
    for (int tries = 0; tries < kTries; ++tries) {
      const bool many = cut.count > most;
      if (many && !scales_) break;  // the exact cut below
      if (!many && static_cast<double>(cut.count) >= static_cast<double>(kLower) * static_cast<double>(k)) break;
      const float moved = law::float_of(threshold) * (many ? kRaise : kLower);
      const std::uint32_t next = std::clamp(law::bits_of(moved), 1U, kInfinity);
      if (next == threshold) break;
      const auto other = select.at_least(next);
      if (many && static_cast<double>(other.count) < static_cast<double>(kLower) * static_cast<double>(k))
        break;  // nothing lies between: the exact cut of the too many
      threshold = next;
      cut = other;
    }
    if (cut.count > k && cut.count <= most) {  // few too many: cut their list
      auto* candidates = section<std::uint32_t>(scratch, places_.candidates);
      auto* sizes = section<float>(scratch, places_.candidate_values);
      select.collect(cut, candidates, sizes);
      const auto bytes = scratch.part(places_.largest, host::Largest::scratch_bytes(cut.count));
      host::Largest{queue, {sizes, cut.count}, bytes}.select({positions, k}, values);
      for (std::size_t i = 0; i < k; ++i) positions[i] = candidates[positions[i]];
      return k;
    }
    if (cut.count > k) cut = select.largest(k, threshold);
    if (cut.count > 0) select.collect(cut, positions, values);
    return cut.count;
  }

  /// 1.3 k.
  [[nodiscard]] static std::size_t raised(std::size_t k) {
    return static_cast<std::size_t>(static_cast<double>(kRaise) * static_cast<double>(k));
  }

  double ratio_;
  float momentum_;
  bool nesterov_, masks_, scales_;
  double clip_;
  std::int64_t warmup_;
  IndexCoding coding_;
  std::size_t n_;
  std::vector<Run> sparse_runs_, dense_runs_;
  std::vector<Piece> pieces_;
  std::size_t sparse_ = 0, dense_ = 0, maxima_ = 0, most_kept_ = 0, most_sampled_ = 0;
  Places places_;
};

/// u and v of one rank.
class DgcEncoder final : public Encoder<Space::host> {
 public:
  DgcEncoder(const DgcCodec& codec, std::size_t n, int ranks)
      : codec_{codec},
        ranks_{ranks},
        arena_{2 * Arena<Space::host>::padded_size(4 * n)},
        u_{arena_.take<float>(n)},
        v_{arena_.take<float>(n)} {
    reset({});
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& context, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    codec_.step(queue, gradient, context, ranks_, u_.data(), v_.data(), payload, scratch);
  }
  void reset(Queue<Space::host> /*queue*/) override {
    std::fill(u_.span().begin(), u_.span().end(), 0.0F);
    std::fill(v_.span().begin(), v_.span().end(), 0.0F);
  }
  [[nodiscard]] HostView<const float> residual() const override { return v_; }
  [[nodiscard]] std::string note() const override {
    if (codec_.momentum() == 0.0F) return {};
    return "what is sent carries momentum, so errors against plain gradients are large; momentum=0 compares";
  }

 private:
  const DgcCodec& codec_;
  int ranks_;
  Arena<Space::host> arena_;
  HostView<float> u_, v_;
};

std::unique_ptr<Encoder<Space::host>> DgcCodec::make_encoder(std::size_t n, int ranks,
                                                             Queue<Space::host> /*queue*/) const {
  return std::make_unique<DgcEncoder>(*this, n, ranks);
}

constexpr ParamInfo kParams[] = {
    {.name = "ratio",
     .default_value = "0.001",
     .min = 1e-6,
     .max = 1.0,
     .meaning = "share of the elements that is sent, at most; at least one is"},
    {.name = "momentum", .default_value = "0.9", .min = 0.0, .max = 1.0, .meaning = "m of the momentum correction"},
    {.name = "nesterov",
     .kind = ParamInfo::Kind::choice,
     .default_value = "off",
     .choices = "off|on",
     .meaning = "Nesterov's form of it: u = m (u + g), v = v + u + g"},
    {.name = "masking",
     .kind = ParamInfo::Kind::choice,
     .default_value = "on",
     .choices = "on|off",
     .meaning = "momentum factor masking: u = 0 where v was sent"},
    {.name = "clip",
     .default_value = "off",
     .min = 0.0,
     .max = 1e30,
     .choices = "off",
     .meaning = "local clipping: a rank's gradient is scaled to an l2 norm of at most clip / sqrt(ranks)"},
    {.name = "warmup",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e12,
     .meaning = "iterations of warm-up, in four stages of densities ratio^(1/5), ^(2/5), ^(3/5), ^(4/5)"},
    {.name = "over",
     .kind = ParamInfo::Kind::choice,
     .default_value = "topk",
     .choices = "topk|scale",
     .meaning = "what happens when more than 1.3 k pass: exact top-k of them at once, or threshold times 1.3 first"},
    {.name = "vectors",
     .kind = ParamInfo::Kind::choice,
     .default_value = "dense",
     .choices = "dense|sparse",
     .meaning = "one-dimensional tensors (biases, norms) of a larger unit: whole, or like the others"},
    kIndexParam};

}  // namespace

extern constinit const CodecDescriptor dgc_codec{
    .name = "dgc",
    .summary = "top-k of accumulated velocity by a sampled threshold: momentum correction, factor masking, clipping",
    .reference = "Lin et al., Deep Gradient Compression, ICLR 2018, arXiv 1712.01887",
    .description =
        "Each rank runs momentum locally (u = m u + g) and accumulates the velocity (v = v + u); the k largest of "
        "|v| are sent as float32 with their positions, and u and v are zeroed there. The threshold is the top-k "
        "quantile of a strided 1 % sample with a random start; where fewer than 0.8 k pass it is lowered by 0.8, at "
        "most ten times, and of more than k the k largest are sent, so that the count is at most k. Compare results "
        "with a plain optimiser behind it: what is sent already carries the momentum. Our decisions: the threshold "
        "is that of the unit (reduce by tensors for the paper's selection per layer); the final cut is an exact "
        "top-k, where published code keeps the first k in index order; the sample holds at least 2 / ratio elements; "
        "zeros are never sent; clipping is off unless asked for; one-dimensional tensors of a larger unit go whole, "
        "carrying velocity. It pays at densities of 0.1 % and few ranks, because the gather grows with their number.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .memory = true,
    .by_layout = true,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, and with dense vectors of d elements 64 + 32 d more",
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<DgcCodec>(p, layout);
    },
    .make_cuda = nullptr,
};

}  // namespace gradtool
