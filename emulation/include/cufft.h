#pragma once

#include <cstddef>

#include "emulation/api.hpp"
#include "emulation/dialect.hpp"

// The part of cuFFT that gradtool uses, implemented with FFTW. Results may differ from cuFFT's by rounding.
using cufftHandle = int;
using cufftReal = float;
using cufftComplex = float2;
using cufftDoubleReal = double;
using cufftDoubleComplex = double2;
enum cufftType : int { CUFFT_R2C = 0x2a, CUFFT_C2R = 0x2c, CUFFT_C2C = 0x29, CUFFT_D2Z = 0x6a };
enum cufftResult : int {
  CUFFT_SUCCESS = 0,
  CUFFT_INVALID_PLAN = 1,
  CUFFT_ALLOC_FAILED = 2,
  CUFFT_INVALID_TYPE = 3,
  CUFFT_INVALID_VALUE = 4,
  CUFFT_INTERNAL_ERROR = 5,
  CUFFT_EXEC_FAILED = 6,
  CUFFT_SETUP_FAILED = 7,
  CUFFT_INVALID_SIZE = 8,
};
inline constexpr int CUFFT_FORWARD = -1;
inline constexpr int CUFFT_INVERSE = 1;

cufftResult cufftCreate(cufftHandle* plan);
cufftResult cufftDestroy(cufftHandle plan);
cufftResult cufftSetAutoAllocation(cufftHandle plan, int automatic);
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream);
cufftResult cufftSetWorkArea(cufftHandle plan, void* memory);
cufftResult cufftMakePlanMany64(cufftHandle plan, int rank, long long* lengths, long long* in_shape,
                                long long in_stride, long long in_distance, long long* out_shape, long long out_stride,
                                long long out_distance, cufftType type, long long batch, std::size_t* work_bytes);
cufftResult cufftExecR2C(cufftHandle plan, cufftReal* in, cufftComplex* out);
cufftResult cufftExecC2R(cufftHandle plan, cufftComplex* in, cufftReal* out);
cufftResult cufftExecC2C(cufftHandle plan, cufftComplex* in, cufftComplex* out, int direction);
/// A plan for one row in double precision.
cufftResult cufftExecD2Z(cufftHandle plan, cufftDoubleReal* in, cufftDoubleComplex* out);
