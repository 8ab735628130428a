#pragma once

#include <fmt/format.h>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/host/bit_stream.hpp"
#include "kernels/law/qsgd_streams.hpp"
#include "lib/codecs/qsgd_format.hpp"

namespace gradtool {

/// QSGD whose levels are sent as Elias delta codes of what is not zero: gap, sign, level. Parts of buckets are streams
/// of their own, so that ranks decode in parallel.
template <std::uint32_t Bits>
class QsgdElias final : public Codec<Space::host> {
 public:
  QsgdElias(std::size_t bucket, bool l2) : bucket_{bucket}, format_{l2} {
    expects(bucket % law::kPackGroup == 0, "codec qsgd: bucket must be a multiple of 32");
    part_ = layout(0).part();
    for (std::uint32_t level = 1; level <= kLevels; ++level) {
      for (std::uint32_t sign = 0; sign < 2; ++sign) {
        std::array<std::byte, 16> bytes{};
        host::BitWriter bits{bytes.data()};
        bits.put(sign, 1);
        host::put_elias_delta(bits, level);
        bits.finish();
        Word& word = words_[level | sign << (Bits - 1)];
        std::memcpy(&word.bits, bytes.data(), sizeof word.bits);
        word.count = 1 + host::elias_delta_bits(level);
      }
    }
  }

  /// A gap of one costs a bit, a longer one less for each element that it passes over.
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).most_bytes(), .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = gradient.size();
    auto* norms = section<float>(payload, sizeof(std::uint64_t));
    auto* bits = section<std::uint32_t>(payload, sizes_offset(n));
    const auto slot = [&](std::size_t part) { return payload.data() + streams_offset(n) + part * slot_bytes(); };
    each_part(queue, n, [&](std::size_t part, std::size_t first, std::size_t count) {
      std::array<float, kPart / law::kPackGroup> factors;
      detail::block_scales(format_, gradient.data() + first, count, bucket_, norms + first / bucket_, factors.data());
      bits[part] = encode_part(gradient.data() + first, first, count, factors.data(), context.key, slot(part));
    });
    std::size_t end = streams_offset(n);
    for (std::size_t part = 0; part < parts(n); ++part) {  // close the gaps between streams
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
    const auto* norms = section<float>(payload, sizeof(std::uint64_t));
    const auto* bits = section<std::uint32_t>(payload, sizes_offset(n));
    std::size_t end = streams_offset(n);
    for (std::size_t part = 0; part < parts(n); ++part) {
      if (stream_bytes(bits[part]) > slot_bytes()) throw bad("a stream is longer than it can be");
      end += stream_bytes(bits[part]);
    }
    if (size != payload.size() || end != size) throw bad("its sizes do not add up");
    // One pass for every thread: where a part's stream starts follows from the sizes before it.
    parallel_for(queue, parts(n), 1, 1, [&](std::size_t part, std::size_t last) {
      std::size_t at = streams_offset(n);
      for (std::size_t before = 0; before < part; ++before) at += stream_bytes(bits[before]);
      for (; part < last; ++part) {
        const std::size_t first = part * part_;
        const std::size_t count = std::min(part_, n - first);
        mark_not_finite(norms + first / bucket_, count, weight, out.data() + first);
        decode_part(payload.part(at, stream_bytes(bits[part])), bits[part], norms + first / bucket_, count, weight,
                    out.data() + first);
        at += stream_bytes(bits[part]);
      }
    });
  }

  [[nodiscard]] ErrorBound bound(std::size_t n) const override { return format_.bound(std::min(n, bucket_)); }

 private:
  static constexpr std::size_t kPart = 1 << 14;
  static constexpr std::uint32_t kLevels = (1u << (Bits - 1)) - 1u;

  struct Word {
    std::uint32_t bits = 0;
    std::uint32_t count = 0;
  };

  [[nodiscard]] static Error bad(const char* why) { return Error{Fault::data, fmt::format("qsgd payload: {}", why)}; }
  [[nodiscard]] static std::size_t stream_bytes(std::uint32_t bits) { return law::QsgdStreams::stream_bytes(bits); }
  [[nodiscard]] law::QsgdStreams layout(std::size_t n) const { return {n, bucket_, kLevels}; }
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

  /// Returns the bits of the stream, which is padded with zeros to whole words.
  std::uint32_t encode_part(const float* x, std::size_t first, std::size_t count, const float* factors,
                            const law::DrawKey& key, std::byte* out) const {
    alignas(64) std::array<std::uint32_t, detail::kBlockTile> draws;
    alignas(64) std::array<std::uint8_t, detail::kBlockTile> codes;
    host::BitWriter bits{out};
    std::size_t written = 0;
    std::size_t next = 0;  // the element that a gap of one means
    for (std::size_t at = 0; at < count; at += detail::kBlockTile) {
      const std::size_t here = std::min(detail::kBlockTile, count - at);
      host::draw_tile(key, first + at, here, draws.data());
      detail::encode_blocks<QsgdFormat<Bits>>(x + at, at, here, bucket_, factors, draws.data(), codes.data());
      std::memset(codes.data() + here, 0, (detail::kBlockTile - here) % 8);
      for (std::size_t eight = 0; eight < here; eight += 8) {
        std::uint64_t packed = 0;
        std::memcpy(&packed, codes.data() + eight, 8);
        for (packed &= 0x0101010101010101u * kLevels; packed != 0;) {
          const auto byte = static_cast<std::size_t>(std::countr_zero(packed)) / 8;
          packed &= ~(std::uint64_t{0xff} << 8 * byte);
          const auto gap = static_cast<std::uint32_t>(at + eight + byte - next + 1);
          const Word& word = words_[codes[eight + byte]];
          host::put_elias_delta(bits, gap);
          bits.put(word.bits, word.count);
          written += host::elias_delta_bits(gap) + word.count;
          next = at + eight + byte + 1;
        }
      }
    }
    const auto total = static_cast<std::uint32_t>(written);
    const std::size_t bytes = bits.finish();
    std::memset(out + bytes, 0, stream_bytes(total) - bytes);
    return total;
  }

  /// A bucket whose norm is NaN has no levels to carry it.
  void mark_not_finite(const float* norms, std::size_t count, float weight, float* out) const {
    for (std::size_t first = 0; first < count; first += bucket_, ++norms) {
      if (*norms == *norms) continue;
      for (std::size_t i = first; i < std::min(count, first + bucket_); ++i) out[i] += weight * *norms;
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
        bucket = i / bucket_;
        bucket_end = (bucket + 1) * bucket_;
        unit = weight * QsgdFormat<Bits>::decode_factor(norms[bucket]);
      }
      const float value = static_cast<float>(static_cast<std::int32_t>(level)) * unit;
      out[i] += sign != 0 ? -value : value;
    }
  }

  std::size_t bucket_;
  std::size_t part_ = 0;
  QsgdFormat<Bits> format_;
  std::array<Word, 256> words_{};
};

}  // namespace gradtool
