#include <cstring>

#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// The uncompressed gradient: what every other codec is compared with.
class None final : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 4 * n}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    auto* out = section<float>(payload);
    parallel_for(queue, gradient.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      std::memcpy(out + first, gradient.data() + first, (last - first) * sizeof(float));
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("none", payload.size(), 4 * out.size());
    const auto* in = section<float>(payload);
    parallel_for(queue, out.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) out.data()[i] += weight * in[i];
    });
  }

  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 0.0, .of_largest = 0.0}; }
};

}  // namespace

extern constinit const CodecDescriptor none_codec{
    .name = "none",
    .summary = "uncompressed float32, summed by the all-reduce",
    .reference = "baseline",
    .params = {},
    .aggregation = Aggregation::sum,
    .unbiased = true,
    .payload = "32 n bits",
    .make_host = make_method_codec<Space::host, None>,
};

}  // namespace gradtool
