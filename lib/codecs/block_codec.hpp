#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"
#include "kernels/pack_codes.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

namespace detail {

/// Elements whose draws and codes are held on the stack at a time.
inline constexpr std::size_t kBlockTile = 2048;

/// The largest magnitude. Patterns without the sign bit are ordered as magnitudes are, NaN above infinity above
/// numbers.
[[gnu::always_inline]] inline float largest_magnitude(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, format::bits_of(x[i]) & 0x7fffffffu);
  return format::float_of(largest);
}

/// The largest magnitude, or the element that has it where the format wants its sign.
template <class Format>
[[gnu::always_inline]] inline float largest_element(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, format::measure_pattern<Format>(x[i]));
  return format::measure_of<Format>(largest);
}

/// In the order that format::kNormLanes states.
[[gnu::always_inline]] inline float l2_norm(const float* x, std::size_t count) {
  std::array<float, format::kNormLanes> lane{};
  std::size_t i = 0;
  for (; i + format::kNormLanes <= count; i += format::kNormLanes) {
    for (std::size_t j = 0; j < format::kNormLanes; ++j) lane[j] += x[i + j] * x[i + j];
  }
  for (std::size_t j = 0; i + j < count; ++j) lane[j] += x[i + j] * x[i + j];
  for (std::size_t half = format::kNormLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  return std::sqrt(lane[0]);
}

/// For the body of each_block: compiled for the instructions of the loop around it, however much a file has of them.
#define GT_INLINED __attribute__((always_inline))

/// Calls body(b, begin, end) for the parts of [0, count) that lie in block b; element 0 is `offset` elements into block
/// 0.
template <class Format, class Body>
[[gnu::always_inline]] inline void each_block(std::size_t offset, std::size_t count, std::size_t block,
                                              const Body& body) {
  std::size_t begin = 0;
  if constexpr (Format::kBlock != 0) {  // Whole blocks first, whose size the compiler knows.
    for (; begin + Format::kBlock <= count; begin += Format::kBlock)
      body((offset + begin) / Format::kBlock, begin, begin + Format::kBlock);
    block = Format::kBlock;
  }
  while (begin < count) {
    const std::size_t b = (offset + begin) / block;
    const std::size_t end = std::min(count, (b + 1) * block - offset);
    body(b, begin, end);
    begin = end;
  }
}

/// Scales of the blocks of `count` elements, and what their elements are multiplied by. Two loops, so that the second
/// one becomes vector code.
template <class Format>
GT_SIMD_CLONES void block_scales(const Format format, const float* x, std::size_t count, std::size_t block,
                                 typename Format::Scale* scales, float* factors) {
  if (Format::kBlock != 0) block = Format::kBlock;
  each_block<Format>(0, count, block, [&](std::size_t b, std::size_t begin, std::size_t end) GT_INLINED {
    factors[b] =
        format::uses_l2(format) ? l2_norm(x + begin, end - begin) : largest_element<Format>(x + begin, end - begin);
  });
  for (std::size_t b = 0; b < (count + block - 1) / block; ++b) {
    const auto scaled = format.scaled(factors[b]);
    scales[b] = scaled.stored;
    factors[b] = scaled.factor;
  }
}

/// Finds what the decoded elements of blocks are multiplied by. Returns false where a scale is one that no encoder
/// writes.
template <class Format>
GT_SIMD_CLONES bool block_units(const Format format, const typename Format::Scale* scales, std::size_t blocks,
                                float* units) {
  for (std::size_t b = 0; b < blocks; ++b) units[b] = format.decode_factor(scales[b]);
  typename Format::Scale largest{};
  if constexpr (requires { Format::kLargestScale; }) {
    for (std::size_t b = 0; b < blocks; ++b) largest = std::max(largest, scales[b]);
    return largest <= Format::kLargestScale;
  }
  return true;
}

/// Codes of `count` elements, one in a byte. They are rounded to nearest where `draws` is null.
template <class Format>
GT_SIMD_CLONES void encode_blocks(const float* x, std::size_t offset, std::size_t count, std::size_t block,
                                  const float* factors, const std::uint32_t* draws, std::uint8_t* codes) {
  using Element = typename Format::Element;
  each_block<Format>(offset, count, block, [&](std::size_t b, std::size_t begin, std::size_t end) GT_INLINED {
    const float factor = factors[b];
    if constexpr (format::RoundsToNearest<Element>) {
      if (draws == nullptr) {
        for (std::size_t i = begin; i < end; ++i) codes[i] = static_cast<std::uint8_t>(Element::encode(factor, x[i]));
        return;
      }
    }
    if constexpr (format::RoundsStochastically<Element>) {
      for (std::size_t i = begin; i < end; ++i)
        codes[i] = static_cast<std::uint8_t>(Element::encode(factor, x[i], draws[i]));
    }
  });
}

template <class Format>
GT_SIMD_CLONES void decode_blocks(const std::uint8_t* codes, std::size_t offset, std::size_t count, std::size_t block,
                                  const float* units, float weight, float* out) {
  using Element = typename Format::Element;
  each_block<Format>(offset, count, block, [&](std::size_t b, std::size_t begin, std::size_t end) GT_INLINED {
    const float unit = units[b];
    for (std::size_t i = begin; i < end; ++i) out[i] += weight * (Element::decode(codes[i]) * unit);
  });
}

/// Stores the unweighted values of the codes of whole blocks, which decode_blocks would add. For formats whose values
/// are worked on further.
template <class Format>
GT_SIMD_CLONES void block_values(const std::uint8_t* codes, std::size_t count, std::size_t block, const float* units,
                                 float* values) {
  each_block<Format>(0, count, block, [&](std::size_t b, std::size_t begin, std::size_t end) GT_INLINED {
    const float unit = units[b];
    for (std::size_t i = begin; i < end; ++i) values[i] = Format::Element::decode(codes[i]) * unit;
  });
}

/// out[i] += weight * values[i]. A template, like the other loops, so that many files may have it.
template <class Number>
GT_SIMD_CLONES void add_values(const Number* values, std::size_t count, Number weight, Number* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * values[i];
}

/// The factors of a group's elements before the additions of a rotation and after them.
template <format::Way Direction, class Rotation>
struct RotationFactors {
  static constexpr std::size_t kSize = Rotation::kSize;
  alignas(64) float before[kSize];
  alignas(64) float after[kSize];

  explicit RotationFactors(const Rotation& rotation) {
    for (std::size_t i = 0; i < kSize; ++i) {
      const bool turned = (rotation.signs.bits[i / 32] >> i % 32 & 1U) != 0;
      before[i] = Rotation::template factor<Direction, true>(turned);
      after[i] = Rotation::template factor<Direction, false>(turned);
    }
  }
};

/// Rotates the whole groups of x[0 .. count); a last group that is short stays as it is. Each step works on neighbours
/// and moves sums to the front and differences to the back, which turns the bits of all numbers by one place: the next
/// step's pairs are neighbours too, and the last step restores the order.
template <class Factors>
GT_SIMD_CLONES void rotate(const Factors& factors, float* x, std::size_t count) {
  constexpr std::size_t kSize = Factors::kSize;
  const auto step = [](const float* in, float* out) GT_INLINED {
    for (std::size_t i = 0; i < kSize / 2; ++i) {
      out[i] = in[2 * i] + in[2 * i + 1];
      out[i + kSize / 2] = in[2 * i] - in[2 * i + 1];
    }
  };
  for (; count >= kSize; count -= kSize, x += kSize) {
    alignas(64) float even[kSize];
    alignas(64) float odd[kSize];
    for (std::size_t i = 0; i < kSize; ++i) even[i] = x[i] * factors.before[i];
    step(even, odd);
    step(odd, even);
    step(even, odd);
    step(odd, even);
    if constexpr (kSize >= 32) step(even, odd);
    if constexpr (kSize == 128) {
      step(odd, even);
      step(even, odd);
    }
    const float* last = kSize >= 32 ? odd : even;
    for (std::size_t i = 0; i < kSize; ++i) x[i] = last[i] * factors.after[i];
  }
}

}  // namespace detail

