#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/law/philox.hpp"
#include "kernels/law/small_float.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr float kSmallest = 0x1p-100F;  // a block below this is sent as zero: its scale would be subnormal

GT_SIMD_CLONES std::uint32_t largest_bits(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffU);
  return largest;
}

template <law::SmallFloat Format>
GT_SIMD_CLONES void to_codes(const float* x, std::size_t count, float factor, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(Format.nearest(x[i] * factor));
}

template <law::SmallFloat Format>
GT_SIMD_CLONES void to_codes_drawn(const float* x, std::size_t first, std::size_t count, float factor,
                                   const law::DrawKey& key, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; i += 4) {
    const law::Draws draws = law::draw4(key, (first + i) / 4);
    for (std::size_t j = i; j < std::min(count, i + 4); ++j) {
      codes[j] = static_cast<std::uint8_t>(Format.stochastic(x[j] * factor, draws.bits[j - i]));
    }
  }
}

template <law::SmallFloat Format>
GT_SIMD_CLONES void add_values(const std::uint8_t* codes, std::size_t count, float factor, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += factor * Format.value(codes[i]);
}

/// One float32 scale for every block: the block's largest magnitude becomes the format's largest value.
template <law::SmallFloat Format>
class Fp8 final : public Codec<Space::host> {
 public:
  explicit Fp8(const Params& params)
      : block_{static_cast<std::size_t>(params.integer("block"))}, stochastic_{params.is("rounding", "stochastic")} {
    expects(block_ % 4 == 0, "codec fp8: block must be a multiple of 4");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = bytes(n)}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = gradient.size();
    auto* scales = section<float>(payload);
    auto* codes = section<std::uint8_t>(payload, 4 * blocks(n));
    parallel_for(queue, blocks(n), 1, std::max<std::size_t>(1, 16384 / block_), [&](std::size_t b, std::size_t last) {
      for (; b < last; ++b) {
        const std::size_t first = b * block_;
        const std::size_t count = std::min(block_, n - first);
        const float* x = gradient.data() + first;
        const float largest = law::float_of(largest_bits(x, count));
        const bool finite = largest <= 0x1.fffffep127F;
        const bool sent = finite && largest >= kSmallest;
        scales[b] = sent ? largest / top() : finite ? 0.0F : law::float_of(0x7fc00000U);
        const float factor = sent ? top() / largest : 0.0F;
        if (stochastic_)
          to_codes_drawn<Format>(x, first, count, factor, context.key, codes + first);
        else
          to_codes<Format>(x, count, factor, codes + first);
      }
    });
    std::fill(codes + n, reinterpret_cast<std::uint8_t*>(payload.data()) + bytes(n), std::uint8_t{0});
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    expect_length("fp8", payload.size(), bytes(n));
    const auto* scales = section<float>(payload);
    const auto* codes = section<std::uint8_t>(payload, 4 * blocks(n));
    parallel_for(queue, blocks(n), 1, std::max<std::size_t>(1, 16384 / block_), [&](std::size_t b, std::size_t last) {
      for (; b < last; ++b) {
        const std::size_t first = b * block_;
        add_values<Format>(codes + first, std::min(block_, n - first), weight * scales[b], out.data() + first);
      }
    });
  }

  /// Half a unit in the last place; for small values half the spacing of subnormals.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double steps = stochastic_ ? 1.0 : 0.5;
    const double relative = steps * std::ldexp(1.0, -static_cast<int>(Format.mantissa)) * (1.0 + 1e-4);
    const double quantum = steps * std::ldexp(1.0, Format.quantum_exponent()) / static_cast<double>(top());
    const auto in_block = static_cast<double>(std::min(n, block_));
    return {.nmse = relative * relative + in_block * quantum * quantum,
            .of_largest = relative,
            .absolute = static_cast<double>(kSmallest)};
  }

 private:
  static float top() { return Format.value(Format.max_code); }
  [[nodiscard]] std::size_t blocks(std::size_t n) const { return (n + block_ - 1) / block_; }
  [[nodiscard]] std::size_t bytes(std::size_t n) const { return 4 * blocks(n) + (n + 3) / 4 * 4; }

  std::size_t block_;
  bool stochastic_;
};

constexpr ParamInfo kParams[] = {{.name = "format",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "e4m3",
                                  .choices = "e4m3|e5m2",
                                  .meaning = "3 mantissa bits and values to 448, or 2 and to 57344"},
                                 {.name = "block",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "128",
                                  .min = 4,
                                  .max = 1 << 20,
                                  .meaning = "elements that share a scale, a multiple of 4"},
                                 {.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .meaning = "to nearest even, or up with the probability of what is cut off"}};

}  // namespace

extern constinit const CodecDescriptor fp8_codec{
    .name = "fp8",
    .summary = "8-bit floats with a float32 scale per block",
    .reference = "Micikevicius et al., FP8 Formats for Deep Learning, 2022, arXiv 2209.05433",
    .description =
        "Every block of 128 elements is divided so that its largest magnitude becomes the largest value of the "
        "format, then rounded to E4M3 or E5M2. Rounding is to nearest even and saturates, so NaN and infinity codes "
        "are never written; a block that holds a value that is not finite decodes to NaN. Rounding the largest "
        "magnitude to the end of the range, and the float32 scale, are our choice: training frameworks differ. It "
        "pays wherever fp16 does, at half the bytes, but sums do not stay in the format: payloads are gathered, or "
        "encoded again at every hop.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .payload = "8 n + 32 ceil(n/block) bits",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      if (p.is("format", "e5m2")) return std::make_unique<Fp8<law::kE5M2>>(p);
      return std::make_unique<Fp8<law::kE4M3>>(p);
    },
    .make_cuda = nullptr,
};

}  // namespace gradtool
