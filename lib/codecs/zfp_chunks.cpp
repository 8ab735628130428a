#include "lib/codecs/zfp_chunks.hpp"

#include <fmt/format.h>
#include <zfp.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = 4;  // values of a block of one-dimensional zfp
constexpr std::size_t kWord = 4;   // bytes that a bit stream is padded to; the library's own words may be of any size
// A block has an exponent (9 bits), up to 32 planes of 4 bits and, to say where values begin to matter, at most a bit
// for each plane and each value.
constexpr std::size_t kMostBits = 9 + 32 * 4 + 32 + 4;
constexpr std::size_t words_for(std::size_t bits) {
  return (bits + 31) / 32 * kWord;
}
constexpr std::size_t kMostBytes = words_for(ZfpChunks::kChunk / kBlock * kMostBits);

[[noreturn]] void fail(std::string_view what) {
  throw Error{Fault::data, fmt::format("zfp payload: {}", what)};
}

zfp_stream settings(double rate, bitstream* bits, float tolerance) {
  zfp_stream zfp{};
  zfp.maxprec = ZFP_MAX_PREC;
  if (rate > 0.0)
    zfp_stream_set_rate(&zfp, rate, zfp_type_float, 1, zfp_false);
  else
    zfp_stream_set_accuracy(&zfp, static_cast<double>(tolerance));
  zfp_stream_set_bit_stream(&zfp, bits);
  return zfp;
}

}  // namespace

/// zfp's bit streams allocate when they are opened, so some are open from the start. Who needs one takes any that is
/// free; there are more than threads of any sensible machine, and the last waits.
class ZfpChunks::Streams {
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

std::size_t ZfpChunks::most_bytes() {
  return kMostBytes;
}

ZfpChunks::ZfpChunks(double rate) : rate_{rate}, streams_{std::make_unique<Streams>()} {}
ZfpChunks::~ZfpChunks() = default;

std::size_t ZfpChunks::rate_bytes(std::size_t count) const {
  zfp_stream settings{};
  zfp_stream_set_rate(&settings, rate_, zfp_type_float, 1, zfp_false);
  return words_for((count + kBlock - 1) / kBlock * settings.maxbits);
}

std::size_t ZfpChunks::write(const float* x, std::size_t count, float tolerance, std::byte* to) const {
  const auto stream = streams_->take();
  zfp_stream zfp = settings(rate_, stream->bits, tolerance);
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
void ZfpChunks::read_add(HostView<const std::byte> bytes, float tolerance, float weight, HostView<float> out) const {
  if (bytes.size() > kMostBytes || bytes.size() % kWord != 0) fail("a chunk is longer than any can be");
  const auto stream = streams_->take();
  std::memcpy(stream->buffer.data(), bytes.data(), bytes.size());
  std::memset(stream->buffer.data() + bytes.size(), 0, stream->buffer.size() - bytes.size());
  zfp_stream zfp = settings(rate_, stream->bits, tolerance);
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

}  // namespace gradtool
