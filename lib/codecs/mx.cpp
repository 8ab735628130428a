#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/law/small_float.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::uint8_t kNanScale = 255;

/// E8M0 scale of a block: floor(log2 largest) - emax of the element format, clamped to what a byte holds.
inline std::uint8_t scale_byte(std::uint32_t largest_bits, std::int32_t largest_exponent) {
  if (largest_bits >= 0x7f800000U) return kNanScale;
  const auto exponent = static_cast<std::int32_t>(largest_bits >> 23);  // 0 for subnormals: clamped below all the same
  return static_cast<std::uint8_t>(std::clamp(exponent - largest_exponent, 0, 254));
}

/// 2^(byte - 127), also the subnormal 2^-127; NaN for 255.
inline float scale_value(std::uint32_t byte) {
  return law::float_of(byte == 0 ? 0x00400000U : byte == kNanScale ? 0x7fc00000U : byte << 23);
}
/// 2^(127 - byte); 0 for a block that is not finite.
inline float inverse_scale(std::uint32_t byte) {
  return byte == kNanScale ? 0.0F : scale_value(254 - byte);
}

/// A whole block, with every count known to the compiler.
template <auto Format>
inline std::uint8_t encode_block(const float* x, std::uint32_t* words) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffU);
  const std::uint8_t byte = scale_byte(largest, Format.largest_exponent);
  const float factor = inverse_scale(byte);
  std::array<std::uint32_t, kBlock> code;
  for (std::size_t i = 0; i < kBlock; ++i) code[i] = Format.nearest(x[i] * factor);
  if constexpr (Format.bits == 8) {
    for (std::size_t w = 0; w < 8; ++w)
      words[w] = code[4 * w] | code[4 * w + 1] << 8 | code[4 * w + 2] << 16 | code[4 * w + 3] << 24;
  } else {
    std::array<std::uint64_t, kBlock / 8> eight{};  // eight codes of 4 or 6 bits
    for (std::size_t g = 0; g < kBlock / 8; ++g) {
      for (std::size_t i = 0; i < 8; ++i) eight[g] |= std::uint64_t{code[8 * g + i]} << (i * Format.bits);
    }
    std::byte* out = reinterpret_cast<std::byte*>(words);
    for (std::size_t g = 0; g < kBlock / 8; ++g) std::memcpy(out + g * Format.bits, &eight[g], Format.bits);
  }
  return byte;
}

template <auto Format>
GT_SIMD_CLONES void encode_blocks(const float* x, std::size_t count, std::uint8_t* scales, std::uint32_t* words) {
  std::size_t at = 0;
  for (; at + kBlock <= count; at += kBlock, words += Format.bits) *scales++ = encode_block<Format>(x + at, words);
  if (at == count) return;
  std::array<float, kBlock> value{};
  std::copy_n(x + at, count - at, value.begin());
  std::array<std::uint32_t, 8> last{};  // the codes of absent elements are zeros
  *scales = encode_block<Format>(value.data(), last.data());
  std::copy_n(last.begin(), law::packed_words(count - at, Format.bits), words);
}

template <auto Format>
GT_SIMD_CLONES void encode_blocks_drawn(const float* x, std::size_t first, std::size_t count, const law::DrawKey& key,
                                        std::uint8_t* scales, std::uint32_t* words) {
  std::array<std::uint32_t, kBlock> code{};
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t here = std::min(kBlock, count - at);
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < here; ++i) largest = std::max(largest, law::bits_of(x[at + i]) & 0x7fffffffU);
    const std::uint8_t byte = scale_byte(largest, Format.largest_exponent);
    const float factor = inverse_scale(byte);
    *scales++ = byte;
    for (std::size_t i = 0; i < here; i += 4) {
      const law::Draws draws = law::draw4(key, (first + at + i) / 4);
      for (std::size_t j = i; j < std::min(here, i + 4); ++j)
        code[j] = Format.stochastic(x[at + j] * factor, draws.bits[j - i]);
    }
    const std::size_t out = law::packed_words(here, Format.bits);
    for (std::size_t w = 0; w < out; ++w) {
      *words++ =
          law::packed_word(code.data(), static_cast<std::uint32_t>(here), Format.bits, static_cast<std::uint32_t>(w));
    }
  }
}

template <auto Format>
inline void add_block(const std::uint32_t* words, float scale, float weight, float* out) {
  std::array<std::uint32_t, kBlock> code;
  const auto* in = reinterpret_cast<const std::byte*>(words);
  for (std::size_t g = 0; g < kBlock / 8; ++g) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, in + g * Format.bits, Format.bits);
    for (std::size_t i = 0; i < 8; ++i)
      code[8 * g + i] = static_cast<std::uint32_t>(eight >> (i * Format.bits)) & ((1U << Format.bits) - 1U);
  }
  for (std::size_t i = 0; i < kBlock; ++i) out[i] += weight * (scale * Format.value(code[i]));
}

template <auto Format>
GT_SIMD_CLONES void add_blocks(const std::uint8_t* scales, const std::uint32_t* words, std::size_t count, float weight,
                               float* out) {
  std::size_t at = 0;
  for (; at + kBlock <= count; at += kBlock, words += Format.bits)
    add_block<Format>(words, scale_value(*scales++), weight, out + at);
  if (at == count) return;
  std::array<std::uint32_t, 8> last{};
  std::copy_n(words, law::packed_words(count - at, Format.bits), last.begin());
  std::array<float, kBlock> sum{};
  std::copy_n(out + at, count - at, sum.begin());
  add_block<Format>(last.data(), scale_value(*scales), weight, sum.data());
  std::copy_n(sum.begin(), count - at, out + at);
}

