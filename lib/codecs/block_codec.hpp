#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/host/draws.hpp"
#include "kernels/host/pack_codes.hpp"
#include "kernels/law/bitpack.hpp"
#include "kernels/law/block_int.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

/// Where things lie in the payload of a block codec: the scales of all blocks, padded to 4 bytes, then the packed codes
/// of all elements. Blocks are multiples of 32 elements, so that each begins at a word.
struct BlockLayout {
  std::size_t n;
  std::size_t block;
  std::size_t scale_bytes;
  std::uint32_t bits;

  [[nodiscard]] std::size_t blocks() const { return (n + block - 1) / block; }
  [[nodiscard]] std::size_t codes_offset() const { return (blocks() * scale_bytes + 3) / 4 * 4; }
  [[nodiscard]] std::size_t bytes() const { return codes_offset() + 4 * law::packed_words(n, bits); }
};

namespace detail {

/// Elements whose draws and codes are held on the stack at a time.
inline constexpr std::size_t kBlockTile = 2048;

/// Patterns without sign order like the values, NaN above all. Becomes part of the loops that use it.
[[gnu::always_inline]] inline float largest_of(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffu);
  return law::float_of(largest);
}

template <class Format>
GT_SIMD_CLONES void block_scales(const Format& format, const float* x, std::size_t count, std::size_t block,
                                 typename Format::Scale* scales) {
  for (std::size_t first = 0; first < count; first += block, ++scales) {
    *scales = format.scale(x + first, std::min(block, count - first));
  }
}

/// Codes of `count` elements from `first` on, one a byte; `draws` null: rounded to nearest.
template <class Format>
GT_SIMD_CLONES void encode_blocks(const Format& format, const float* x, std::size_t first, std::size_t count,
                                  std::size_t block, const typename Format::Scale* scales, const std::uint32_t* draws,
                                  std::uint8_t* codes) {
  using Element = typename Format::Element;
  for (std::size_t at = 0; at < count;) {
    const std::size_t b = (first + at) / block;
    const std::size_t end = std::min(count, (b + 1) * block - first);
    const float factor = format.encode_factor(scales[b]);
    if (draws == nullptr) {
      for (std::size_t i = at; i < end; ++i) codes[i] = static_cast<std::uint8_t>(Element::encode(factor, x[i]));
    } else {
      for (std::size_t i = at; i < end; ++i)
        codes[i] = static_cast<std::uint8_t>(Element::encode(factor, x[i], draws[i]));
    }
    at = end;
  }
}

template <class Format>
GT_SIMD_CLONES void decode_blocks(const Format& format, const std::uint8_t* codes, std::size_t first, std::size_t count,
                                  std::size_t block, const typename Format::Scale* scales, float weight, float* out) {
  using Element = typename Format::Element;
  for (std::size_t at = 0; at < count;) {
    const std::size_t b = (first + at) / block;
    const std::size_t end = std::min(count, (b + 1) * block - first);
    const float unit = format.decode_factor(scales[b]);
    for (std::size_t i = at; i < end; ++i) out[i] += weight * (Element::decode(codes[i]) * unit);
    at = end;
  }
}

}  // namespace detail

