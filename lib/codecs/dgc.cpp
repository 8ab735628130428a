#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dgc_momentum.hpp"
#include "lib/codecs/dgc_runs.hpp"
#include "lib/codecs/dgc_threshold.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

class DgcCodec final : public Codec<Space::host> {
 public:
  DgcCodec(const Params& params, const Layout& layout)
      : runs_{layout, params.is("vectors", "dense")},
        momentum_{params},
        threshold_{params, runs_},
        masks_{params.is("masking", "on")},
        coding_{params.word("index")},
        n_{layout.elements},
        places_{n_, runs_, threshold_} {}

  [[nodiscard]] std::string note() const { return momentum_.note(); }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec dgc: made for another layout");
    return {.payload_bytes = sparse_offset() + sparse_bound(coding_, threshold_.most_kept(), n),
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
    auto* maxima = section<std::uint32_t>(scratch, places_.maxima);
    momentum_.accumulate(queue, runs_, gradient, ranks, u, v, maxima, section<float>(payload, 8),
                         scratch.part(places_.norms, DgcMomentum::scratch_bytes(n_)));
    const auto sparse = payload.part(sparse_offset(), payload.size() - sparse_offset());
    auto* sent = section<float>(sparse, sizeof(SparseHeader));  // where write_sparse wants values
    auto* places = section<std::uint32_t>(scratch, places_.positions);
    const auto own = scratch.part(places_.threshold, threshold_.scratch_bytes());
    const std::size_t k = runs_.sparse == 0 ? 0 : threshold_.choose(queue, context, v, maxima, own, places, sent);
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
    if (runs_.dense > 0) std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t at = sparse_offset();
    std::uint64_t bytes = payload.size();
    if (runs_.dense > 0 && payload.size() >= at) std::memcpy(&bytes, payload.data(), sizeof bytes);
    if (payload.size() < at || bytes != payload.size())
      throw Error{Fault::data, "dgc payload: its length is not the one it states"};
    add_sparse("dgc", payload.part(at, payload.size() - at), weight, out,
               {section<std::uint32_t>(scratch, places_.positions), threshold_.most_kept()});
    const float* dense = section<float>(payload, 8);
    for (const auto& run : runs_.dense_runs) {
      for (std::size_t i = 0; i < run.count; ++i) out[run.first + i] += weight * *dense++;
    }
    static_cast<void>(queue);
  }

  /// What is not sent is kept; the first step sends the gradient itself (with nesterov, at most twice it).
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 1.0 + 1e-6, .of_largest = 1.0 + 1e-6};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override {
    return runs_.dense + threshold_.most_kept();
  }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    SparseHeader header;
    std::memcpy(&header, payload.data() + sparse_offset(), sizeof header);
    return runs_.dense + header.count;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  /// Where things lie in the scratch.
  struct Places {
    Places(std::size_t n, const DgcRuns& runs, const DgcThreshold& choice) {
      const auto take = [this](std::size_t size) { return std::exchange(bytes, bytes + (size + 63) / 64 * 64); };
      positions = take(4 * choice.most_kept());
      maxima = take(4 * runs.blocks);
      norms = take(DgcMomentum::scratch_bytes(n));
      threshold = take(choice.scratch_bytes());
      u = take(4 * n);
      v = take(4 * n);
    }
    std::size_t positions = 0, maxima = 0, norms = 0, threshold = 0, u = 0, v = 0, bytes = 0;
  };

  [[nodiscard]] std::size_t sparse_offset() const { return runs_.dense == 0 ? 0 : 8 + 4 * runs_.dense; }

  DgcRuns runs_;
  DgcMomentum momentum_;
  DgcThreshold threshold_;
  bool masks_;
  IndexCoding coding_;
  std::size_t n_;
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
  [[nodiscard]] std::string note() const override { return codec_.note(); }

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
    .make_cuda = GT_MAKE_CUDA(make_cuda_dgc),
};

}  // namespace gradtool
