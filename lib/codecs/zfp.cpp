#include <fmt/format.h>
#include <zfp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = 4;     // values of a block of one-dimensional zfp
constexpr std::size_t kChunk = 8192;  // values of a bit stream: threads share the work whatever their number
constexpr std::size_t kWord = 4;  // bytes that a bit stream is padded to; the library's own words may be of any size
// A block has an exponent (9 bits), up to 32 planes of 4 bits and, to say where values begin to matter, at most a bit
// for each plane and each value.
constexpr std::size_t kMostBits = 9 + 32 * 4 + 32 + 4;
constexpr std::size_t words_for(std::size_t bits) {
  return (bits + 31) / 32 * kWord;
}
constexpr std::size_t kMostBytes = words_for(kChunk / kBlock * kMostBits);

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

/// zfp's bit streams allocate when they are opened, so some are open from the start. Who needs one takes any that is
/// free; there are more than threads of any sensible machine, and the last waits.
class Streams {
 public:
  struct Stream {
    alignas(64) std::array<std::byte, kMostBytes + 8> buffer{};  // the library reads and writes whole words
    bitstream* bits = stream_open(buffer.data(), buffer.size());
    std::atomic_flag taken{};
    Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() { stream_close(bits); }
  };
  class Lease {
   public:
    explicit Lease(Stream& stream) : stream_{stream} {}
    ~Lease() { stream_.taken.clear(std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Stream* operator->() const { return &stream_; }

   private:
    Stream& stream_;
  };

  [[nodiscard]] Lease take() {
    for (;;) {
      for (auto& stream : streams_) {
        if (!stream.taken.test_and_set(std::memory_order_acquire)) return Lease{stream};
      }
      std::this_thread::yield();
    }
  }

 private:
  std::array<Stream, 64> streams_;
};

/// Chunks of one-dimensional zfp (Lindstrom 2014), by rate or by accuracy.
class Zfp final : public Codec<Space::host> {
 public:
  explicit Zfp(const Params& params)
      : fixed_rate_{params.is("mode", "rate")}, rate_{params.real("rate")}, tolerance_{params.real("tolerance")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    std::size_t bytes = sections(n);
    for (std::size_t c = 0; c < chunks(n); ++c) bytes += fixed_rate_ ? rate_bytes(count_of(c, n)) : kMostBytes;
    return {.payload_bytes = bytes, .scratch_bytes = fixed_rate_ ? 0 : chunks(n) * kMostBytes, .exact = false};
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
    header.chunks = fixed_rate_ ? 0 : static_cast<std::uint32_t>(chunks(n));
    header.tolerance = !finite       ? std::numeric_limits<float>::quiet_NaN()
                       : fixed_rate_ ? 0.0F
                                     : tolerance_for(law::float_of(largest.load()));
    auto* sizes = section<std::uint32_t>(payload, sizeof header);
    std::size_t at = sections(n);
    if (!finite) {
      std::fill_n(sizes, header.chunks, 0U);
    } else if (fixed_rate_) {
      for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
        write_chunk(gradient.data() + first, count, 0.0F, payload.data() + at + chunk * rate_bytes(kChunk));
      });
      for (std::size_t c = 0; c < chunks(n); ++c) at += rate_bytes(count_of(c, n));
    } else {
      for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
        sizes[chunk] = static_cast<std::uint32_t>(
            write_chunk(gradient.data() + first, count, header.tolerance, scratch.data() + chunk * kMostBytes));
      });
      for (std::size_t c = 0; c < chunks(n); at += sizes[c++])
        std::memcpy(payload.data() + at, scratch.data() + c * kMostBytes, sizes[c]);
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
    if (header.chunks != (fixed_rate_ ? 0 : chunks(n))) fail("it does not have the chunks of its elements");
    const bool finite = !std::isnan(header.tolerance);
    if (finite &&
        !(fixed_rate_ ? header.tolerance == 0.0F : header.tolerance > 0.0F && std::isfinite(header.tolerance)))
      fail("its tolerance is none");
    std::size_t total = sections(n);
    for (std::size_t c = 0; c < chunks(n); ++c) total += chunk_bytes(sizes, c, n, finite);
    if (total != payload.size()) fail("its chunks do not add up to its length");
    if (!finite) {
      for (float& value : out.span()) value += weight * header.tolerance;
      return;
    }
    for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
      const std::size_t at = sections(n) + (fixed_rate_ ? chunk * rate_bytes(kChunk)
                                                        : std::accumulate(sizes, sizes + chunk, std::size_t{0}));
      read_chunk(payload.part(at, chunk_bytes(sizes, chunk, n, true)), header.tolerance, weight,
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

  static std::size_t chunks(std::size_t n) { return (n + kChunk - 1) / kChunk; }
  static std::size_t count_of(std::size_t chunk, std::size_t n) { return std::min(kChunk, n - chunk * kChunk); }
  /// Header and sizes.
  [[nodiscard]] std::size_t sections(std::size_t n) const { return sizeof(Header) + (fixed_rate_ ? 0 : 4 * chunks(n)); }
  [[nodiscard]] std::size_t rate_bytes(std::size_t count) const {
    zfp_stream settings{};
    zfp_stream_set_rate(&settings, rate_, zfp_type_float, 1, zfp_false);
    return words_for((count + kBlock - 1) / kBlock * settings.maxbits);
  }
  [[nodiscard]] std::size_t chunk_bytes(const std::uint32_t* sizes, std::size_t chunk, std::size_t n,
                                        bool finite) const {
    if (!fixed_rate_) return sizes[chunk];
    return finite ? rate_bytes(count_of(chunk, n)) : 0;
  }
  /// The absolute tolerance of values up to `largest`: a normal number.
  [[nodiscard]] float tolerance_for(float largest) const {
    return std::max(static_cast<float>(tolerance_ * static_cast<double>(largest)), std::numeric_limits<float>::min());
  }

  [[nodiscard]] zfp_stream settings(bitstream* bits, float tolerance) const {
    zfp_stream zfp{};
    zfp.maxprec = ZFP_MAX_PREC;
    if (fixed_rate_)
      zfp_stream_set_rate(&zfp, rate_, zfp_type_float, 1, zfp_false);
    else
      zfp_stream_set_accuracy(&zfp, static_cast<double>(tolerance));
    zfp_stream_set_bit_stream(&zfp, bits);
    return zfp;
  }

  /// Returns the bytes written to `to`, a multiple of 4.
  std::size_t write_chunk(const float* x, std::size_t count, float tolerance, std::byte* to) const {
    const auto stream = streams_->take();
    zfp_stream zfp = settings(stream->bits, tolerance);
    stream_rewind(stream->bits);
    std::size_t i = 0;
    for (; i + kBlock <= count; i += kBlock) zfp_encode_block_float_1(&zfp, x + i);
    if (i < count) zfp_encode_partial_block_strided_float_1(&zfp, x + i, count - i, 1);
    const auto bits = static_cast<std::size_t>(stream_wtell(stream->bits));
    stream_flush(stream->bits);
    const std::size_t bytes = (bits + 7) / 8;
    std::memcpy(to, stream->buffer.data(), bytes);
    std::memset(to + bytes, 0, words_for(bits) - bytes);
    return words_for(bits);
  }

  /// Reads from a copy with zeros behind it: the library looks at no end, but no block reads more than kMostBits.
  void read_chunk(HostView<const std::byte> bytes, float tolerance, float weight, HostView<float> out) const {
    if (bytes.size() > kMostBytes || bytes.size() % kWord != 0) fail("a chunk is longer than any can be");
    const auto stream = streams_->take();
    std::memcpy(stream->buffer.data(), bytes.data(), bytes.size());
    std::memset(stream->buffer.data() + bytes.size(), 0, stream->buffer.size() - bytes.size());
    zfp_stream zfp = settings(stream->bits, tolerance);
    stream_rewind(stream->bits);
    std::array<float, kBlock> block{};
    std::size_t i = 0;
    for (; i + kBlock <= out.size(); i += kBlock) {
      zfp_decode_block_float_1(&zfp, block.data());
      for (std::size_t j = 0; j < kBlock; ++j) out[i + j] += weight * block[j];
    }
    if (i < out.size()) {
      zfp_decode_partial_block_strided_float_1(&zfp, block.data(), out.size() - i, 1);
      for (std::size_t j = 0; i < out.size(); ++i, ++j) out[i] += weight * block[j];
    }
    if (words_for(static_cast<std::size_t>(stream_rtell(stream->bits))) != bytes.size())
      fail("a chunk is not as long as its blocks");
  }

  /// body(chunk, first element, elements).
  template <class Body>
  static void for_chunks(Queue<Space::host> queue, std::size_t n, const Body& body) {
    parallel_for(queue, chunks(n), 1, 2, [&](std::size_t chunk, std::size_t last) {
      for (; chunk < last; ++chunk) body(chunk, chunk * kChunk, count_of(chunk, n));
    });
  }

  bool fixed_rate_;
  double rate_, tolerance_;
  std::unique_ptr<Streams> streams_ = std::make_unique<Streams>();
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
