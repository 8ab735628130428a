#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "kernels/bit_stream.hpp"
#include "lib/codecs/block_codec.hpp"
#include "lib/methods/qsgd/format.hpp"
#include "lib/methods/qsgd/qsgd.hpp"

namespace gradtool {
namespace {

/// Sends the levels that are not zero as Elias delta codes: gap, sign, level. Parts of several buckets are streams of
/// their own, so that threads work on them in parallel.
template <std::uint32_t Bits>
class QsgdElias final : public Codec<Space::host> {
 public:
  explicit QsgdElias(const QsgdOptions& options) : options_{options}, part_{layout(0).part()} {
    for (std::uint32_t level = 1; level <= kLevels; ++level) {
      const format::EliasCode code = format::elias_delta(level);
      for (std::uint32_t sign = 0; sign < 2; ++sign)
        sign_and_level_[level | sign << (Bits - 1)] = {sign | code.bits << 1, 1 + code.count};
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).most_bytes(), .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = gradient.size();
    auto* norms = section<float>(payload, format::QsgdStreams::norms_offset());
    auto* bits = section<std::uint32_t>(payload, sizes_offset(n));
    const auto slot = [&](std::size_t part) { return payload.data() + streams_offset(n) + part * slot_bytes(); };
    each_part(queue, n, [&](std::size_t part, std::size_t first, std::size_t count) {
      std::array<float, format::QsgdStreams::kPart / format::kPackGroup> factors;
      detail::block_scales(format::QsgdFormat<Bits>{options_.l2}, gradient.data() + first, count, options_.bucket,
                           norms + first / options_.bucket, factors.data());
      bits[part] = encode_part(gradient.data() + first, first, count, factors.data(), context.key, slot(part));
    });
    std::size_t end = streams_offset(n);
    for (std::size_t part = 0; part < parts(n); ++part) {  // Close the gaps between streams.
      const std::size_t bytes = stream_bytes(bits[part]);
      std::memmove(payload.data() + end, slot(part), bytes);
      end += bytes;
    }
    const std::uint64_t size = end;
    std::memcpy(payload.data(), &size, sizeof size);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    if (payload.size() < streams_offset(n)) throw bad("it ends before its streams");
    std::uint64_t size = 0;
    std::memcpy(&size, payload.data(), sizeof size);
    const auto* norms = section<float>(payload, format::QsgdStreams::norms_offset());
    const auto* bits = section<std::uint32_t>(payload, sizes_offset(n));
    std::size_t end = streams_offset(n);
    for (std::size_t part = 0; part < parts(n); ++part) {
      if (stream_bytes(bits[part]) > slot_bytes()) throw bad("a stream is longer than it can be");
      end += stream_bytes(bits[part]);
    }
    if (size != payload.size() || end != size) throw bad("its sizes do not add up");
    // The start of a part's stream follows from the sizes before it, which every thread adds up for itself.
    parallel_for(queue, parts(n), 1, 1, [&](std::size_t part, std::size_t last) {
      std::size_t start = streams_offset(n);
      for (std::size_t before = 0; before < part; ++before) start += stream_bytes(bits[before]);
      for (; part < last; ++part) {
        const std::size_t first = part * part_;
        const std::size_t count = std::min(part_, n - first);
        mark_not_finite(norms + first / options_.bucket, count, weight, out.data() + first);
        decode_part(payload.part(start, stream_bytes(bits[part])), bits[part], norms + first / options_.bucket, count,
                    weight, out.data() + first);
        start += stream_bytes(bits[part]);
      }
    });
  }

  [[nodiscard]] ErrorBound bound(std::size_t n) const override { return options_.bound(n); }

 private:
  static constexpr std::uint32_t kLevels = (1u << (Bits - 1)) - 1u;

  [[nodiscard]] static Error bad(const char* why) { return Error{Fault::data, std::string{"qsgd payload: "} + why}; }
  [[nodiscard]] static std::size_t stream_bytes(std::uint32_t bits) { return format::QsgdStreams::stream_bytes(bits); }
  [[nodiscard]] format::QsgdStreams layout(std::size_t n) const { return {n, options_.bucket, kLevels}; }
  [[nodiscard]] std::size_t parts(std::size_t n) const { return layout(n).parts(); }
  [[nodiscard]] std::size_t sizes_offset(std::size_t n) const { return layout(n).bits_offset(); }
  [[nodiscard]] std::size_t streams_offset(std::size_t n) const { return layout(n).streams_offset(); }
  [[nodiscard]] std::size_t slot_bytes() const { return layout(0).slot_bytes(); }

