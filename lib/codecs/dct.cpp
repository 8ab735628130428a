#include <algorithm>
#include <utility>

#include "kernels/host/block_select.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dct_options.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kNone = 0;  ///< no threshold yet: zeros are never sent, so 0 is free

/// e += g, and the largest pattern of each 32.
GT_SIMD_CLONES void accumulate(const float* g, float* e, std::size_t count, std::uint32_t* maxima) {
  std::size_t at = 0;
  for (; at + 32 <= count; at += 32) {
    std::uint32_t largest = 0;
    for (std::size_t j = at; j < at + 32; ++j) {
      const float sum = e[j] + g[j];
      e[j] = sum;
      largest = std::max(largest, law::bits_of(sum) & kMagnitude);
    }
    *maxima++ = largest;
  }
  if (at == count) return;
  std::uint32_t largest = 0;
  for (; at < count; ++at) {
    e[at] += g[at];
    largest = std::max(largest, law::bits_of(e[at]) & kMagnitude);
  }
  *maxima = largest;
}

class DctCodec final : public Codec<Space::host> {
 public:
  explicit DctCodec(const Params& params) : options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(options_.coding, n, n), .scratch_bytes = Places{n}.bytes, .exact = false};
  }

  /// The first step: the threshold is found, and the k largest are sent (more where some equal the k-th).
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const Places at{gradient.size()};
    auto* maxima = section<std::uint32_t>(scratch, at.maxima);
    const host::Pieces pieces{gradient.size()};
    host::for_pieces(queue, pieces.size(), gradient.size(), [&](std::size_t i) {
      host::block_maxima(gradient.data() + pieces[i].first, pieces[i].count, maxima + pieces[i].word);
    });
    std::uint32_t threshold = kNone;
    send(queue, gradient.data(), gradient.size(), threshold, payload, scratch);
  }

  /// e += g; what reaches the threshold is sent and taken off e. A threshold of kNone is found first.
  void step(Queue<Space::host> queue, HostView<const float> gradient, float* e, std::uint32_t& threshold,
            HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const std::size_t n = gradient.size();
    const Places at{n};
    auto* maxima = section<std::uint32_t>(scratch, at.maxima);
    const host::Pieces pieces{n};
    host::for_pieces(queue, pieces.size(), n, [&](std::size_t i) {
      const host::Piece piece = pieces[i];
      accumulate(gradient.data() + piece.first, e + piece.first, piece.count, maxima + piece.word);
    });
    const std::size_t sent = send(queue, e, n, threshold, payload, scratch);
    const auto* positions = section<std::uint32_t>(scratch, at.positions);
    parallel_for(queue, sent, 64, 1 << 12, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) e[positions[first]] = 0.0F;
    });
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const Places at{out.size()};
    add_sparse("dct", payload, weight, out, {section<std::uint32_t>(scratch, at.positions), out.size()});
  }

  /// Of the first step, as topk.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double share = n == 0 ? 1.0 : static_cast<double>(options_.kept(n)) / static_cast<double>(n);
    return {.nmse = (1.0 - share) * (1.0 + 1e-9), .of_largest = 1.0};
  }
  /// As many as reach the k-th largest of the first step: all, where all are equal.
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return read_sparse_header("dct", payload, n, 32).count;
  }
  [[nodiscard]] const DctOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  /// Where things lie in the scratch.
  struct Places {
    explicit Places(std::size_t n) {
      const auto take = [this](std::size_t size) { return std::exchange(bytes, bytes + (size + 63) / 64 * 64); };
      positions = take(4 * n);
      maxima = take(4 * blocks(n));
      select = take(host::BlockSelect::scratch_bytes(host::pieces_of(n)));
      largest = take(host::Largest::scratch_bytes(blocks(n)));
      of_blocks = take(4 * blocks(n));
    }
    static std::size_t blocks(std::size_t n) { return (n + 31) / 32; }
    std::size_t positions = 0, maxima = 0, select = 0, largest = 0, of_blocks = 0, bytes = 0;
  };

  /// The k-th largest pattern, exactly. The k-th largest maximum of a block is not above it, which spares most blocks.
  [[nodiscard]] std::uint32_t quantile(Queue<Space::host> queue, const host::BlockSelect& select, std::size_t n,
                                       HostView<std::byte> scratch) const {
    const Places at{n};
    const std::size_t k = options_.kept(n);
    std::uint32_t floor = 0;
    if (k <= Places::blocks(n)) {
      const HostView<const float> maxima{section<float>(scratch, at.maxima), Places::blocks(n)};  // patterns of them
      auto* values = section<float>(scratch, at.of_blocks);
      const auto bytes = scratch.part(at.largest, host::Largest::scratch_bytes(maxima.size()));
      host::Largest{queue, maxima, bytes}.select({section<std::uint32_t>(scratch, at.positions), k}, values);
      floor = kInfinity;  // what is not finite is sent anyway
      for (std::size_t i = 0; i < k; ++i) floor = std::min(floor, law::bits_of(values[i]));
    }
    return std::clamp(select.largest(k, floor).threshold, 1U, kInfinity);
  }

  std::size_t send(Queue<Space::host> queue, const float* u, std::size_t n, std::uint32_t& threshold,
                   HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const Places at{n};
    auto* positions = section<std::uint32_t>(scratch, at.positions);
    auto* values = section<float>(payload, sizeof(SparseHeader));  // where write_sparse wants them
    host::BlockSelect select{queue, host::Pieces{n}, u, section<std::uint32_t>(scratch, at.maxima),
                             scratch.data() + at.select};
    std::size_t sent = 0;
    if (n > 0) {
      if (threshold == kNone) threshold = quantile(queue, select, n, scratch);
      const auto cut = select.at_least(threshold);
      sent = cut.count;
      if (sent > 0) select.collect(cut, positions, values);
    }
    write_sparse(queue, options_.coding, {positions, sent}, {values, sent}, n, payload);
    return sent;
  }

  DctOptions options_;
};

