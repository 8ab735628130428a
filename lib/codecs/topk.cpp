#include <algorithm>
#include <cmath>

#include "kernels/host/largest.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

/// Exactly k values of the largest magnitude; ties go to the lower index.
class TopK final : public Codec<Space::host> {
 public:
  explicit TopK(const Params& params) : ratio_{params.real("ratio")}, coding_{params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    const std::size_t k = values_sent(n);
    return {.payload_bytes = sparse_bound(coding_, k, n),
            .scratch_bytes = 4 * k + host::Largest::scratch_bytes(n),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    const std::size_t k = values_sent(n);
    const HostView<std::uint32_t> positions{section<std::uint32_t>(scratch), k};
    auto* values = section<float>(payload, sizeof(SparseHeader));  // where write_sparse wants them
    const host::Largest largest{queue, gradient, scratch.part(4 * k, scratch.size() - 4 * k)};
    largest.select(positions, values);
    write_sparse(queue, coding_, positions, {values, k}, n, payload);
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t k = values_sent(out.size());
    if (read_sparse_header("topk", payload, out.size(), 32).count != k)
      throw Error{Fault::data, fmt::format("topk payload: it does not have the {} values of its ratio", k)};
    add_sparse("topk", payload, weight, out, {section<std::uint32_t>(scratch), k});
  }

  /// Dropping the n-k smallest squares keeps at least their share k/n.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double kept = n == 0 ? 1.0 : static_cast<double>(values_sent(n)) / static_cast<double>(n);
    return {.nmse = (1.0 - kept) * (1.0 + 1e-9), .of_largest = 1.0};
  }

  /// k = round(ratio n), at least one.
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override {
    const auto wanted = static_cast<std::size_t>(std::llround(ratio_ * static_cast<double>(n)));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(n, 1), n);
  }

 private:
  double ratio_;
  IndexCoding coding_;
};

constexpr ParamInfo kParams[] = {{.name = "ratio",
                                  .kind = ParamInfo::Kind::real,
                                  .default_value = "0.01",
                                  .min = 0.0,
                                  .max = 1.0,
                                  .meaning = "share of the elements that is sent; at least one is"},
                                 kIndexParam};

}  // namespace

extern constinit const CodecDescriptor topk_codec{
    .name = "topk",
    .summary = "the k largest magnitudes, exactly, with error feedback",
    .reference = "Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018",
    .description =
        "Keeps the k elements of largest magnitude, exactly and not by a sampled threshold, and sends their float32 "
        "values with their positions. k follows from the ratio and is never below one. Positions are written in the "
        "smallest of three forms: a list, a bitmap, or Elias delta codes of the gaps, about log2(n/k) + 4 bits for "
        "gaps without structure. Of equal magnitudes those with the lower index are kept, so the choice depends on "
        "nothing but the gradient. Error feedback is on by default, as in both papers. It pays wherever few elements "
        "carry most of the energy; the gather makes traffic grow with the number of ranks.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .error_feedback = true,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, k = round(ratio n)",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<TopK>(p);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_topk),
};

}  // namespace gradtool
