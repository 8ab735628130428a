
#include "kernels/select.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/sparse_codec.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// The k values of the largest magnitude; of equal ones those with the lower index.
class TopK final : public SparseCodec {
 public:
  explicit TopK(const Params& params) : SparseCodec{"topk", params}, ratio_{params.real("ratio")} {}

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    send(queue, gradient.size(), payload, scratch, [&](const Selection& selection) {
      host::Largest{queue, gradient, selection.scratch}.select(selection.positions, selection.values.data());
      return selection.positions.size();
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t k = values_sent(out.size());
    if (values_in(payload, out.size()) != k)
      throw_error(Fault::data, "topk payload: it does not have the {} values of its ratio", k);
    SparseCodec::decode_add(queue, payload, weight, out, scratch);
  }

  /// The n - k smallest squares, which are lost, are at most the share (n - k)/n of all.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double kept = n == 0 ? 1.0 : static_cast<double>(values_sent(n)) / static_cast<double>(n);
    return {.nmse = (1.0 - kept) * (1.0 + 1e-9), .of_largest = 1.0};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override { return share_of(ratio_, n); }

 private:
  [[nodiscard]] std::size_t rule_bytes(std::size_t n) const override {
    return host::Largest::scratch_bytes(n, values_sent(n));
  }

  double ratio_;
};

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.01", {0.0, 1.0}, "share of the elements that is sent; at least one is")
        .searched("0.001|0.004|0.016|0.064|0.25"),
    kIndexParam};

}  // namespace

extern constinit const CodecDescriptor topk_codec{
    .name = "topk",
    .summary = "sends the k elements of largest magnitude, found exactly, with error feedback",
    .reference = "Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018",
    .params = kParams,
    .error_feedback = true,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, k = round(ratio n)",
    .passes = [](const Params&) { return MemoryPasses{.scatters = true}; },
    .make_host = make_method_codec<Space::host, TopK>,
};

}  // namespace gradtool
