#include "kernels/host/hadamard.hpp"

#include <array>

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

/// X := H32 X.
inline void columns(float* x) {
  four_rows(x, 1);
  four_rows(x, 4);
  for (std::size_t row = 0; row < kSide / 2; ++row) {
    float* a = x + kSide * row;
    float* b = a + kSide * kSide / 2;
    for (std::size_t l = 0; l < kSide; ++l) {
      const float sum = a[l] + b[l];
      const float difference = a[l] - b[l];
      a[l] = sum;
      b[l] = difference;
    }
  }
}

}  // namespace

GT_SIMD_CLONES void hadamard_block(float* x) {
  alignas(64) std::array<float, kHadamardBlock> t;
  columns(x);
  for (std::size_t r = 0; r < kSide; ++r) {
    for (std::size_t c = 0; c < kSide; ++c) t[kSide * c + r] = x[kSide * r + c];
  }
  columns(t.data());
  for (std::size_t i = 0; i < kHadamardBlock; ++i) x[i] = t[i];
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
