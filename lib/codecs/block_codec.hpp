#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/host/draws.hpp"
#include "kernels/host/pack_codes.hpp"
#include "kernels/law/block_format.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

namespace detail {

/// Elements whose draws and codes are held on the stack at a time.
inline constexpr std::size_t kBlockTile = 2048;

/// Patterns without sign order like the values, NaN above all. Becomes part of the loops that use it.
[[gnu::always_inline]] inline float largest_of(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffu);
  return law::float_of(largest);
}

/// Scales of the blocks of `count` elements, and what their elements are multiplied by.
template <class Format>
GT_SIMD_CLONES void block_scales(const Format& format, const float* x, std::size_t count, std::size_t block,
                                 typename Format::Scale* scales, float* factors) {
  if (Format::kBlock != 0) block = Format::kBlock;
  for (std::size_t first = 0; first < count; first += block) {
    const auto scaled = format.scale(x + first, std::min(block, count - first));
    *scales++ = scaled.stored;
    *factors++ = scaled.factor;
  }
}

/// Calls body(b, at, end) for the pieces of [0, count) that lie in block b, the first element being `offset` elements
/// into block 0.
template <class Format, class Body>
[[gnu::always_inline]] inline void each_block(std::size_t offset, std::size_t count, std::size_t block,
                                              const Body& body) {
  std::size_t at = 0;
  if constexpr (Format::kBlock != 0) {  // whole blocks, whose size the compiler knows
    for (; at + Format::kBlock <= count; at += Format::kBlock)
      body((offset + at) / Format::kBlock, at, at + Format::kBlock);
    block = Format::kBlock;
  }
  while (at < count) {
    const std::size_t b = (offset + at) / block;
    const std::size_t end = std::min(count, (b + 1) * block - offset);
    body(b, at, end);
    at = end;
  }
}

/// Codes of `count` elements, one a byte; `draws` null: rounded to nearest.
template <class Format>
GT_SIMD_CLONES void encode_blocks(const float* x, std::size_t offset, std::size_t count, std::size_t block,
                                  const float* factors, const std::uint32_t* draws, std::uint8_t* codes) {
  using Element = typename Format::Element;
  each_block<Format>(offset, count, block, [&](std::size_t b, std::size_t at, std::size_t end) {
    const float factor = factors[b];
    if (draws == nullptr) {
      for (std::size_t i = at; i < end; ++i) codes[i] = static_cast<std::uint8_t>(Element::encode(factor, x[i]));
    } else {
      for (std::size_t i = at; i < end; ++i)
        codes[i] = static_cast<std::uint8_t>(Element::encode(factor, x[i], draws[i]));
    }
  });
}

template <class Format>
GT_SIMD_CLONES void decode_blocks(const std::uint8_t* codes, std::size_t offset, std::size_t count, std::size_t block,
                                  const typename Format::Scale* scales, float weight, float* out) {
  using Element = typename Format::Element;
  each_block<Format>(offset, count, block, [&](std::size_t b, std::size_t at, std::size_t end) {
    const float unit = Format::decode_factor(scales[b]);
    for (std::size_t i = at; i < end; ++i) out[i] += weight * (Element::decode(codes[i]) * unit);
  });
}

}  // namespace detail

