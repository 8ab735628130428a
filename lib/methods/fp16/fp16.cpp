#include <cmath>

#include "kernels/float_bits.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

GT_SIMD_CLONES void to_half(const float* in, std::uint16_t* out, std::size_t count, float scale) {
  for (std::size_t i = 0; i < count; ++i) out[i] = format::f16_from_f32(in[i] * scale);
}

GT_SIMD_CLONES void add_half(const std::uint16_t* in, float* out, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * format::f32_from_f16(in[i]);
}

/// A cast to binary16. The scale is a power of two, so it costs no precision and only moves the range.
class Fp16 final : public Codec<Space::host> {
 public:
  explicit Fp16(const Params& params) : scale_{std::ldexp(1.0F, static_cast<int>(params.integer("scale_log2")))} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 2 * n}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    auto* out = section<std::uint16_t>(payload);
    parallel_for(queue, gradient.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      to_half(gradient.data() + first, out + first, last - first, scale_);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("fp16", payload.size(), 2 * out.size());
    const auto* in = section<std::uint16_t>(payload);
    const float unscaled = weight / scale_;
    parallel_for(queue, out.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      add_half(in + first, out.data() + first, last - first, unscaled);
    });
  }

  /// Relative 2^-11 for normal results; below, half the spacing of subnormals, 2^-25 before unscaling.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.of_largest = 0x1p-11, .absolute = 0x1p-25 / static_cast<double>(scale_)};
  }

 private:
  float scale_;
};

constexpr ParamInfo kParams[] = {integer_param(
    "scale_log2", "0", {-24, 24}, "multiply by 2^scale_log2 before the cast, against underflow below 6e-8")};

}  // namespace

extern constinit const CodecDescriptor fp16_codec{
    .name = "fp16",
    .summary = "casts to binary16; the all-reduce adds the casts and rounds at every hop",
    .reference = "IEEE 754 binary16; PyTorch's fp16 communication hook",
    .params = kParams,
    .aggregation = Aggregation::sum,
    .sum_dtype = Dtype::f16,
    .payload = "16 n bits",
    .make_host = make_method_codec<Space::host, Fp16>,
};

}  // namespace gradtool
