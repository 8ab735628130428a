#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

/// Sends nothing, decodes to zero. Its time is what is left when compression is free and perfect.
class Noop final : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t /*n*/) const override { return {}; }
  void encode(Queue<Space::host> /*queue*/, HostView<const float> /*gradient*/, const EncodeContext& /*context*/,
              HostView<std::byte> /*payload*/, HostView<std::byte> /*scratch*/) const override {}
  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float /*weight*/,
                  HostView<float> /*out*/, HostView<std::byte> /*scratch*/) const override {
    expect_length("noop", payload.size(), 0);
  }
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0, .of_largest = 1.0}; }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return 0; }
};

}  // namespace

extern constinit const CodecDescriptor noop_codec{
    .name = "noop",
    .summary = "sends nothing: the headroom that no codec can exceed",
    .reference = "baseline",
    .params = {},
    .aggregation = Aggregation::none,
    .payload = "0 bits",
    .passes = [](const Params&) { return MemoryPasses{.reads = 0.0, .why = "it sends nothing", .scatters = true}; },
    .make_host = make_method_codec<Space::host, Noop>,
};

}  // namespace gradtool
