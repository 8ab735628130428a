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

#include "kernels/float_bits.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// Values of a bit stream: the unit of parallel work, whatever the number of threads.
constexpr std::size_t kChunk = 8192;
constexpr std::size_t kBlock = 4;  ///< values of a block of one-dimensional zfp
// A block has an exponent (9 bits), up to 32 bit planes of 4 bits, and group tests: at most one bit for each plane and
// one for each value.
constexpr std::size_t kMostBlockBits = 9 + 32 * 4 + 32 + 4;
/// Bytes of a bit stream, which is padded to 32 bits. The library's own words may be of any size.
constexpr std::size_t padded_bytes(std::size_t bits) {
  return (bits + 31) / 32 * 4;
}
constexpr std::size_t kMostChunkBytes = padded_bytes(kChunk / kBlock * kMostBlockBits);

struct Header {
  std::uint64_t bytes = 0;   ///< of the whole payload
  float tolerance = 0.0F;    ///< absolute; 0 with a fixed rate; NaN where the input was not finite: no chunks follow
  std::uint32_t chunks = 0;  ///< number of chunk sizes that follow; 0 with a fixed rate
};
static_assert(sizeof(Header) == 16);

/// The bits of the largest magnitude; a NaN's are larger than all others.
GT_SIMD_CLONES std::uint32_t largest_pattern(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, format::bits_of(x[i]) & 0x7fffffffU);
  return largest;
}

[[noreturn]] void fail(std::string_view what) {
  throw_error(Fault::data, "zfp payload: {}", what);
}

