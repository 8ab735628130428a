#include <array>
#include <cmath>
#include <cstring>

#include "kernels/float_bits.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBuckets = 256;
constexpr float kRange = 6.0F;  ///< width of all value buckets together, in standard deviations
/// Elements whose sums by value bucket are taken by one thread. The sums of chunks are added in order, so the codebook
/// does not depend on the number of threads.
constexpr std::size_t kChunk = 65536;
/// A value bucket narrower than this is as good as none: its inverse might overflow.
constexpr float kNarrowest = 0x1p-100F;

/// Which bucket of values an element falls into: y = (x - mean) / width, rounded to nearest even, plus 128, within a
/// byte.
struct ValueBuckets {
  float mean = 0.0F;
  float per_width = 0.0F;  ///< 1 / width; 0 where all elements are as good as equal, so that all get code 128

  [[nodiscard]] std::uint8_t code(float x) const {
    const float y = (x - mean) * per_width;
    const float above = y < 127.0F ? y : 127.0F;
    const float inside = above > -128.0F ? above : -128.0F;
    // Adding 1.5 2^23 leaves the rounded integer in the low bits of the significand.
    return static_cast<std::uint8_t>(format::bits_of(inside + 0x1.8p23F) + 128U);
  }
};

GT_SIMD_CLONES void write_codes(const ValueBuckets& buckets, const float* x, std::size_t count, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) codes[i] = buckets.code(x[i]);
}

/// Sums and counts of the elements of each value bucket, within one chunk.
struct ChunkSums {
  std::array<double, kBuckets> sum;
  std::array<std::uint32_t, kBuckets> count;
};

/// A byte an element, which names one of 256 equal buckets of values around the mean, and a codebook with the mean of
/// what fell into each bucket.
class Sigma8 final : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = bytes(n), .scratch_bytes = Workspace{n, {}}.bytes};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    auto* codebook = section<float>(payload);
    auto* codes = section<std::uint8_t>(payload, kCodesOffset);
    std::memset(codes + n, 0, bytes(n) - kCodesOffset - n);

    const Moments sums = moments(queue, gradient);
    const auto count = static_cast<double>(n);
    const double mean = sums.sum / count;
    const double variance = n > 1 ? std::max(sums.squares - count * mean * mean, 0.0) / (count - 1.0) : 0.0;
    if (!std::isfinite(variance)) {  // an element is not finite, or the squares overflow: everything decodes to NaN
      std::fill(codebook, codebook + kBuckets, format::float_of(0x7fc00000U));
      std::memset(codes, 0, n);
      return;
    }
    const float width = kRange * static_cast<float>(std::sqrt(variance)) / static_cast<float>(kBuckets);
    const ValueBuckets buckets{static_cast<float>(mean), width < kNarrowest ? 0.0F : 1.0F / width};

    const Workspace work{n, Scratch<Space::host>{scratch}};
    parallel_for(queue, work.chunks.size(), 1, 1, [&](std::size_t first, std::size_t last) {
      for (std::size_t chunk = first; chunk < last; ++chunk) {
        const std::size_t begin = chunk * kChunk;
        const std::size_t size = std::min(kChunk, n - begin);
        write_codes(buckets, gradient.data() + begin, size, codes + begin);
        ChunkSums& here = work.chunks[chunk];
        here = {};
        for (std::size_t i = begin; i < begin + size; ++i) {
          here.sum[codes[i]] += static_cast<double>(gradient[i]);
          ++here.count[codes[i]];
        }
      }
    });
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
      double sum = 0.0;
      std::uint64_t members = 0;
      for (const auto& chunk : work.chunks.span()) {
        sum += chunk.sum[bucket];
        members += chunk.count[bucket];
      }
      codebook[bucket] = members == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(members));
    }
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("sigma8", payload.size(), bytes(out.size()));
    if (out.empty()) return;
    const auto* codebook = section<float>(payload);
    const auto* codes = section<std::uint8_t>(payload, kCodesOffset);
    parallel_for(queue, out.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) out[i] += weight * codebook[codes[i]];
    });
  }

  /// An element decodes to the mean of its bucket of values, so what is lost is the variance within the buckets, which
  /// is no more than the gradient's energy; and a mean is never larger than the largest element.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 2.0}; }

 private:
  static constexpr std::size_t kCodesOffset = sizeof(float) * kBuckets;
  static std::size_t bytes(std::size_t n) { return n == 0 ? 0 : kCodesOffset + (n + 3) / 4 * 4; }

  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::host> pieces)
        : chunks{pieces.take<ChunkSums>((n + kChunk - 1) / kChunk)}, bytes{pieces.bytes()} {}
    HostView<ChunkSums> chunks;
    std::size_t bytes;
  };
};

}  // namespace

extern constinit const CodecDescriptor sigma8_codec{
    .name = "sigma8",
    .summary = "a byte an element: 256 equal buckets of values over six standard deviations, each sent as its mean",
    .reference =
        "Jaghouar et al., INTELLECT-1, 2024, arXiv 2412.01152; uniform 8-bit quantisation of the hivemind library",
    .description =
        "The range of six standard deviations around the mean is cut into 256 equal buckets of values; what lies "
        "outside "
        "falls into the first or the last. An element is sent as the number of its bucket, and a codebook of 256 "
        "float32 says "
        "the mean of what fell into each, so that a bucket's elements are right on average whatever their "
        "distribution; "
        "a single outlier far outside is a bucket's only element and arrives exactly. Mean and variance are those of "
        "the "
        "whole unit, summed in float64 in a fixed order. INTELLECT-1 sent pseudo-gradients between continents in this "
        "form, encoding "
        "again at every hop of a ring (--reduce hop); here payloads are gathered unless that is asked for. It pays on "
        "slow "
        "networks for models of any kind, since it has nothing to tune; on units of less than a few thousand elements "
        "the "
        "codebook of 1024 bytes outweighs the codes. It has no GPU version.",
    .params = {},
    .aggregation = Aggregation::gather,
    .payload = "8192 + 8 n bits, padded to 32",
    .make_host = [](const Params&, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Sigma8>();
    },
};

}  // namespace gradtool