  template <class Body>
  void each_part(Queue<Space::host> queue, std::size_t n, const Body& body) const {
    parallel_for(queue, parts(n), 1, 1, [&](std::size_t part, std::size_t last) {
      for (; part < last; ++part) body(part, part * part_, std::min(part_, n - part * part_));
    });
  }

  /// Writes the stream of a part, which starts `first` elements into the gradient, padded with zeros to whole words.
  /// Returns its length in bits.
  std::uint32_t encode_part(const float* x, std::size_t first, std::size_t count, const float* factors,
                            const format::DrawKey& key, std::byte* out) const {
    alignas(64) std::array<std::uint32_t, detail::kBlockTile> draws;
    alignas(64) std::array<std::uint8_t, detail::kBlockTile> codes;
    host::BitWriter bits{out};
    std::size_t written = 0;
    std::size_t next = 0;  // the element that a gap of one stands for
    for (std::size_t tile = 0; tile < count; tile += detail::kBlockTile) {
      const std::size_t size = std::min(detail::kBlockTile, count - tile);
      host::draw_tile(key, first + tile, size, draws.data());
      detail::encode_blocks<format::QsgdFormat<Bits>>(x + tile, tile, size, options_.bucket, factors, draws.data(),
                                                      codes.data());
      std::memset(codes.data() + size, 0, (detail::kBlockTile - size) % 8);
      for (std::size_t eight = 0; eight < size; eight += 8) {
        std::uint64_t packed = 0;
        std::memcpy(&packed, codes.data() + eight, 8);
        for (packed &= 0x0101010101010101u * kLevels; packed != 0;) {
          const auto byte = static_cast<std::size_t>(std::countr_zero(packed)) / 8;
          packed &= ~(std::uint64_t{0xff} << 8 * byte);
          const auto gap = static_cast<std::uint32_t>(tile + eight + byte - next + 1);
          const format::EliasCode& rest = sign_and_level_[codes[eight + byte]];
          host::put_elias_delta(bits, gap);
          bits.put(rest.bits, rest.count);
          written += host::elias_delta_bits(gap) + rest.count;
          next = tile + eight + byte + 1;
        }
      }
    }
    const auto total = static_cast<std::uint32_t>(written);
    const std::size_t bytes = bits.finish();
    std::memset(out + bytes, 0, stream_bytes(total) - bytes);
    return total;
  }

  /// Adds the NaN of buckets whose norm is NaN: all their levels are zero, so the stream does not hold it.
  void mark_not_finite(const float* norms, std::size_t count, float weight, float* out) const {
    for (std::size_t first = 0; first < count; first += options_.bucket, ++norms) {
      if (*norms == *norms) continue;
      for (std::size_t i = first; i < std::min(count, first + options_.bucket); ++i) out[i] += weight * *norms;
    }
  }

  void decode_part(HostView<const std::byte> stream, std::uint32_t size, const float* norms, std::size_t count,
                   float weight, float* out) const {
    host::BitReader bits{stream.data(), stream.size()};
    std::size_t next = 0;
    std::size_t bucket = 0;
    std::size_t bucket_end = 0;
    float unit = 0.0F;
    for (std::uint64_t used = 0; used != size;) {
      const std::uint32_t gap = host::take_elias_delta(bits);
      const auto sign = static_cast<std::uint32_t>(bits.take(1));
      const std::uint32_t level = host::take_elias_delta(bits);
      if (gap == 0 || gap > count - next || level == 0 || level > kLevels) throw bad("a code is none of its codes");
      used += host::elias_delta_bits(gap) + 1 + host::elias_delta_bits(level);
      if (used > size) throw bad("a code goes past the end of its stream");
      const std::size_t i = next + gap - 1;
      next = i + 1;
      if (i >= bucket_end) {
        bucket = i / options_.bucket;
        bucket_end = (bucket + 1) * options_.bucket;
        unit = weight * format::QsgdFormat<Bits>::decode_factor(norms[bucket]);
      }
      const float value = static_cast<float>(static_cast<std::int32_t>(level)) * unit;
      out[i] += sign != 0 ? -value : value;
    }
  }

  QsgdOptions options_;
  std::size_t part_;                                     ///< elements of a part
  std::array<format::EliasCode, 256> sign_and_level_{};  ///< of each code, sign and level behind each other
};

}  // namespace

std::unique_ptr<Codec<Space::host>> make_qsgd_elias(const QsgdOptions& options) {
  std::unique_ptr<Codec<Space::host>> codec;
  format::with_qsgd_bits(options.bits,
                         [&]<std::uint32_t Bits>() { codec = std::make_unique<QsgdElias<Bits>>(options); });
  return codec;
}

}  // namespace gradtool
