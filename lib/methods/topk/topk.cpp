#include <fmt/format.h>

#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {
namespace {

/// The k values of the largest magnitude; of equal ones those with the lower index.
class TopK final : public Codec<Space::host> {
 public:
  explicit TopK(const Params& params) : ratio_{params.real("ratio")}, coding_{params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(coding_, values_sent(n), n),
            .scratch_bytes = planned<Workspace>(*this, n),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    const Workspace workspace{*this, n, Scratch<Space::host>{scratch}};
    const HostView<float> values = sparse_values(payload, values_sent(n));
    host::Largest{queue, gradient, workspace.selection}.select(workspace.positions, values.data());
    write_sparse(queue, coding_, workspace.positions, values, n, payload);
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t k = values_sent(out.size());
    if (read_sparse_header("topk", payload, out.size(), 32).count != k)
      throw Error{Fault::data, fmt::format("topk payload: it does not have the {} values of its ratio", k)};
    add_sparse("topk", payload, weight, out, Workspace{*this, out.size(), Scratch<Space::host>{scratch}}.positions);
  }

  /// The n - k smallest squares, which are lost, are at most the share (n - k)/n of all.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double kept = n == 0 ? 1.0 : static_cast<double>(values_sent(n)) / static_cast<double>(n);
    return {.nmse = (1.0 - kept) * (1.0 + 1e-9), .of_largest = 1.0};
  }

  [[nodiscard]] std::size_t values_sent(std::size_t n) const override { return share_of(ratio_, n); }

 private:
  struct Workspace {
    Workspace(const TopK& codec, std::size_t n, Scratch<Space::host> scratch)
        : positions{scratch.take<std::uint32_t>(codec.values_sent(n))},
          selection{scratch.take_bytes(host::Largest::scratch_bytes(n, codec.values_sent(n)))} {}
    HostView<std::uint32_t> positions;
    HostView<std::byte> selection;
  };

  double ratio_;
  IndexCoding coding_;
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