/// A codec of elements of at most 8 bits in blocks that share a scale; Format is a block format as
/// kernels/block_format.hpp describes it. Payload: format::BlockLayout. A method derives from it to state its bound.
template <class Format>
class BlockCodec : public Codec<Space::host> {
 public:
  /// `name` is what a refused payload is reported under. `block` elements share a scale, or all where it is
  /// format::kWholeUnit. Throws Fault::usage where blocks are not whole words of codes.
  BlockCodec(std::string_view name, Format format, std::size_t block, bool stochastic)
      : name_{name}, format_{format}, block_{block}, stochastic_{stochastic} {
    expect_valid(block % kAlign == 0, "a block must be a multiple of 32 elements, or of 4 of 8 bits each");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    if (gradient.empty()) return;
    const format::BlockLayout places = layout(gradient.size());
    auto* head = section<std::uint32_t>(payload);
    if constexpr (format::DrawsRotation<Format>) head[1] = format::draw_of(context.key, gradient.size());
    Format format = format::with_seed(format_, head);
    const Turn<format::Way::forward> turn{format};
    if constexpr (format::ScalesUnit<Format>) {
      format.scale_unit(largest_magnitude(queue, gradient, turn));
      head[0] = format::bits_of(format.unit);
      if (!format::is_finite(format.unit)) {
        std::memset(payload.data() + places.scales_offset(), 0, places.bytes() - places.scales_offset());
        return;
      }
    }
    auto* scales = section<Scale>(payload, places.scales_offset());
    std::memset(payload.data() + places.scales_end(), 0, places.codes_offset() - places.scales_end());
    format::Scaled<Scale> unit{};
    if (block_ == format::kWholeUnit) {
      unit = format.scaled(gradtool::largest_magnitude(queue, gradient));
      scales[0] = unit.stored;
    }
    each_tile(
        queue, gradient.size(),
        [&](std::size_t first, std::size_t last, Tile& tile) {
          const float* x = turn.of(gradient.data() + first, last - first, tile);
          if (block_ == format::kWholeUnit)
            tile.factors[0] = unit.factor;
          else
            detail::block_scales(format, x, last - first, block_, scales + first / block_, tile.factors.data());
        },
        [&](std::size_t first, std::size_t offset, std::size_t count, Tile& tile) {
          const float* x = turn.on() ? tile.values.data() : gradient.data() + first;
          if (stochastic_) host::draw_tile(context.key, first, count, tile.draws.data());
          std::byte* out = payload.data() + places.codes_offset() + first * kBits / 8;
          auto* codes = kBits == 8 ? reinterpret_cast<std::uint8_t*>(out) : tile.codes.data();
          detail::encode_blocks<Format>(x, offset, count, work_block(), tile.factors.data(),
                                        stochastic_ ? tile.draws.data() : nullptr, codes);
          if constexpr (format::DrawsRotation<Format>)
            correct(format, x, first, count, context.key, tile.factors.data(), scales + first / block_, codes);
          if constexpr (kBits == 8) {
            if (count % 4 != 0) std::memset(out + count, 0, 4 - count % 4);
          } else {
            host::write_codes<kBits>(codes, count, reinterpret_cast<std::uint32_t*>(out));
          }
        });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const format::BlockLayout places = layout(out.size());
    expect_length(name_, payload.size(), places.bytes());
    if (out.empty()) return;
    const Format format = format::with_head(format_, section<std::uint32_t>(payload));
    const Turn<format::Way::inverse> turn{format};
    const auto* scales = section<Scale>(payload, places.scales_offset());
    each_tile(
        queue, out.size(),
        [&](std::size_t first, std::size_t last, Tile& tile) {
          const bool whole = block_ == format::kWholeUnit;
          if (!detail::block_units(format, whole ? scales : scales + first / block_,
                                   whole ? 1 : (last - first + block_ - 1) / block_, tile.factors.data()))
            throw Error{Fault::data, std::string{name_} + " payload: the scale of a block is negative or not a number"};
        },
        [&](std::size_t first, std::size_t offset, std::size_t count, Tile& tile) {
          const std::byte* in = payload.data() + places.codes_offset() + first * kBits / 8;
          const auto* codes = kBits == 8 ? reinterpret_cast<const std::uint8_t*>(in) : tile.codes.data();
          if constexpr (kBits != 8)
            host::read_codes<kBits>(reinterpret_cast<const std::uint32_t*>(in), count, tile.codes.data());
          if (!turn.on()) {
            detail::decode_blocks<Format>(codes, offset, count, work_block(), tile.factors.data(), weight,
                                          out.data() + first);
            return;
          }
          detail::block_values<Format>(codes, count, block_, tile.factors.data(), tile.values.data());
          turn.of(tile.values.data(), count, tile);
          detail::add_values(tile.values.data(), count, weight, out.data() + first);
        });
  }