/// Largest value of a format, and the error of its last place and of its smallest spacing, in the same unit.
struct Resolution {
  double largest, relative, quantum;
};
constexpr Resolution resolution(const law::SmallFloat& f) {
  double quantum = 1.0;
  for (int i = 0; i < -f.quantum_exponent(); ++i) quantum /= 2.0;
  const double significand = static_cast<double>((1U << f.mantissa) + (f.max_code & ((1U << f.mantissa) - 1U)));
  double largest = significand;
  for (std::uint32_t i = 0; i < f.mantissa; ++i) largest /= 2.0;
  for (int i = 0; i < f.largest_exponent; ++i) largest *= 2.0;
  return {largest, 1.0 / static_cast<double>(1U << f.mantissa), quantum};
}
constexpr Resolution resolution(const law::SmallFixed&) {
  return {127.0 / 64.0, 0.0, 1.0 / 64.0};
}

template <auto Format>
class Mx final : public Codec<Space::host> {
 public:
  explicit Mx(const Params& params) : stochastic_{params.is("rounding", "stochastic")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = bytes(n)}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = gradient.size();
    auto* scales = section<std::uint8_t>(payload);
    auto* words = section<std::uint32_t>(payload, codes_offset(n));
    std::fill(scales + blocks(n), scales + codes_offset(n), std::uint8_t{0});
    parallel_for(queue, n, kBlock, 1 << 14, [&](std::size_t first, std::size_t last) {
      const std::size_t block = first / kBlock;
      if (stochastic_)
        encode_blocks_drawn<Format>(gradient.data() + first, first, last - first, context.key, scales + block,
                                    words + block * Format.bits);
      else
        encode_blocks<Format>(gradient.data() + first, last - first, scales + block, words + block * Format.bits);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    expect_length("mx", payload.size(), bytes(n));
    const auto* scales = section<std::uint8_t>(payload);
    const auto* words = section<std::uint32_t>(payload, codes_offset(n));
    parallel_for(queue, n, kBlock, 1 << 14, [&](std::size_t first, std::size_t last) {
      const std::size_t block = first / kBlock;
      add_blocks<Format>(scales + block, words + block * Format.bits, last - first, weight, out.data() + first);
    });
  }

  /// Rounding of one element, or saturation of the block's largest, which is below 2^(emax+1) in units of the scale.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    constexpr Resolution r = resolution(Format);
    const double steps = stochastic_ ? 1.0 : 0.5;
    const double power = std::ldexp(1.0, Format.largest_exponent);  // at least this is the block's largest
    const double relative = std::max(steps * r.relative, 1.0 - r.largest / (2.0 * power));
    const double quantum = steps * r.quantum / power;
    const auto in_block = static_cast<double>(std::min(n, kBlock));
    return {.nmse = relative * relative + in_block * quantum * quantum,
            .of_largest = std::max(relative, quantum),
            .absolute = std::ldexp(1.0, -126)};
  }

 private:
  [[nodiscard]] static std::size_t blocks(std::size_t n) { return (n + kBlock - 1) / kBlock; }
  [[nodiscard]] static std::size_t codes_offset(std::size_t n) { return (blocks(n) + 3) / 4 * 4; }
  [[nodiscard]] static std::size_t bytes(std::size_t n) {
    return codes_offset(n) + 4 * law::packed_words(n, Format.bits);
  }

  bool stochastic_;
};

constexpr ParamInfo kParams[] = {{.name = "format",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "e4m3",
                                  .choices = "e4m3|e5m2|e3m2|e2m3|e2m1|int8",
                                  .meaning = "element format: MXFP8, MXFP6, MXFP4 or MXINT8"},
                                 {.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .meaning = "to nearest even, or up with the probability of what is cut off"}};

std::unique_ptr<Codec<Space::host>> make(const Params& p) {
  if (p.is("format", "e5m2")) return std::make_unique<Mx<law::kE5M2>>(p);
  if (p.is("format", "e3m2")) return std::make_unique<Mx<law::kE3M2>>(p);
  if (p.is("format", "e2m3")) return std::make_unique<Mx<law::kE2M3>>(p);
  if (p.is("format", "e2m1")) return std::make_unique<Mx<law::kE2M1>>(p);
  if (p.is("format", "int8")) return std::make_unique<Mx<law::SmallFixed{}>>(p);
  return std::make_unique<Mx<law::kE4M3>>(p);
}

}  // namespace

extern constinit const CodecDescriptor mx_codec{
    .name = "mx",
    .summary = "OCP microscaling formats: 4 to 8 bits with a power-of-two scale per 32 elements",
    .reference = "OCP Microscaling Formats (MX) v1.0, 2023; Rouhani et al., arXiv 2310.10537",
    .description =
        "Blocks of 32 elements share a power of two, one byte: floor(log2 of the largest magnitude) minus the "
        "largest exponent of the element format. Elements are rounded to nearest even in that unit and saturate, so "
        "a block's largest element may lose up to a quarter (E2M1) of itself; that is the standard's rule. A block "
        "that holds a value that is not finite gets scale 255 and decodes to NaN. Four bits (e2m1) need ef=on or "
        "rounding=stochastic to be usable for gradients. The formats pay where hardware has them; sums do not stay "
        "in the format, so payloads are gathered or encoded again at every hop.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .payload = "bits n + 8 ceil(n/32) bits; bits = 8, 6 or 4",
    .make_host = [](const Params& p, const Layout&) { return make(p); },
    .make_cuda = nullptr,
};

}  // namespace gradtool
