#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// All that a random draw depends on. There is no generator state: element i of tensor `tensor` at step `step` on rank
/// `rank` draws the same number on every processor, in any order.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t rank = 0;
  std::uint32_t tensor = 0;
};

/// Four draws of 32 bits.
struct Draws {
  std::uint32_t bits[4];
};

/// The upper and lower 32 bits of a product.
struct Product {
  std::uint32_t high, low;
};
GT_HD inline Product product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return {__umulhi(a, b), a * b};  // the compiler would carry a 64-bit product through 64-bit operations
#else
  const std::uint64_t whole = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(whole >> 32), static_cast<std::uint32_t>(whole)};
#endif
}

/// Philox-4x32-10 (Salmon et al., SC'11) for a raw counter and key.
GT_HD inline Draws philox(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint32_t k0,
                          std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const Product p0 = product(0xD2511F53u, c0);
    const Product p1 = product(0xCD9E8D57u, c2);
    c0 = p1.high ^ c1 ^ k0;
    c2 = p0.high ^ c3 ^ k1;
    c1 = p1.low;
    c3 = p0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The draws of elements 4*index .. 4*index+3. Counter: (index low, index high ^ tensor << 8, step, rank); key: seed.
/// Indices stay below 2^40, so the tensor number never meets the high bits of an index.
GT_HD inline Draws draw4(const DrawKey& key, std::uint64_t index) {
  return philox(static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32) ^ (key.tensor << 8),
                key.step, key.rank, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
}

/// draw4 of an index below 2^32, that is of elements below 2^34. Their counters have all but the lowest word in common,
/// so that a GPU's threads compute two of the twenty products once for many calls.
GT_HD inline Draws draw4_low(const DrawKey& key, std::uint32_t index) {
  return philox(index, key.tensor << 8, key.step, key.rank, static_cast<std::uint32_t>(key.seed),
                static_cast<std::uint32_t>(key.seed >> 32));
}
inline constexpr std::uint64_t kLowElements = std::uint64_t{1} << 34;

/// The key of draws that all ranks share, which is that of rank 2^32 - 1: no rank has that number.
GT_HD inline DrawKey shared_by_ranks(DrawKey key) {
  key.rank = 0xffffffffu;
  return key;
}

/// Uniform on [0, 1) with 24 bits: exact in float, and never 1.
GT_HD inline float uniform(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Element `index` of a row of standard normal numbers, by the method of Box and Muller: sqrt(-2 ln(1 - u)) times
/// cos(2 pi v) for even indices and sin(2 pi v) for odd ones, where u and v are the uniform draws of elements
/// 2 floor(index/2) and 2 floor(index/2) + 1 of `key`. The functions are the processor's own, so a CPU and a GPU agree
/// to some 10^-15 before the result is rounded to float32, and ranks on processors of one kind draw equal bits.
GT_HD inline float normal(const DrawKey& key, std::uint64_t index) {
  constexpr double kTurn = 2.0 * 3.14159265358979324 * 0x1p-24;  // the angle of one of the 2^24 values of a draw
  const Draws draws = draw4(key, index / 4);
  const bool second = index / 2 % 2 != 0;
  const double u = static_cast<double>((second ? draws.bits[2] : draws.bits[0]) >> 8) * 0x1p-24;
  const double angle = kTurn * static_cast<double>((second ? draws.bits[3] : draws.bits[1]) >> 8);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - u));
  return static_cast<float>(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace gradtool::format

namespace gradtool::host {

/// Elements of a group. Draws are made a group at a time, and buffers for them hold a multiple of it.
inline constexpr std::size_t kDrawGroup = 128;

/// out[i] := the draw of element first + i (format::draw4) for i below `count` rounded up to a multiple of kDrawGroup.
/// `first` is a multiple of 4. Draws made ahead for a tile that fits the first-level cache cost a codec less than draws
/// inside its own loop, because their multiplications fill whole vectors.
void draw_tile(const format::DrawKey& key, std::uint64_t first, std::size_t count, std::uint32_t* out);

/// The implementations of draw_tile that this processor can run, the one in use first. For tests: all give the same
/// draws.
using DrawFill = void (*)(const format::DrawKey&, std::uint64_t, std::size_t, std::uint32_t*);
[[nodiscard]] std::span<const DrawFill> draw_fills();

}  // namespace gradtool::host