 protected:
  using Scale = typename Format::Scale;
  static constexpr std::uint32_t kBits = Format::Element::kBits;
  static_assert(kBits <= 8);
  static constexpr std::size_t kAlign = kBits == 8            ? 4
                                        : Format::kBlock == 0 ? format::kPackGroup
                                                              : std::min(Format::kBlock, format::kPackGroup);

  [[nodiscard]] format::BlockLayout layout(std::size_t n) const { return format::block_layout<Format>(n, block_); }
  [[nodiscard]] const Format& format() const { return format_; }
  [[nodiscard]] std::size_t block() const { return block_; }
  [[nodiscard]] bool stochastic() const { return stochastic_; }

  /// Changes the scales and codes of a tile of rotated elements, of which the first has number `first`, where a format
  /// that draws its rotation has more to do than others.
  virtual void correct(const Format& /*format*/, const float* /*x*/, std::size_t /*first*/, std::size_t /*count*/,
                       const format::DrawKey& /*key*/, const float* /*factors*/, Scale* /*scales*/,
                       std::uint8_t* /*codes*/) const {}

 private:
  /// Buffers of one thread for a tile of at most kBlockTile elements.
  struct Tile {
    alignas(64) std::array<std::uint32_t, detail::kBlockTile> draws;
    alignas(64) std::array<std::uint8_t, detail::kBlockTile> codes;
    alignas(64) std::array<float, format::Rotates<Format> ? detail::kBlockTile : 0> values;
    std::array<float, detail::kBlockTile / kAlign> factors;  ///< of the blocks of a span
  };

