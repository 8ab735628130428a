// The two products of a compressed step. Sixteen partial sums side by side, folded by halves, so that the bits do not
// depend on the instruction set.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/host/slice_basis.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kSteps = kBasisBlock / kLanes;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

#define GT_LOAD(lanes, from) std::memcpy(&(lanes), (from), sizeof(Lanes))

/// `J` components of `M` slices.
template <std::size_t M, std::size_t J>
GT_SIMD_CLONES void project(const float* basis, std::size_t blocks, std::size_t d, const float* x, float* y,
                            std::size_t y_stride) {
  Lanes sum[J][M] = {};
  for (std::size_t block = 0; block < blocks; ++block) {
    const float* u = basis + block * d * kBasisBlock;
    const float* in = x + block * kBasisBlock;
    for (std::size_t step = 0; step < kSteps; ++step) {
      Lanes slice[M];
      for (std::size_t m = 0; m < M; ++m) GT_LOAD(slice[m], in + m * kTile + step * kLanes);
      for (std::size_t j = 0; j < J; ++j) {
        Lanes component;
        GT_LOAD(component, u + j * kBasisBlock + step * kLanes);
        for (std::size_t m = 0; m < M; ++m) sum[j][m] += component * slice[m];
      }
    }
  }
  for (std::size_t j = 0; j < J; ++j) {
    for (std::size_t m = 0; m < M; ++m) {
      float lane[kLanes];
      std::memcpy(lane, &sum[j][m], sizeof lane);
      for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
      }
      y[m * y_stride + j] += lane[0];
    }
  }
}

template <std::size_t M>
void project_slices(const float* basis, std::size_t blocks, std::size_t d, const float* x, float* y,
                    std::size_t y_stride) {
  std::size_t j = 0;
  for (; j + 4 <= d; j += 4) project<M, 4>(basis + j * kBasisBlock, blocks, d, x, y + j, y_stride);
  for (; j < d; ++j) project<M, 1>(basis + j * kBasisBlock, blocks, d, x, y + j, y_stride);
}

template <std::size_t M>
GT_SIMD_CLONES void rebuild(const float* basis, std::size_t blocks, std::size_t d, const float* y, std::size_t y_stride,
                            float* x) {
  for (std::size_t block = 0; block < blocks; ++block) {
    const float* u = basis + block * d * kBasisBlock;
    Lanes sum[M][kSteps] = {};
    for (std::size_t j = 0; j < d; ++j, u += kBasisBlock) {
      Lanes component[kSteps];
      for (std::size_t step = 0; step < kSteps; ++step) GT_LOAD(component[step], u + step * kLanes);
      for (std::size_t m = 0; m < M; ++m) {
        const float weight = y[m * y_stride + j];
        for (std::size_t step = 0; step < kSteps; ++step) sum[m][step] += component[step] * weight;
      }
    }
    for (std::size_t m = 0; m < M; ++m) {
      for (std::size_t step = 0; step < kSteps; ++step)
        std::memcpy(x + m * kTile + block * kBasisBlock + step * kLanes, &sum[m][step], sizeof(Lanes));
    }
  }
}

#undef GT_LOAD

}  // namespace

void project_tile(const float* basis, std::size_t blocks, std::size_t d, const float* x, std::size_t slices, float* y,
                  std::size_t y_stride) {
  switch (slices) {
    case 1:
      return project_slices<1>(basis, blocks, d, x, y, y_stride);
    case 2:
      return project_slices<2>(basis, blocks, d, x, y, y_stride);
    case 3:
      return project_slices<3>(basis, blocks, d, x, y, y_stride);
    default:
      return project_slices<4>(basis, blocks, d, x, y, y_stride);
  }
}

void rebuild_tile(const float* basis, std::size_t blocks, std::size_t d, const float* y, std::size_t y_stride,
                  std::size_t slices, float* x) {
  switch (slices) {
    case 1:
      return rebuild<1>(basis, blocks, d, y, y_stride, x);
    case 2:
      return rebuild<2>(basis, blocks, d, y, y_stride, x);
    case 3:
      return rebuild<3>(basis, blocks, d, y, y_stride, x);
    default:
      return rebuild<4>(basis, blocks, d, y, y_stride, x);
  }
}

}  // namespace gradtool::host
