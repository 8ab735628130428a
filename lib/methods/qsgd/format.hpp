#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bit_stream.hpp"
#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"

namespace gradtool::format {

/// QSGD (Alistarh et al., 2017, section 3.1) on one bucket with norm N and s levels: |x| lies between levels l/s N and
/// (l+1)/s N and is rounded to one of them so that the expectation is |x|. A code is the level, with the sign above it.
struct Qsgd {
  std::uint32_t bits;    ///< of an element with its sign: 2 to 8
  std::uint32_t levels;  ///< s = 2^(bits-1) - 1

  GT_HD static constexpr Qsgd with_bits(std::uint32_t bits) { return {bits, (1u << (bits - 1)) - 1u}; }

  /// The norm that is stored for a bucket: 0 where it is so small that s/N would overflow, in which case zeros are
  /// sent; NaN where an element is not finite.
  GT_HD static float stored_norm(float norm) {
    if (!(norm <= 0x1.fffffep127f)) return quiet_nan();
    return norm < kSmallestOfBlock ? 0.0f : norm;
  }
  /// s/N; 0 for a bucket whose stored norm is 0 or NaN.
  GT_HD float encode_factor(float stored) const {
    return stored >= kSmallestOfBlock ? static_cast<float>(levels) / stored : 0.0f;
  }
  /// N/s, the value of one level.
  GT_HD float decode_factor(float stored) const { return stored / static_cast<float>(levels); }

  /// The code of x. `u` is uniform on [0, 1), so that floor(a + u) is the upper level with probability a - floor(a).
  GT_HD std::uint32_t encode(float factor, float x, float u) const {
    const float magnitude = float_of(bits_of(x) & 0x7fffffffu);
    // The conversion truncates, which is floor for a positive number. Rounding of s/N may lift the sum past s.
    const float level = magnitude * factor + u;
#if defined(__CUDA_ARCH__)
    const std::uint32_t whole = __float2uint_rz(level);  // 0 for NaN, which stands for an infinity times a factor of 0
#else
    const auto whole = static_cast<std::uint32_t>(static_cast<std::int32_t>(level < 255.0f ? level : 0.0f));
#endif
    const std::uint32_t code = whole < levels ? whole : levels;
    return code | bits_of(x) >> 31 << (bits - 1);
  }

  GT_HD float decode(float factor, std::uint32_t code) const {
    const float magnitude = static_cast<float>(static_cast<std::int32_t>(code & levels)) * factor;
    return float_of(bits_of(magnitude) ^ (code >> (bits - 1) & 1u) << 31);
  }
};

/// QSGD as a block format (kernels/block_format.hpp): buckets are blocks, and the stored norm is the scale.
template <std::uint32_t Bits>
struct QsgdFormat {
  using Scale = float;
  static constexpr std::size_t kBlock = 0;

  struct Element {
    static constexpr std::uint32_t kBits = Bits;

    GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
      constexpr Qsgd quantiser = Qsgd::with_bits(Bits);
      return quantiser.encode(factor, x, uniform(draw));
    }
    GT_HD static float decode(std::uint32_t code) {
      constexpr Qsgd quantiser = Qsgd::with_bits(Bits);
      return quantiser.decode(1.0f, code);
    }
  };

  bool l2 = false;  ///< norm=l2 instead of norm=max

  GT_HD static Scaled<Scale> scaled(float norm) {
    constexpr Qsgd quantiser = Qsgd::with_bits(Bits);
    const float stored = Qsgd::stored_norm(norm);
    return {stored, quantiser.encode_factor(stored)};
  }
  GT_HD static float decode_factor(Scale norm) {
    constexpr Qsgd quantiser = Qsgd::with_bits(Bits);
    return quantiser.decode_factor(norm);
  }
};

/// The layout of a qsgd payload with code=elias: its own size (8 bytes), ceil(n/bucket) float32 norms, the number of
/// bits in each part's stream (4 bytes each), and the streams, each padded to whole words. A part is several whole
/// buckets, so that parts can be encoded and decoded side by side.
struct QsgdStreams {
  std::size_t n;
  std::size_t bucket;    ///< a multiple of 32
  std::uint32_t levels;  ///< the largest level

  /// Elements of a part of small buckets, at most.
  static constexpr std::size_t kPart = 1 << 14;
  /// Elements of every part but the last.
  [[nodiscard]] GT_HD std::size_t part() const { return bucket > kPart ? bucket : kPart / bucket * bucket; }
  [[nodiscard]] GT_HD std::size_t parts() const { return (n + part() - 1) / part(); }
  [[nodiscard]] GT_HD std::size_t buckets() const { return (n + bucket - 1) / bucket; }
  [[nodiscard]] GT_HD static std::size_t norms_offset() { return sizeof(std::uint64_t); }
  [[nodiscard]] GT_HD std::size_t bits_offset() const { return norms_offset() + 4 * buckets(); }
  [[nodiscard]] GT_HD std::size_t streams_offset() const { return bits_offset() + 4 * parts(); }
  [[nodiscard]] GT_HD static std::size_t stream_bytes(std::uint32_t bits) { return (std::size_t{bits} + 31) / 32 * 4; }
  /// The longest stream: every element is sent with a bit for its gap, its sign, and the largest level. No stream is
  /// longer, because a gap of g > 1 costs at most g times what a gap of one and the elements that it skips would cost.
  [[nodiscard]] GT_HD std::size_t slot_bytes() const {
    return stream_bytes(static_cast<std::uint32_t>(part() * (2 + elias_delta_bits(levels))));
  }
  [[nodiscard]] GT_HD std::size_t most_bytes() const { return streams_offset() + parts() * slot_bytes(); }
};

/// Calls f.operator()<Bits>() for the given number of bits, 2 to 8.
template <std::uint32_t Bits = 2, class F>
void with_qsgd_bits(std::uint32_t bits, const F& f) {
  if (bits == Bits) return f.template operator()<Bits>();
  if constexpr (Bits < 8) with_qsgd_bits<Bits + 1>(bits, f);
}

}  // namespace gradtool::format