/// Elements of at most 8 bits in blocks that share a scale. A Format says
///   Scale                      what is stored for a block,
///   Element                    a law: kBits, encode(factor, x), encode(factor, x, draw), decode(code),
///   scale(x, count)            the scale of a block,
///   encode_factor(scale)       what elements are multiplied by,
///   decode_factor(scale)       what decoded elements are multiplied by.
template <class Format>
class BlockCodec : public Codec<Space::host> {
 public:
  BlockCodec(Format format, std::size_t block, bool stochastic)
      : format_{format}, block_{block}, stochastic_{stochastic} {
    expects(block % law::kPackGroup == 0, "a block must be a multiple of 32 elements");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    if (gradient.empty()) return;
    const BlockLayout at = layout(gradient.size());
    auto* scales = section<Scale>(payload);
    std::memset(payload.data() + at.blocks() * sizeof(Scale), 0, at.codes_offset() - at.blocks() * sizeof(Scale));
    each_tile(
        queue, gradient.size(),
        [&](std::size_t first, std::size_t last) {
          detail::block_scales(format_, gradient.data() + first, last - first, block_, scales + first / block_);
        },
        [&](std::size_t first, std::size_t count, std::uint32_t* draws, std::uint8_t* codes) {
          if (stochastic_) host::draw_tile(context.key, first, count, draws);
          std::byte* out = payload.data() + at.codes_offset() + first * kBits / 8;
          auto* direct = kBits == 8 ? reinterpret_cast<std::uint8_t*>(out) : codes;
          detail::encode_blocks(format_, gradient.data() + first, first, count, block_, scales,
                                stochastic_ ? draws : nullptr, direct);
          if constexpr (kBits == 8) {
            if (count % 4 != 0) std::memset(out + count, 0, 4 - count % 4);
          } else {
            host::write_codes<kBits>(codes, count, reinterpret_cast<std::uint32_t*>(out));
          }
        });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const BlockLayout at = layout(out.size());
    expect_length(name(), payload.size(), at.bytes());
    const auto* scales = section<Scale>(payload);
    each_tile(
        queue, out.size(), [](std::size_t, std::size_t) {},
        [&](std::size_t first, std::size_t count, std::uint32_t* /*draws*/, std::uint8_t* codes) {
          const std::byte* in = payload.data() + at.codes_offset() + first * kBits / 8;
          const auto* direct = kBits == 8 ? reinterpret_cast<const std::uint8_t*>(in) : codes;
          if constexpr (kBits != 8) host::read_codes<kBits>(reinterpret_cast<const std::uint32_t*>(in), count, codes);
          detail::decode_blocks(format_, direct, first, count, block_, scales, weight, out.data() + first);
        });
  }

 protected:
  using Scale = typename Format::Scale;
  static constexpr std::uint32_t kBits = Format::Element::kBits;
  static_assert(kBits <= 8);

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] BlockLayout layout(std::size_t n) const { return {n, block_, sizeof(Scale), kBits}; }
  [[nodiscard]] const Format& format() const { return format_; }
  [[nodiscard]] std::size_t block() const { return block_; }
  [[nodiscard]] bool stochastic() const { return stochastic_; }

 private:
  /// before(first, last) for spans of whole blocks, then tile(first, count, draws, codes) for what is in them.
  template <class Before, class Tile>
  void each_tile(Queue<Space::host> queue, std::size_t n, const Before& before, const Tile& tile) const {
    const std::size_t span = std::max(block_, detail::kBlockTile / block_ * block_);
    const std::size_t step = std::min(span, detail::kBlockTile);
    parallel_for(queue, n, span, 1 << 14, [&](std::size_t begin, std::size_t end) {
      alignas(64) std::array<std::uint32_t, detail::kBlockTile> draws;
      alignas(64) std::array<std::uint8_t, detail::kBlockTile> codes;
      for (std::size_t first = begin; first < end; first += span) {
        const std::size_t last = std::min(end, first + span);
        before(first, last);
        for (std::size_t at = first; at < last; at += step)
          tile(at, std::min(step, last - at), draws.data(), codes.data());
      }
    });
  }

  Format format_;
  std::size_t block_;
  bool stochastic_;
};

/// Formats whose blocks store largest/top as float32.
template <class ElementLaw>
struct FloatScaled {
  using Scale = float;
  using Element = ElementLaw;
  [[nodiscard, gnu::always_inline]] static Scale scale(const float* x, std::size_t count) {
    return law::BlockScale::stored(detail::largest_of(x, count), Element::kMax);
  }
  [[nodiscard]] static float encode_factor(Scale scale) { return law::BlockScale::encode_factor(scale); }
  [[nodiscard]] static float decode_factor(Scale scale) { return scale; }
};

}  // namespace gradtool
