#pragma once

#include <bit>
#include <cstdint>

#include "kernels/law/hd.hpp"

/// Elias delta codes (Elias 1975) as streams of bits write them: with N = floor(log2 x) and L = floor(log2(N + 1)),
/// L zeros, a one, the low L bits of N + 1, the low N bits of x; numbers of several bits start with their lowest.
namespace gradtool::law {

/// floor(log2 x), x >= 1.
GT_HD inline unsigned log2_floor(std::uint32_t x) {
#if defined(__CUDA_ARCH__)
  return 31u - static_cast<unsigned>(__clz(static_cast<int>(x)));
#else
  return static_cast<unsigned>(std::bit_width(x)) - 1u;
#endif
}

/// The longest code: that of 2^31 and more.
inline constexpr unsigned kEliasLongest = 42;

struct EliasCode {
  std::uint64_t bits = 0;
  unsigned count = 0;  ///< of bits; those above are zero
};

/// The code of x >= 1.
GT_HD inline EliasCode elias_delta(std::uint32_t x) {
  const unsigned n = log2_floor(x);
  const unsigned l = log2_floor(n + 1);
  const std::uint64_t length = (std::uint64_t{1} << l) | (n + 1 - (std::uint64_t{1} << l)) << (l + 1);
  return {length | (x - (std::uint64_t{1} << n)) << (2 * l + 1), 2 * l + 1 + n};
}
GT_HD inline unsigned elias_delta_bits(std::uint32_t x) {
  const unsigned n = log2_floor(x);
  return n + 2 * log2_floor(n + 1) + 1;
}

struct EliasFront {
  std::uint32_t value = 0;  ///< 0 where the bits are no code of a number below 2^32
  unsigned count = 1;       ///< of its bits
};

/// What a window of at least kEliasLongest bits begins with.
GT_HD inline EliasFront elias_delta_front(std::uint64_t window) {
  const std::uint32_t low = static_cast<std::uint32_t>(window & 0xfffu) | 0x800u;
  const unsigned l = log2_floor(low & (0u - low));
  if (l > 5) return {};
  const unsigned n = (1u << l) + (static_cast<unsigned>(window >> (l + 1)) & ((1u << l) - 1u)) - 1u;
  if (n > 31) return {};
  const std::uint64_t below = window >> (2 * l + 1) & ((std::uint64_t{1} << n) - 1u);
  return {static_cast<std::uint32_t>((std::uint64_t{1} << n) + below), 2 * l + 1 + n};
}

}  // namespace gradtool::law
