#pragma once

#include <cstddef>
#include <cstring>

namespace gradtool::host {

/// A vector of `Bytes` bytes. GCC 12 drops the attribute of a member type whose element does not depend on a template.
template <class T, std::size_t Bytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(Bytes)));  // NOLINT(modernize-use-using): `using` drops it too
};
template <class T, std::size_t Bytes>
using Vector = typename VectorOf<T, Bytes>::Type;

/// Sixteen float32 numbers side by side, in vector registers of `Bytes` bytes. A vector type wider than the registers
/// would live in memory, where each sum waits for its store: that made codecs up to 8 times slower (reports/cpu). The
/// lanes are sixteen for all widths, so the bits of results do not depend on it.
template <std::size_t Bytes>
struct Lanes {
  static constexpr std::size_t kCount = 16;
  static constexpr std::size_t kVectors = kCount * sizeof(float) / Bytes;

  Vector<float, Bytes> part[kVectors] = {};

  // Unrolled at once, and copied vector by vector: else the compiler keeps the array in memory.
  [[gnu::always_inline]] void load(const float* from) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) std::memcpy(&part[i], from + i * Bytes / sizeof(float), Bytes);
  }
  [[gnu::always_inline]] void store(float* to) const {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) std::memcpy(to + i * Bytes / sizeof(float), &part[i], Bytes);
  }
  [[gnu::always_inline]] void add_product(const Lanes& a, const Lanes& b) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) part[i] += a.part[i] * b.part[i];
  }
  [[gnu::always_inline]] void add_product(const Lanes& a, float b) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) part[i] += a.part[i] * b;
  }
  /// The sum of the lanes, folded by halves.
  [[gnu::always_inline]] float sum() const {
    float lane[kCount] = {};
    store(lane);
    for (std::size_t half = kCount / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0];
  }
};

#if defined(__x86_64__) && !defined(__clang__)
#define GT_HAS_VECTOR_TARGETS
template <class Body, class... Arguments>
__attribute__((target("arch=x86-64-v4"))) void run_with_512_bits(Arguments... arguments) {
  Body::template run<64>(arguments...);
}
template <class Body, class... Arguments>
__attribute__((target("arch=x86-64-v3"))) void run_with_256_bits(Arguments... arguments) {
  Body::template run<32>(arguments...);
}
#endif

/// Calls Body::run<Bytes>(arguments...), which must always be inlined, compiled for this processor's vector registers
/// of so many bytes.
template <class Body, class... Arguments>
void run_with_vectors(Arguments... arguments) {
#ifdef GT_HAS_VECTOR_TARGETS
  static const bool has_512 = __builtin_cpu_supports("x86-64-v4"), has_256 = __builtin_cpu_supports("x86-64-v3");
  if (has_512) return run_with_512_bits<Body>(arguments...);
  if (has_256) return run_with_256_bits<Body>(arguments...);
#endif
  Body::template run<16>(arguments...);
}

}  // namespace gradtool::host
