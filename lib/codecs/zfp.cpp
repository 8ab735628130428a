#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/zfp_chunks.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kChunk = ZfpChunks::kChunk;

struct Header {
  std::uint64_t bytes = 0;   ///< of the payload
  float tolerance = 0.0F;    ///< absolute; 0 with a fixed rate; NaN: the input was not finite, and nothing follows
  std::uint32_t chunks = 0;  ///< sizes that follow; none with a fixed rate
};
static_assert(sizeof(Header) == 16);

GT_SIMD_CLONES std::uint32_t largest_pattern(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffU);
  return largest;
}

/// Chunks of one-dimensional zfp (Lindstrom 2014), by rate or by accuracy.
class Zfp final : public Codec<Space::host> {
 public:
  explicit Zfp(const Params& params)
      : fixed_rate_{params.is("mode", "rate")},
        tolerance_{params.real("tolerance")},
        chunks_{fixed_rate_ ? params.real("rate") : 0.0} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    std::size_t bytes = sections(n);
    for (std::size_t c = 0; c < count_chunks(n); ++c)
      bytes += fixed_rate_ ? chunks_.rate_bytes(count_of(c, n)) : ZfpChunks::most_bytes();
    return {.payload_bytes = bytes,
            .scratch_bytes = fixed_rate_ ? 0 : count_chunks(n) * ZfpChunks::most_bytes(),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    std::atomic<std::uint32_t> largest{0};
    parallel_for(queue, n, 1, 1 << 15, [&](std::size_t first, std::size_t last) {
      const std::uint32_t here = largest_pattern(gradient.data() + first, last - first);
      for (std::uint32_t seen = largest.load(); seen < here && !largest.compare_exchange_weak(seen, here);) {
      }
    });
    const bool finite = largest.load() < 0x7f800000U;
    Header header;
    header.chunks = fixed_rate_ ? 0 : static_cast<std::uint32_t>(count_chunks(n));
    header.tolerance = !finite       ? std::numeric_limits<float>::quiet_NaN()
                       : fixed_rate_ ? 0.0F
                                     : tolerance_for(law::float_of(largest.load()));
    auto* sizes = section<std::uint32_t>(payload, sizeof header);
    std::size_t at = sections(n);
    if (!finite) {
      std::fill_n(sizes, header.chunks, 0U);
    } else if (fixed_rate_) {
      for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
        chunks_.write(gradient.data() + first, count, 0.0F, payload.data() + at + chunk * chunks_.rate_bytes(kChunk));
      });
      for (std::size_t c = 0; c < count_chunks(n); ++c) at += chunks_.rate_bytes(count_of(c, n));
    } else {
      for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
        sizes[chunk] = static_cast<std::uint32_t>(chunks_.write(gradient.data() + first, count, header.tolerance,
                                                                scratch.data() + chunk * ZfpChunks::most_bytes()));
      });
      for (std::size_t c = 0; c < count_chunks(n); at += sizes[c++])
        std::memcpy(payload.data() + at, scratch.data() + c * ZfpChunks::most_bytes(), sizes[c]);
    }
    header.bytes = at;
    std::memcpy(payload.data(), &header, sizeof header);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    Header header;
    if (payload.size() < sections(n)) fail("it is shorter than its header");
    std::memcpy(&header, payload.data(), sizeof header);
    const auto* sizes = section<std::uint32_t>(payload, sizeof header);
    if (header.bytes != payload.size()) fail("its length is not the one it states");
    if (header.chunks != (fixed_rate_ ? 0 : count_chunks(n))) fail("it does not have the chunks of its elements");
    const bool finite = !std::isnan(header.tolerance);
    if (finite &&
        !(fixed_rate_ ? header.tolerance == 0.0F : header.tolerance > 0.0F && std::isfinite(header.tolerance)))
      fail("its tolerance is none");
    std::size_t total = sections(n);
    for (std::size_t c = 0; c < count_chunks(n); ++c) total += chunk_bytes(sizes, c, n, finite);
    if (total != payload.size()) fail("its chunks do not add up to its length");
    if (!finite) {
      for (float& value : out.span()) value += weight * header.tolerance;
      return;
    }
    for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
      const std::size_t at = sections(n) + (fixed_rate_ ? chunk * chunks_.rate_bytes(kChunk)
                                                        : std::accumulate(sizes, sizes + chunk, std::size_t{0}));
      chunks_.read_add(payload.part(at, chunk_bytes(sizes, chunk, n, true)), header.tolerance, weight,
                       out.part(first, count));
    });
  }

  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (fixed_rate_) return {};  // relative to each block's largest value, and for rates of a few bits not even that
    // The library's scale for a block overflows where its largest value is below 2^-97; what comes out is that small
    // too.
    return {.of_largest = tolerance_ * (1.0 + 1e-6) + 0x1p-22, .absolute = 0x1p-96};
  }

 private:
  [[noreturn]] static void fail(std::string_view what) {
    throw Error{Fault::data, fmt::format("zfp payload: {}", what)};
  }

  static std::size_t count_chunks(std::size_t n) { return (n + kChunk - 1) / kChunk; }
  static std::size_t count_of(std::size_t chunk, std::size_t n) { return std::min(kChunk, n - chunk * kChunk); }
  /// Header and sizes.
  [[nodiscard]] std::size_t sections(std::size_t n) const {
    return sizeof(Header) + (fixed_rate_ ? 0 : 4 * count_chunks(n));
  }
  [[nodiscard]] std::size_t chunk_bytes(const std::uint32_t* sizes, std::size_t chunk, std::size_t n,
                                        bool finite) const {
    if (!fixed_rate_) return sizes[chunk];
    return finite ? chunks_.rate_bytes(count_of(chunk, n)) : 0;
  }
  /// The absolute tolerance of values up to `largest`: a normal number.
  [[nodiscard]] float tolerance_for(float largest) const {
    return std::max(static_cast<float>(tolerance_ * static_cast<double>(largest)), std::numeric_limits<float>::min());
  }

  /// body(chunk, first element, elements).
  template <class Body>
  static void for_chunks(Queue<Space::host> queue, std::size_t n, const Body& body) {
    parallel_for(queue, count_chunks(n), 1, 2, [&](std::size_t chunk, std::size_t last) {
      for (; chunk < last; ++chunk) body(chunk, chunk * kChunk, count_of(chunk, n));
    });
  }

  bool fixed_rate_;
  double tolerance_;
  ZfpChunks chunks_;
};

