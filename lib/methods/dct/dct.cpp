#include <algorithm>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/dct/format.hpp"

namespace gradtool {
namespace {

using format::kInfinity;
using format::kNoThreshold;

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::size_t kBlock = 32;  ///< elements of which BlockSelect knows the largest pattern

/// residual += gradient, and the largest pattern of each block of sums.
GT_SIMD_CLONES void accumulate(const float* gradient, float* residual, std::size_t count, std::uint32_t* maxima) {
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    std::uint32_t largest = 0;
    for (std::size_t j = i; j < i + kBlock; ++j) {
      const float sum = residual[j] + gradient[j];
      residual[j] = sum;
      largest = std::max(largest, format::bits_of(sum) & kMagnitude);
    }
    *maxima++ = largest;
  }
  if (i == count) return;
  std::uint32_t largest = 0;
  for (; i < count; ++i) {
    residual[i] += gradient[i];
    largest = std::max(largest, format::bits_of(residual[i]) & kMagnitude);
  }
  *maxima = largest;
}

class DctCodec final : public Codec<Space::host> {
 public:
  explicit DctCodec(const Params& params) : options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {
        .payload_bytes = sparse_bound(options_.coding, n, n), .scratch_bytes = planned<Workspace>(n), .exact = false};
  }

  /// The first step: the threshold is found, and the k largest are sent (more where some equal the k-th).
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const Workspace workspace{gradient.size(), Scratch<Space::host>{scratch}};
    const host::Pieces pieces{gradient.size()};
    host::for_pieces(queue, pieces.size(), gradient.size(), [&](std::size_t i) {
      const host::Piece piece = pieces[i];
      host::block_maxima(gradient.data() + piece.first, piece.count, workspace.maxima.data() + piece.word);
    });
    std::uint32_t threshold = kNoThreshold;
    send(queue, gradient.data(), gradient.size(), threshold, payload, workspace);
  }

  /// residual += gradient; what reaches the threshold is sent and becomes 0 in the residual. Where there is no
  /// threshold it is found first.
  void step(Queue<Space::host> queue, HostView<const float> gradient, float* residual, std::uint32_t& threshold,
            HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const std::size_t n = gradient.size();
    const Workspace workspace{n, Scratch<Space::host>{scratch}};
    const host::Pieces pieces{n};
    host::for_pieces(queue, pieces.size(), n, [&](std::size_t i) {
      const host::Piece piece = pieces[i];
      accumulate(gradient.data() + piece.first, residual + piece.first, piece.count,
                 workspace.maxima.data() + piece.word);
    });
    const std::size_t sent = send(queue, residual, n, threshold, payload, workspace);
    parallel_for(queue, sent, 64, 1 << 12, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) residual[workspace.positions[first]] = 0.0F;
    });
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    add_sparse("dct", payload, weight, out, Workspace{out.size(), Scratch<Space::host>{scratch}}.positions);
  }

  /// That of topk, for the first step.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double share = n == 0 ? 1.0 : static_cast<double>(options_.kept(n)) / static_cast<double>(n);
    return {.nmse = (1.0 - share) * (1.0 + 1e-9), .of_largest = 1.0};
  }
  /// The number of elements that reach the k-th largest of the first step; it is n if all are equal.
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return read_sparse_header("dct", payload, n, 32).count;
  }
  [[nodiscard]] const DctOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::host> scratch)
        : positions{scratch.take<std::uint32_t>(n)},
          maxima{scratch.take<std::uint32_t>((n + kBlock - 1) / kBlock)},
          largest_maxima{scratch.take<float>(maxima.size())},
          selection{scratch.take_bytes(host::BlockSelect::scratch_bytes(host::pieces_of(n)))},
          selection_of_maxima{scratch.take_bytes(host::Largest::scratch_bytes(maxima.size(), maxima.size()))} {}
    HostView<std::uint32_t> positions;
    HostView<std::uint32_t> maxima;  ///< the largest pattern of each block
    HostView<float> largest_maxima;
    HostView<std::byte> selection, selection_of_maxima;
  };

  /// The k-th largest pattern, exactly. The k-th largest maximum of a block is not above it: elements below that need
  /// not be looked at, which spares most blocks.
  [[nodiscard]] std::uint32_t quantile(Queue<Space::host> queue, const host::BlockSelect& select, std::size_t n,
                                       const Workspace& workspace) const {
    const std::size_t k = options_.kept(n);
    const std::size_t blocks = workspace.maxima.size();
    std::uint32_t floor = 0;
    if (k <= blocks) {
      const HostView<const float> maxima{reinterpret_cast<const float*>(workspace.maxima.data()), blocks};
      float* largest = workspace.largest_maxima.data();
      host::Largest{queue, maxima, workspace.selection_of_maxima}.select(workspace.positions.first(k), largest);
      floor = kInfinity;
      for (std::size_t i = 0; i < k; ++i) floor = std::min(floor, format::bits_of(largest[i]));
    }
    return std::clamp(select.largest(k, floor).threshold, 1U, kInfinity);
  }

  /// Writes the payload of what reaches the threshold; how many elements that are. workspace.positions says where.
  std::size_t send(Queue<Space::host> queue, const float* numbers, std::size_t n, std::uint32_t& threshold,
                   HostView<std::byte> payload, const Workspace& workspace) const {
    host::BlockSelect select{queue, host::Pieces{n}, numbers, workspace.maxima.data(), workspace.selection.data()};
    std::size_t sent = 0;
    if (n > 0) {
      if (threshold == kNoThreshold) threshold = quantile(queue, select, n, workspace);
      const auto cut = select.at_least(threshold);
      sent = cut.count;
      if (sent > 0) select.collect(cut, workspace.positions.data(), sparse_values(payload, sent).data());
    }
    write_sparse(queue, options_.coding, workspace.positions.first(sent), sparse_values(payload, sent), n, payload);
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
    if (steps_ % codec_.options().refresh == 0 || threshold_ >= kInfinity) threshold_ = kNoThreshold;
    ++steps_;
    codec_.step(queue, gradient, residual_.data(), threshold_, payload, scratch);
  }
  void reset(Queue<Space::host> /*queue*/) override {
    std::fill(residual_.span().begin(), residual_.span().end(), 0.0F);
    steps_ = 0;
    threshold_ = kNoThreshold;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", residual_);
    visitor.value("steps", steps_);
    visitor.value("threshold", threshold_);
  }
  [[nodiscard]] HostView<const float> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override { return codec_.options().note(steps_); }

 private:
  const DctCodec& codec_;
  Arena<Space::host> arena_;
  HostView<float> residual_;
  std::int64_t steps_ = 0;
  std::uint32_t threshold_ = kNoThreshold;
};

std::unique_ptr<Encoder<Space::host>> DctCodec::make_encoder(std::size_t n, int /*ranks*/,
                                                             Queue<Space::host> /*queue*/) const {
  return std::make_unique<DctEncoder>(*this, n);
}

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.01", {0.0, 1.0}, "share of the elements that sets the threshold when it is refreshed")
        .searched("0.001|0.004|0.016|0.064|0.25"),
    integer_param("refresh", "1000", {1, 1e9}, "steps of a replay that a threshold serves"), kIndexParam};

}  // namespace

extern constinit const CodecDescriptor dct_codec{
    .name = "dct",
    .summary = "sends what exceeds a threshold, which is set by top-k and then kept for many steps",
    .reference =
        "Gupta et al., Training Recommender Systems at Scale: Dynamic Communication Thresholding, KDD 2021, arXiv "
        "2010.08899",
    .params = kParams,
    .memory = true,
    .delays = true,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, k elements that reach the threshold",
    .passes = [](const Params&) { return MemoryPasses{.kept = 1, .scatters = true}; },
    .make_host = make_method_codec<Space::host, DctCodec>,
};

}  // namespace gradtool
