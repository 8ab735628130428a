#include "kernels/float_bits.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

GT_SIMD_CLONES void to_bfloat(const float* in, std::uint16_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = format::bf16_from_f32(in[i]);
}

GT_SIMD_CLONES void add_bfloat(const std::uint16_t* in, float* out, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * format::f32_from_bf16(in[i]);
}

/// A cast to bfloat16: binary32 with 7 of its 23 mantissa bits, so it needs no scale.
class Bf16 final : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 2 * n}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    auto* out = section<std::uint16_t>(payload);
    parallel_for(queue, gradient.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      to_bfloat(gradient.data() + first, out + first, last - first);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("bf16", payload.size(), 2 * out.size());
    const auto* in = section<std::uint16_t>(payload);
    parallel_for(queue, out.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      add_bfloat(in + first, out.data() + first, last - first, weight);
    });
  }

  /// Relative 2^-8 per element for normal values; below, half the spacing of bfloat16's subnormals.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 0x1p-16 * (1.0 + 1e-6), .of_largest = 0x1p-8, .absolute = 0x1p-134};
  }
};

}  // namespace

extern constinit const CodecDescriptor bf16_codec{
    .name = "bf16",
    .summary = "casts to bfloat16; the all-reduce adds the casts and rounds at every hop",
    .reference = "Intel, BFLOAT16 Hardware Numerics Definition, 2018; PyTorch's bf16 communication hook",
    .params = {},
    .aggregation = Aggregation::sum,
    .sum_dtype = Dtype::bf16,
    .payload = "16 n bits",
    .make_host = make_method_codec<Space::host, Bf16>,
};

}  // namespace gradtool