constexpr ParamInfo kParams[] = {{.name = "mode",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "rate",
                                  .choices = "rate|accuracy",
                                  .meaning = "fixed bits for each value, or a fixed largest error"},
                                 {.name = "rate",
                                  .kind = ParamInfo::Kind::real,
                                  .default_value = "8",
                                  .min = 2.25,
                                  .max = 32.0,
                                  .meaning = "bits per value with mode=rate; four values have a whole number of bits"},
                                 {.name = "tolerance",
                                  .kind = ParamInfo::Kind::real,
                                  .default_value = "0.001",
                                  .min = 1e-7,
                                  .max = 1.0,
                                  .meaning = "largest error over the largest magnitude, with mode=accuracy"}};

}  // namespace

extern constinit const CodecDescriptor zfp_codec{
    .name = "zfp",
    .summary = "zfp of the gradient as a one-dimensional field, by rate or by accuracy",
    .reference = "Lindstrom, Fixed-Rate Compressed Floating-Point Arrays, TVCG 2014",
    .description =
        "Cuts the gradient into blocks of four neighbours, brings each to a common exponent, applies zfp's lifted "
        "transform and writes bit planes from the top, as the zfp library does it: a fixed number of bits for each "
        "block, or as many planes as an absolute error asks for. With mode=accuracy the tolerance is ours to relate: "
        "it is a share of the largest magnitude of the gradient, so that it means the same for every tensor. Tensors "
        "are taken as one dimension, chunks of 8192 values have bit streams of their own, and a gradient that is not "
        "finite decodes to NaN; the library garbles values below 2^-97. It pays where neighbours are alike, as in "
        "simulation data; the values of gradients hardly are, and it is here as a point of reference.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .determinism = Determinism::run_to_run,
    .payload = "128 + rate n bits; mode=accuracy: 128 + 32 ceil(n/8192) bits and the chunks",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Zfp>(p);
    },
    .make_cuda = nullptr,
};

}  // namespace gradtool
