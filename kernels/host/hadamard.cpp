#include "kernels/host/hadamard.hpp"

#include <array>
#include <cstring>

#include "kernels/law/hd.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kSide = 32;

/// Two stages of butterflies between rows that are h, 2h and 3h apart.
inline void four_rows(float* x, std::size_t h) {
  for (std::size_t base = 0; base < kSide; base += 4 * h) {
    for (std::size_t row = base; row < base + h; ++row) {
      float* a = x + kSide * row;
      for (std::size_t l = 0; l < kSide; ++l) {
        float* at = a + l;
        const float s0 = at[0] + at[kSide * h];
        const float d0 = at[0] - at[kSide * h];
        const float s1 = at[2 * kSide * h] + at[3 * kSide * h];
        const float d1 = at[2 * kSide * h] - at[3 * kSide * h];
        at[0] = s0 + s1;
        at[kSide * h] = d0 + d1;
        at[2 * kSide * h] = s0 - s1;
        at[3 * kSide * h] = d0 - d1;
      }
    }
  }
}

/// out := H32 X; uses up X.
inline void columns(float* __restrict x, float* __restrict out) {
  four_rows(x, 1);
  four_rows(x, 4);
  constexpr std::size_t kHalf = kHadamardBlock / 2;
  for (std::size_t i = 0; i < kHalf; ++i) {
    out[i] = x[i] + x[kHalf + i];
    out[kHalf + i] = x[i] - x[kHalf + i];
  }
}

/// 32 by 32. Compilers move one number at a time unless they are shown the shuffles of a 4 by 4 corner.
inline void transpose(const float* __restrict from, float* __restrict to) {
#if defined(__GNUC__) && __has_builtin(__builtin_shufflevector)
  using Four = float __attribute__((vector_size(16)));
  for (std::size_t r = 0; r < kSide; r += 4) {
    for (std::size_t c = 0; c < kSide; c += 4) {
      std::array<Four, 4> in;
      for (std::size_t i = 0; i < 4; ++i) std::memcpy(&in[i], from + kSide * (r + i) + c, sizeof(Four));
      const Four low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const Four low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const Four high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      const std::array<Four, 4> out{
          __builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
          __builtin_shufflevector(high01, high23, 0, 1, 4, 5), __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
      for (std::size_t i = 0; i < 4; ++i) std::memcpy(to + kSide * (c + i) + r, &out[i], sizeof(Four));
    }
  }
#else
  for (std::size_t r = 0; r < kSide; ++r) {
    for (std::size_t c = 0; c < kSide; ++c) to[kSide * c + r] = from[kSide * r + c];
  }
#endif
}

}  // namespace

GT_SIMD_CLONES void hadamard_block(float* x) {
  alignas(64) std::array<float, kHadamardBlock> half;
  alignas(64) std::array<float, kHadamardBlock> transposed;
  columns(x, half.data());
  transpose(half.data(), transposed.data());
  columns(transposed.data(), x);
}

void hadamard(float* x, std::size_t size) {
  for (std::size_t h = 1; h < size; h *= 2) {
    for (std::size_t base = 0; base < size; base += 2 * h) {
      for (std::size_t i = base; i < base + h; ++i) {
        const float sum = x[i] + x[i + h];
        const float difference = x[i] - x[i + h];
        x[i] = sum;
        x[i + h] = difference;
      }
    }
  }
}

}  // namespace gradtool::host
