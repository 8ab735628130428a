#include "lib/methods/natural/format.hpp"

#include <array>
#include <cstring>

#include "kernels/draws.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

using format::Natural;

/// Elements whose draws are held on the stack at a time.
constexpr std::size_t kTile = 2048;

GT_SIMD_CLONES void to_exponents(const float* x, const std::uint32_t* draws, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>(Natural::exponent(x[i], draws[i]));
}

GT_SIMD_CLONES void add_powers(const std::uint8_t* exponents, const std::uint32_t* signs, std::size_t count,
                               float weight, float* out) {
  for (; count >= 32; count -= 32, exponents += 32, out += 32) {
    const std::uint32_t word = *signs++;
    for (std::uint32_t j = 0; j < 32; ++j) out[j] += weight * Natural::value(exponents[j], word >> j & 1u);
  }
  for (std::uint32_t j = 0; j < count; ++j) out[j] += weight * Natural::value(exponents[j], *signs >> j & 1u);
}

/// Exponents and signs are sent apart, so that neither needs shifting across bytes.
class NaturalCodec final : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = Natural::bytes(n)}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    auto* exponents = section<std::uint8_t>(payload);
    auto* signs = section<std::uint32_t>(payload, Natural::signs_offset(n));
    std::memset(exponents + n, 0, Natural::signs_offset(n) - n);
    parallel_for(queue, n, kTile, 1 << 14, [&](std::size_t begin, std::size_t end) {
      alignas(64) std::array<std::uint32_t, kTile> draws;
      for (std::size_t first = begin; first < end; first += kTile) {
        const std::size_t count = std::min(kTile, end - first);
        host::draw_tile(context.key, first, count, draws.data());
        to_exponents(gradient.data() + first, draws.data(), count, exponents + first);
        host::write_signs(gradient.data() + first, count, signs + first / 32);
      }
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    expect_length("natural", payload.size(), Natural::bytes(n));
    const auto* exponents = section<std::uint8_t>(payload);
    const auto* signs = section<std::uint32_t>(payload, Natural::signs_offset(n));
    parallel_for(queue, n, kTile, 1 << 14, [&](std::size_t first, std::size_t last) {
      add_powers(exponents + first, signs + first / 32, last - first, weight, out.data() + first);
    });
  }

  /// At worst an element becomes twice as large: the float above a power of two, 1 + 2^-23, goes to 2, which errs by a
  /// share of (1 - 2^-23) / (1 + 2^-23) < 1 - 2^-23. On average an eighth of the energy is lost, so that ef21 converges
  /// fast.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 1.0 - 0x1p-23, .of_largest = 1.0, .absolute = 0x1p-126};
  }
};

}  // namespace

extern constinit const CodecDescriptor natural_codec{
    .name = "natural",
    .summary = "sends signs and exponents alone: every element is drawn to a power of two beside it, without bias",
    .reference = "Horvath et al., Natural Compression for Distributed Deep Learning, 2019, arXiv 1905.10988",
    .params = {},
    .unbiased = true,
    .payload = "9 n bits",
    .make_host = make_method_codec<Space::host, NaturalCodec>,
};

}  // namespace gradtool