/// Elements of at most 8 bits in blocks that share a scale. A Format is one of kernels/law/block_format.hpp, or like
/// one but with
///   scale(x, count)            law::Scaled<Scale> of a block
/// in place of scaled(largest).
template <class Format>
class BlockCodec : public Codec<Space::host> {
 public:
  BlockCodec(Format format, std::size_t block, bool stochastic)
      : format_{format}, block_{block}, stochastic_{stochastic} {
    expects(block % kAlign == 0, "a block must be a multiple of 32 elements, or of 4 of 8 bits each");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    if (gradient.empty()) return;
    const law::BlockLayout at = layout(gradient.size());
    auto* scales = section<Scale>(payload);
    std::memset(payload.data() + at.blocks() * sizeof(Scale), 0, at.codes_offset() - at.blocks() * sizeof(Scale));
    each_tile(
        queue, gradient.size(),
        [&](std::size_t first, std::size_t last, Room& room) {
          detail::block_scales(format_, gradient.data() + first, last - first, block_, scales + first / block_,
                               room.factors.data());
        },
        [&](std::size_t first, std::size_t offset, std::size_t count, Room& room) {
          if (stochastic_) host::draw_tile(context.key, first, count, room.draws.data());
          std::byte* out = payload.data() + at.codes_offset() + first * kBits / 8;
          auto* codes = kBits == 8 ? reinterpret_cast<std::uint8_t*>(out) : room.codes.data();
          detail::encode_blocks<Format>(gradient.data() + first, offset, count, block_, room.factors.data(),
                                        stochastic_ ? room.draws.data() : nullptr, codes);
          if constexpr (kBits == 8) {
            if (count % 4 != 0) std::memset(out + count, 0, 4 - count % 4);
          } else {
            host::write_codes<kBits>(codes, count, reinterpret_cast<std::uint32_t*>(out));
          }
        });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const law::BlockLayout at = layout(out.size());
    expect_length(name(), payload.size(), at.bytes());
    const auto* scales = section<Scale>(payload);
    each_tile(
        queue, out.size(), [](std::size_t, std::size_t, Room&) {},
        [&](std::size_t first, std::size_t offset, std::size_t count, Room& room) {
          const std::byte* in = payload.data() + at.codes_offset() + first * kBits / 8;
          const auto* codes = kBits == 8 ? reinterpret_cast<const std::uint8_t*>(in) : room.codes.data();
          if constexpr (kBits != 8)
            host::read_codes<kBits>(reinterpret_cast<const std::uint32_t*>(in), count, room.codes.data());
          detail::decode_blocks<Format>(codes, offset, count, block_, scales + (first - offset) / block_, weight,
                                        out.data() + first);
        });
  }

 protected:
  using Scale = typename Format::Scale;
  static constexpr std::uint32_t kBits = Format::Element::kBits;
  static_assert(kBits <= 8);
  static constexpr std::size_t kAlign = kBits == 8 ? 4 : law::kPackGroup;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] law::BlockLayout layout(std::size_t n) const { return {n, block_, sizeof(Scale), kBits}; }
  [[nodiscard]] const Format& format() const { return format_; }
  [[nodiscard]] std::size_t block() const { return block_; }
  [[nodiscard]] bool stochastic() const { return stochastic_; }

 private:
  struct Room {
    alignas(64) std::array<std::uint32_t, detail::kBlockTile> draws;
    alignas(64) std::array<std::uint8_t, detail::kBlockTile> codes;
    std::array<float, detail::kBlockTile / kAlign> factors;  ///< of the blocks of a span
  };

  /// before(first, last, room) for spans of whole blocks, then tile(first, offset in the span, count, room) for what is
  /// in them.
  template <class Before, class Tile>
  void each_tile(Queue<Space::host> queue, std::size_t n, const Before& before, const Tile& tile) const {
    const std::size_t span = std::max(block_, detail::kBlockTile / block_ * block_);
    const std::size_t step = std::min(span, detail::kBlockTile);
    parallel_for(queue, n, span, 1 << 14, [&](std::size_t begin, std::size_t end) {
      Room room;
      for (std::size_t first = begin; first < end; first += span) {
        const std::size_t last = std::min(end, first + span);
        before(first, last, room);
        for (std::size_t at = first; at < last; at += step) tile(at, at - first, std::min(step, last - at), room);
      }
    });
  }

  Format format_;
  std::size_t block_;
  bool stochastic_;
};

/// A block format of kernels/law/block_format.hpp, whose scale depends on the block's largest magnitude alone.
template <class Law>
struct OfLargest : Law {
  [[nodiscard, gnu::always_inline]] static law::Scaled<typename Law::Scale> scale(const float* x, std::size_t count) {
    return Law::scaled(detail::largest_of(x, count));
  }
};

}  // namespace gradtool