/// Residual and threshold of one rank.
class DctEncoder final : public Encoder<Space::host> {
 public:
  DctEncoder(const DctCodec& codec, std::size_t n)
      : codec_{codec}, arena_{Arena<Space::host>::padded_size(4 * n)}, residual_{arena_.take<float>(n)} {
    reset({});
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& /*context*/, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    // A threshold among what is not finite would stop everything else until the next refresh.
    if (steps_ % codec_.options().refresh == 0 || threshold_ >= kInfinity) threshold_ = kNone;
    ++steps_;
    codec_.step(queue, gradient, residual_.data(), threshold_, payload, scratch);
  }
  void reset(Queue<Space::host> /*queue*/) override {
    std::fill(residual_.span().begin(), residual_.span().end(), 0.0F);
    steps_ = 0;
    threshold_ = kNone;
  }
  [[nodiscard]] HostView<const float> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override { return codec_.options().note(steps_); }

 private:
  const DctCodec& codec_;
  Arena<Space::host> arena_;
  HostView<float> residual_;
  std::int64_t steps_ = 0;
  std::uint32_t threshold_ = kNone;
};

std::unique_ptr<Encoder<Space::host>> DctCodec::make_encoder(std::size_t n, int /*ranks*/,
                                                             Queue<Space::host> /*queue*/) const {
  return std::make_unique<DctEncoder>(*this, n);
}

constexpr ParamInfo kParams[] = {{.name = "ratio",
                                  .default_value = "0.01",
                                  .min = 0.0,
                                  .max = 1.0,
                                  .meaning = "share of the elements that sets the threshold when it is refreshed"},
                                 {.name = "refresh",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "1000",
                                  .min = 1,
                                  .max = 1e9,
                                  .meaning = "steps of a replay that a threshold serves"},
                                 kIndexParam};

}  // namespace

extern constinit const CodecDescriptor dct_codec{
    .name = "dct",
    .summary = "a magnitude threshold that is a top-k quantile at first and then stays for many steps",
    .reference =
        "Gupta et al., Training Recommender Systems at Scale: Dynamic Communication Thresholding, KDD 2021, "
        "arXiv 2010.08899",
    .description =
        "u = gradient + residual; what reaches the threshold in magnitude is sent as float32 with its position, and "
        "the rest is the residual (DCT-DP, the data-parallel half of the paper). The threshold is the k-th largest "
        "|u|, found exactly, and serves `refresh` steps, so that most steps need no selection but a comparison. Our "
        "decisions: the count between refreshes is whatever passes, not capped; what equals the threshold is sent, "
        "so that a refresh sends k; zeros never are; steps are counted as the replay gives them, and a note says "
        "when a replay was too short for a second refresh. The number sent drifts with the scale of the gradient, "
        "upward where residuals pile up: watch the ratio column. Pays where selection costs, at the ratios of topk.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .memory = true,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, k elements that reach the threshold",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<DctCodec>(p);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_dct),
};

}  // namespace gradtool
