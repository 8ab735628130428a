#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "emulation/dialect.hpp"

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const unsigned s = shift & 31u;
  return s == 0 ? low : high << (32 - s) | low >> s;
}
/// Byte i of the result is the byte of y:x, x being the lower four, that the lower three bits of nibble i name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t from = std::uint64_t{y} << 32 | x;
  unsigned to = 0;
  for (unsigned i = 0; i < 4; ++i) to |= static_cast<unsigned>(from >> (selector >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  return to;
}

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}

#define GT_EMULATED_MIN_MAX(type)   \
  inline type min(type a, type b) { \
    return b < a ? b : a;           \
  }                                 \
  inline type max(type a, type b) { \
    return a < b ? b : a;           \
  }
GT_EMULATED_MIN_MAX(int)
GT_EMULATED_MIN_MAX(unsigned)
GT_EMULATED_MIN_MAX(long)
GT_EMULATED_MIN_MAX(unsigned long)
GT_EMULATED_MIN_MAX(long long)
GT_EMULATED_MIN_MAX(unsigned long long)
#undef GT_EMULATED_MIN_MAX
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}