  /// The rotation of tiles, where the format has one.
  template <format::Way Direction, bool Rotates = format::Rotates<Format>>
  struct Turn {
    explicit Turn(const Format& /*format*/) {}
    [[nodiscard]] static constexpr bool on() { return false; }
    static const float* of(const float* x, std::size_t /*count*/, Tile& /*tile*/) { return x; }
  };
  template <format::Way Direction>
  class Turn<Direction, true> {
   public:
    explicit Turn(const Format& format) : factors_{format.rotation}, on_{format.rotation.on} {}
    [[nodiscard]] bool on() const { return on_; }
    /// The elements, or the tile's values as their rotated copy. They may be the tile's values themselves.
    const float* of(const float* x, std::size_t count, Tile& tile) const {
      if (!on_) return x;
      if (x != tile.values.data()) std::copy_n(x, count, tile.values.data());
      detail::rotate(factors_, tile.values.data(), count);
      return tile.values.data();
    }

   private:
    detail::RotationFactors<Direction, decltype(Format::rotation)> factors_;
    bool on_;
  };

  /// The largest magnitude of all elements, rotated.
  float largest_magnitude(Queue<Space::host> queue, HostView<const float> gradient,
                          const Turn<format::Way::forward>& turn) const {
    if (!turn.on()) return gradtool::largest_magnitude(queue, gradient);
    std::atomic<std::uint32_t> largest{0};
    each_tile(
        queue, gradient.size(), [](std::size_t, std::size_t, Tile&) {},
        [&](std::size_t first, std::size_t /*offset*/, std::size_t count, Tile& tile) {
          const float own = detail::largest_magnitude(turn.of(gradient.data() + first, count, tile), count);
          std::uint32_t seen = largest.load(std::memory_order_relaxed);
          while (format::bits_of(own) > seen &&
                 !largest.compare_exchange_weak(seen, format::bits_of(own), std::memory_order_relaxed)) {
          }
        });
    return format::float_of(largest.load(std::memory_order_relaxed));
  }

  /// Elements that the loops take for a block: a whole unit is worked on a tile at a time.
  [[nodiscard]] std::size_t work_block() const { return block_ == format::kWholeUnit ? detail::kBlockTile : block_; }

  /// Calls before(first, last, tile) for each span of whole blocks, then work(first, offset in the span, count, tile)
  /// for the tiles of the span, on any thread.
  template <class Before, class Work>
  void each_tile(Queue<Space::host> queue, std::size_t n, const Before& before, const Work& work) const {
    const std::size_t span = std::max(work_block(), detail::kBlockTile / work_block() * work_block());
    const std::size_t step = std::min(span, detail::kBlockTile);
    parallel_for(queue, n, span, 1 << 14, [&](std::size_t begin, std::size_t end) {
      Tile tile;
      for (std::size_t first = begin; first < end; first += span) {
        const std::size_t last = std::min(end, first + span);
        before(first, last, tile);
        for (std::size_t i = first; i < last; i += step) work(i, i - first, std::min(step, last - i), tile);
      }
    });
  }

  std::string_view name_;
  Format format_;
  std::size_t block_;
  bool stochastic_;
};

}  // namespace gradtool
