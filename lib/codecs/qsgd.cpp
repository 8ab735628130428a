#include "kernels/law/qsgd.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/law/qsgd_layout.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGroup = law::kPackGroup;

GT_SIMD_CLONES float max_norm(const float* x, std::size_t count) {
  std::uint32_t largest = 0;  // patterns without sign order like the values, NaN above all
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffu);
  return law::float_of(largest);
}

GT_SIMD_CLONES float l2_norm(const float* x, std::size_t count) {
  std::array<float, law::kNormLanes> lane{};
  std::size_t i = 0;
  for (; i + law::kNormLanes <= count; i += law::kNormLanes) {
    for (std::size_t j = 0; j < law::kNormLanes; ++j) lane[j] += x[i + j] * x[i + j];
  }
  for (std::size_t j = 0; i + j < count; ++j) lane[j] += x[i + j] * x[i + j];
  for (std::size_t half = law::kNormLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  return std::sqrt(lane[0]);
}

/// The draws of 32 elements: eight Philox counters side by side, so that the compiler fills a vector with them.
inline void draw_group(const law::DrawKey& key, std::size_t first, std::uint32_t* bits) {
  constexpr std::size_t kCounters = kGroup / 4;
  std::array<std::array<std::uint32_t, kCounters>, 4> lanes;
  for (std::size_t c = 0; c < kCounters; ++c) {
    const law::Draws draws = law::draw4(key, first / 4 + c);
    for (std::size_t l = 0; l < 4; ++l) lanes[l][c] = draws.bits[l];
  }
  for (std::size_t c = 0; c < kCounters; ++c) {
    for (std::size_t l = 0; l < 4; ++l) bits[4 * c + l] = lanes[l][c];
  }
}

template <std::uint32_t Bits>
GT_SIMD_CLONES void encode_groups(const float* x, std::size_t first, std::size_t count, float factor,
                                  const law::DrawKey& key, std::uint32_t* words) {
  const auto qsgd = law::Qsgd::with_bits(Bits);
  std::array<std::uint32_t, kGroup> draw;
  std::array<std::uint32_t, kGroup> code{};
  for (std::size_t at = 0; at < count; at += kGroup) {
    draw_group(key, first + at, draw.data());
    const std::size_t here = std::min(kGroup, count - at);
    if (here == kGroup) {
      for (std::size_t i = 0; i < kGroup; ++i) code[i] = qsgd.encode(factor, x[at + i], law::uniform(draw[i]));
    } else {
      for (std::size_t i = 0; i < here; ++i) code[i] = qsgd.encode(factor, x[at + i], law::uniform(draw[i]));
    }
    const std::size_t out = law::packed_words(here, Bits);
    for (std::size_t w = 0; w < out; ++w) {
      *words++ = law::packed_word(code.data(), static_cast<std::uint32_t>(here), Bits, static_cast<std::uint32_t>(w));
    }
  }
}

template <std::uint32_t Bits>
GT_SIMD_CLONES void decode_groups(const std::uint32_t* words, std::size_t count, float factor, float weight,
                                  float* out) {
  const auto qsgd = law::Qsgd::with_bits(Bits);
  std::size_t at = 0;
  for (; at + kGroup <= count; at += kGroup, words += Bits) {
    std::array<std::uint32_t, kGroup> code;
    for (std::size_t i = 0; i < kGroup; ++i) code[i] = law::unpacked(words, Bits, Bits, i);
    for (std::size_t i = 0; i < kGroup; ++i) out[at + i] += weight * qsgd.decode(factor, code[i]);
  }
  const std::size_t available = law::packed_words(count - at, Bits);
  for (std::size_t i = 0; at + i < count; ++i) {
    out[at + i] += weight * qsgd.decode(factor, law::unpacked(words, available, Bits, i));
  }
}

/// Bits is a template argument so that packing unrolls into shifts by constants.
template <std::uint32_t Bits>
class QsgdCodec final : public Codec<Space::host> {
 public:
  explicit QsgdCodec(const Params& params)
      : bucket_{static_cast<std::size_t>(params.integer("bucket"))}, l2_{params.is("norm", "l2")} {
    expects(bucket_ % kGroup == 0, "codec qsgd: bucket must be a multiple of 32");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    const law::QsgdLayout at = layout(gradient.size());
    auto* norms = section<float>(payload);
    auto* words = section<std::uint32_t>(payload, at.codes_offset());
    constexpr auto kLaw = law::Qsgd{Bits, (1u << (Bits - 1)) - 1u};
    parallel_for(
        queue, at.buckets(), 1, std::max<std::size_t>(1, 16384 / bucket_), [&](std::size_t b, std::size_t last) {
          for (; b < last; ++b) {
            const std::size_t first = b * bucket_;
            const std::size_t count = std::min(bucket_, gradient.size() - first);
            const float* x = gradient.data() + first;
            norms[b] = law::Qsgd::stored_norm(l2_ ? l2_norm(x, count) : max_norm(x, count));
            encode_groups<Bits>(x, first, count, kLaw.encode_factor(norms[b]), context.key, words + at.first_word(b));
          }
        });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const law::QsgdLayout at = layout(out.size());
    expect_length("qsgd", payload.size(), at.bytes());
    const auto* norms = section<float>(payload);
    const auto* words = section<std::uint32_t>(payload, at.codes_offset());
    constexpr auto kLaw = law::Qsgd{Bits, (1u << (Bits - 1)) - 1u};
    parallel_for(queue, at.buckets(), 1, std::max<std::size_t>(1, 16384 / bucket_),
                 [&](std::size_t b, std::size_t last) {
                   for (; b < last; ++b) {
                     const std::size_t first = b * bucket_;
                     decode_groups<Bits>(words + at.first_word(b), std::min(bucket_, out.size() - first),
                                         kLaw.decode_factor(norms[b]), weight, out.data() + first);
                   }
                 });
  }

  /// An element moves by less than one level. With the max norm a level is max|x|/s of its bucket.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double level = 1.0 / static_cast<double>((1u << (Bits - 1)) - 1u);
    const double in_bucket = static_cast<double>(std::min(n, bucket_));
    const double largest = level * (l2_ ? std::sqrt(in_bucket) : 1.0) * (1.0 + 1e-6);
    return {.nmse = in_bucket * level * level * (1.0 + 1e-5), .of_largest = largest, .absolute = 0x1p-100};
  }

 private:
  [[nodiscard]] law::QsgdLayout layout(std::size_t n) const { return {n, bucket_, Bits}; }

  std::size_t bucket_;
  bool l2_;
};

