#pragma once

#include <cstddef>
#include <cstdint>

// A .cu file that must tell an emulated build from a plain C++ one.
#define GT_EMULATED_CUDA 1

#define __host__
#define __device__
#define __global__
// Only one block runs at a time in the whole process, so a shared variable of a block can be one static variable.
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// The indices of the thread that runs at present.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// Vector types that a GPU moves in one access.
#define GT_EMULATED_VECTORS(type, name, bytes1, bytes2, bytes4)   \
  struct alignas(bytes1) name##1 {                                \
    type x;                                                       \
  };                                                              \
  struct alignas(bytes2) name##2 {                                \
    type x, y;                                                    \
  };                                                              \
  struct alignas(bytes4) name##4 {                                \
    type x, y, z, w;                                              \
  };                                                              \
  inline name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                          \
  }
GT_EMULATED_VECTORS(std::int8_t, char, 1, 2, 4)
GT_EMULATED_VECTORS(std::uint8_t, uchar, 1, 2, 4)
GT_EMULATED_VECTORS(std::int16_t, short, 2, 4, 8)
GT_EMULATED_VECTORS(std::uint16_t, ushort, 2, 4, 8)
GT_EMULATED_VECTORS(int, int, 4, 8, 16)
GT_EMULATED_VECTORS(unsigned, uint, 4, 8, 16)
GT_EMULATED_VECTORS(float, float, 4, 8, 16)
GT_EMULATED_VECTORS(long long, longlong, 8, 16, 16)
GT_EMULATED_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
GT_EMULATED_VECTORS(double, double, 8, 16, 16)
#undef GT_EMULATED_VECTORS
