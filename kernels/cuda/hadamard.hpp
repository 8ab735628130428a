#pragma once

#include <cstdint>

#include "kernels/cuda/device_warp.hpp"

/// Hadamard transforms by one warp, with the additions of kernels/host/hadamard.hpp in their order. Element 32 k + lane
/// is x[k]. For .cu files.
namespace gradtool::cuda {

/// Shared memory for a warp, in floats; 16-byte aligned.
inline constexpr int kHadamardRoom = 32 * 33 + 4;

/// x := H32 x, in registers.
__device__ inline void hadamard_32(float (&x)[32]) {
#pragma unroll
  for (int h = 1; h < 32; h *= 2) {
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      if ((k & h) != 0) continue;
      const float sum = x[k] + x[k + h];
      const float difference = x[k] - x[k + h];
      x[k] = sum;
      x[k + h] = difference;
    }
  }
}

/// As host::hadamard_block: a block of 1024, transposed on the way.
__device__ inline void hadamard_1024(float (&x)[32], float* room) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  hadamard_32(x);
  __syncwarp();  // the room has been read
#pragma unroll
  for (int k = 0; k < 32; ++k) room[33 * k + lane] = x[k];
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 32; ++k) x[k] = room[33 * lane + k];
  hadamard_32(x);
}

/// As host::hadamard: a power of two below 1024, in natural order. What is not there stays as it is.
__device__ inline void hadamard_short(float (&x)[32], unsigned size, float* room) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 32; ++k) room[32 * k + lane] = x[k];
  for (unsigned h = 1; h < size; h *= 2) {
    __syncwarp();
    for (unsigned pair = lane; pair < size / 2; pair += schedule::kLanes) {
      float* at = room + pair / h * 2 * h + pair % h;
      const float sum = at[0] + at[h];
      const float difference = at[0] - at[h];
      at[0] = sum;
      at[h] = difference;
    }
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 32; ++k) x[k] = room[32 * k + lane];
}

/// A block rotates to and fro with the same transform, up to a factor of its size.
__device__ inline void rotate(float (&x)[32], unsigned size, float* room) {
  if (size == 1024) {
    hadamard_1024(x, room);
  } else {
    hadamard_short(x, size, room);
  }
}

}  // namespace gradtool::cuda