template <std::uint32_t... Bits>
std::unique_ptr<Codec<Space::host>> make_for_bits(const Params& params, std::integer_sequence<std::uint32_t, Bits...>) {
  std::unique_ptr<Codec<Space::host>> codec;
  const auto wanted = static_cast<std::uint32_t>(params.integer("bits"));
  const auto make = [&]<std::uint32_t B>() {
    if (B == wanted) codec = std::make_unique<QsgdCodec<B>>(params);
  };
  (make.template operator()<Bits + 2>(), ...);
  return codec;
}

constexpr ParamInfo kParams[] = {{.name = "bits",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "4",
                                  .min = 2,
                                  .max = 8,
                                  .meaning = "bits per element with its sign; 2^(bits-1)-1 levels"},
                                 {.name = "bucket",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "512",
                                  .min = 32,
                                  .max = 1 << 20,
                                  .meaning = "elements that share a norm, a multiple of 32"},
                                 {.name = "norm",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "max",
                                  .choices = "max|l2",
                                  .meaning = "what a bucket is divided by; l2 is the paper's, max loses less"}};

}  // namespace

extern constinit const CodecDescriptor qsgd_codec{
    .name = "qsgd",
    .summary = "stochastic quantisation to a few levels per bucket, bit-packed",
    .reference = "Alistarh et al., QSGD, NeurIPS 2017, arXiv 1610.02132",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .unbiased = true,
    .payload = "bits n + 32 ceil(n/bucket) bits",
    .make_host = [](const Params& p,
                    const Layout&) { return make_for_bits(p, std::make_integer_sequence<std::uint32_t, 7>{}); },
    .make_cuda = GT_MAKE_CUDA(make_cuda_qsgd),
};

}  // namespace gradtool