/// A pool of zfp's bit streams. The library allocates when one is opened, which the timed region must not do, so all
/// are opened from the start and a thread borrows one that is free. There are more than a machine has cores as a rule;
/// where all are taken, a thread waits.
class BitStreams {
 public:
  struct Stream {
    alignas(64) std::array<std::byte, kMostChunkBytes + 8> buffer{};  // the library reads and writes whole 8-byte words
    bitstream* bits = stream_open(buffer.data(), buffer.size());
    std::atomic_flag taken{};
    Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() { stream_close(bits); }
  };
  /// Returns the stream at the end of its life.
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

/// Chunks of one-dimensional zfp (Lindstrom, TVCG 2014), by rate or by accuracy.
class Zfp final : public Codec<Space::host> {
 public:
  explicit Zfp(const Params& params)
      : fixed_rate_{params.is("mode", "rate")}, tolerance_{params.real("tolerance")}, rate_{params.real("rate")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    std::size_t bytes = sections(n);
    for (std::size_t c = 0; c < count_chunks(n); ++c)
      bytes += fixed_rate_ ? rate_bytes(count_of(c, n)) : kMostChunkBytes;
    return {.payload_bytes = bytes,
            .scratch_bytes = fixed_rate_ ? 0 : count_chunks(n) * kMostChunkBytes,  // chunks are written side by side
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    std::atomic<std::uint32_t> largest{0};
    parallel_for(queue, n, 1, 1 << 15, [&](std::size_t first, std::size_t last) {
      const std::uint32_t own = largest_pattern(gradient.data() + first, last - first);
      for (std::uint32_t seen = largest.load(); seen < own && !largest.compare_exchange_weak(seen, own);) {
      }
    });
    const bool finite = largest.load() < 0x7f800000U;
    Header header;
    header.chunks = fixed_rate_ ? 0 : static_cast<std::uint32_t>(count_chunks(n));
    header.tolerance = !finite       ? std::numeric_limits<float>::quiet_NaN()
                       : fixed_rate_ ? 0.0F
                                     : tolerance_for(format::float_of(largest.load()));
    auto* sizes = section<std::uint32_t>(payload, sizeof header);
    std::size_t end = sections(n);  // of what is written
    if (!finite) {
      std::fill_n(sizes, header.chunks, 0U);
    } else if (fixed_rate_) {
      for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
        write(gradient.data() + first, count, 0.0F, payload.data() + end + chunk * rate_bytes(kChunk));
      });
      for (std::size_t c = 0; c < count_chunks(n); ++c) end += rate_bytes(count_of(c, n));
    } else {
      for_chunks(queue, n, [&](std::size_t chunk, std::size_t first, std::size_t count) {
        sizes[chunk] = static_cast<std::uint32_t>(
            write(gradient.data() + first, count, header.tolerance, scratch.data() + chunk * kMostChunkBytes));
      });
      for (std::size_t c = 0; c < count_chunks(n); end += sizes[c++])
        std::memcpy(payload.data() + end, scratch.data() + c * kMostChunkBytes, sizes[c]);
    }
    header.bytes = end;
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
      const std::size_t offset = sections(n) + (fixed_rate_ ? chunk * rate_bytes(kChunk)
                                                            : std::accumulate(sizes, sizes + chunk, std::size_t{0}));
      read_add(payload.part(offset, chunk_bytes(sizes, chunk, n, true)), header.tolerance, weight,
               out.part(first, count));
    });
  }

  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (fixed_rate_) return {};  // the error relates to each block's largest value; at low rates there is no bound
    // The scale that the library computes overflows if a block's largest value is below 2^-97; the decoded values are
    // then wrong but as small.
    return {.of_largest = tolerance_ * (1.0 + 1e-6) + 0x1p-22, .absolute = 0x1p-96};
  }

 private:
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

  /// Bytes of a chunk of `count` values at the fixed rate.
  [[nodiscard]] std::size_t rate_bytes(std::size_t count) const {
    zfp_stream zfp{};
    zfp_stream_set_rate(&zfp, rate_, zfp_type_float, 1, zfp_false);
    return padded_bytes((count + kBlock - 1) / kBlock * zfp.maxbits);
  }

  /// Writes the bit stream of a chunk to `to` and returns its bytes, a multiple of 4.
  std::size_t write(const float* x, std::size_t count, float tolerance, std::byte* to) const {
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
    std::memset(to + bytes, 0, padded_bytes(bits) - bytes);
    return padded_bytes(bits);
  }

  /// out += weight * the values of a chunk. Throws Fault::data where the bytes are not those of such a chunk. The
  /// library does not check where its input ends, so it reads a copy with zeros behind, beyond which no block can read.
  void read_add(HostView<const std::byte> bytes, float tolerance, float weight, HostView<float> out) const {
    if (bytes.size() > kMostChunkBytes || bytes.size() % 4 != 0) fail("a chunk is longer than any can be");
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
    if (padded_bytes(static_cast<std::size_t>(stream_rtell(stream->bits))) != bytes.size())
      fail("a chunk is not as long as its blocks");
  }

  static std::size_t count_chunks(std::size_t n) { return (n + kChunk - 1) / kChunk; }
  static std::size_t count_of(std::size_t chunk, std::size_t n) { return std::min(kChunk, n - chunk * kChunk); }
  /// Bytes of the header and the sizes.
  [[nodiscard]] std::size_t sections(std::size_t n) const {
    return sizeof(Header) + (fixed_rate_ ? 0 : 4 * count_chunks(n));
  }
  [[nodiscard]] std::size_t chunk_bytes(const std::uint32_t* sizes, std::size_t chunk, std::size_t n,
                                        bool finite) const {
    if (!fixed_rate_) return sizes[chunk];
    return finite ? rate_bytes(count_of(chunk, n)) : 0;
  }
  /// The absolute tolerance for values up to `largest`; at least the smallest normal number.
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
  double rate_;  ///< bits per value with a fixed rate
  std::unique_ptr<BitStreams> streams_ = std::make_unique<BitStreams>();
};

constexpr ParamInfo kParams[] = {
    choice_param("mode", "rate", "rate|accuracy", "a fixed number of bits for each value, or a bound on the error"),
    real_param("rate", "8", {2.25, 32.0},
               "bits per value with mode=rate; a block of four values is rounded to whole bits")
        .searched("4|6|8|12|16")
        .only_with("mode=rate"),
    real_param("tolerance", "0.001", {1e-7, 1.0}, "bound on the error over the largest magnitude, with mode=accuracy")
        .only_with("mode=accuracy")};

}  // namespace

extern constinit const CodecDescriptor zfp_codec{
    .name = "zfp",
    .summary = "sends zfp's code of the gradient as a one-dimensional field, by rate or by accuracy",
    .reference = "Lindstrom, Fixed-Rate Compressed Floating-Point Arrays, TVCG 2014",
    .params = kParams,
    .determinism = Determinism::run_to_run,
    .payload = "128 + rate n bits; mode=accuracy: 128 + 32 ceil(n/8192) bits and the chunks",
    .passes =
        [](const Params& p) {
          if (!p.is("mode", "accuracy")) return MemoryPasses{};
          return MemoryPasses{.again = ReadAgain::unit, .why = "the tolerance is a share of the largest magnitude"};
        },
    .make_host = make_method_codec<Space::host, Zfp>,
};

}  // namespace gradtool
