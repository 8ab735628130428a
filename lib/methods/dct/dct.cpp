#include <algorithm>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/sparse_codec.hpp"
#include "lib/methods/dct/codec.hpp"

namespace gradtool {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::size_t kBlock = 32;  ///< elements of which BlockSelect knows the largest pattern

/// residual += gradient for one block; returns the largest pattern of the sums.
[[gnu::always_inline]] inline std::uint32_t accumulate_block(const float* gradient, float* residual, std::size_t size) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < size; ++j) {
    const float sum = residual[j] + gradient[j];
    residual[j] = sum;
    largest = std::max(largest, format::bits_of(sum) & kMagnitude);
  }
  return largest;
}

/// residual += gradient for a piece, and the largest pattern of the sums of each block.
GT_SIMD_CLONES void accumulate(const float* gradient, float* residual, std::size_t count, std::uint32_t* maxima) {
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) *maxima++ = accumulate_block(gradient + i, residual + i, kBlock);
  if (i < count) *maxima = accumulate_block(gradient + i, residual + i, count - i);
}

class HostDct final : public SparseCodec {
 public:
  explicit HostDct(const Params& params)
      : SparseCodec{"dct", params}, ratio_{params.real("ratio")}, refresh_{params.integer("refresh")} {}

  /// The first step: the threshold is found, and the k largest are sent (more where some equal the k-th).
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    std::uint32_t threshold = format::kNoThreshold;
    step(queue, gradient, true, {}, &threshold, payload, scratch);
  }

  /// residual += gradient; what reaches the threshold is sent and becomes 0 in the residual. The threshold is found
  /// first if `scheduled`, or if there is no usable one. Without a residual the gradient takes its place.
  void step(Queue<Space::host> queue, HostView<const float> gradient, bool scheduled, HostView<float> residual,
            std::uint32_t* threshold, HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const std::size_t n = gradient.size();
    const HostView<const float> numbers = residual.empty() ? gradient : HostView<const float>{residual};
    const auto sent = send(queue, n, payload, scratch, [&](const Selection& selection) -> std::size_t {
      if (n == 0) return 0;
      const Workspace work{n, Scratch<Space::host>{selection.scratch}};
      const host::Pieces pieces{n};
      host::for_pieces(queue, pieces.size(), n, [&](std::size_t i) {
        const host::Piece piece = pieces[i];
        const float* own = gradient.data() + piece.first;
        std::uint32_t* maxima = work.maxima.data() + piece.word;
        if (residual.empty())
          host::block_maxima(own, piece.count, maxima);
        else
          accumulate(own, residual.data() + piece.first, piece.count, maxima);
      });
      host::BlockSelect select{queue, pieces, numbers.data(), work.maxima.data(), work.selection.data()};
      if (format::refreshes(*threshold, scheduled))
        *threshold = format::usable_threshold(kth_largest(queue, select, n, selection.positions, work));
      const auto cut = select.at_least(*threshold);
      select.collect(cut, selection.positions.data(), selection.values.data());
      return cut.count;
    });
    if (residual.empty()) return;
    parallel_for(queue, sent.size(), 64, 1 << 12, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) residual[sent[first]] = 0.0F;
    });
  }

  /// That of topk, for the first step.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double share = n == 0 ? 1.0 : static_cast<double>(share_of(ratio_, n)) / static_cast<double>(n);
    return {.nmse = (1.0 - share) * (1.0 + 1e-9), .of_largest = 1.0};
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::host> queue) const override {
    return std::make_unique<DctEncoder<Space::host, HostDct>>(*this, refresh_, n, queue);
  }

 private:
  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::host> scratch)
        : maxima{scratch.take<std::uint32_t>((n + kBlock - 1) / kBlock)},
          largest_maxima{scratch.take<float>(maxima.size())},
          selection{scratch.take_bytes(host::BlockSelect::scratch_bytes(host::pieces_of(n)))},
          selection_of_maxima{scratch.take_bytes(host::Largest::scratch_bytes(maxima.size(), maxima.size()))} {}
    HostView<std::uint32_t> maxima;  ///< the largest pattern of each block
    HostView<float> largest_maxima;
    HostView<std::byte> selection, selection_of_maxima;
  };
  [[nodiscard]] std::size_t rule_bytes(std::size_t n) const override { return planned<Workspace>(n); }

  /// The k-th largest pattern, exactly. The k-th largest maximum of a block is not above it: elements below that need
  /// not be looked at, which spares most blocks. Overwrites `positions`.
  [[nodiscard]] std::uint32_t kth_largest(Queue<Space::host> queue, const host::BlockSelect& select, std::size_t n,
                                          HostView<std::uint32_t> positions, const Workspace& work) const {
    const std::size_t k = share_of(ratio_, n);
    std::uint32_t floor = 0;
    if (k <= work.maxima.size()) {
      const HostView<const float> maxima{reinterpret_cast<const float*>(work.maxima.data()), work.maxima.size()};
      float* largest = work.largest_maxima.data();
      host::Largest{queue, maxima, work.selection_of_maxima}.select(positions.first(k), largest);
      floor = format::kInfinity;
      for (std::size_t i = 0; i < k; ++i) floor = std::min(floor, format::bits_of(largest[i]));
    }
    return select.largest(k, floor).threshold;
  }

  double ratio_;
  std::int64_t refresh_;
};

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
    .make_host = make_method_codec<Space::host, HostDct>,
};

}  // namespace gradtool
