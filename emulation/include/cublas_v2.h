#pragma once

#include <cstddef>

#include "emulation/api.hpp"

#define CUBLAS_VERSION 120500

// The part of cuBLAS that gradtool uses, implemented with OpenBLAS. Sums have another order than on a GPU.
struct cublasContext;
using cublasHandle_t = cublasContext*;
enum cublasStatus_t : int {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
};
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasMath_t : int { CUBLAS_DEFAULT_MATH = 0 };
enum cublasPointerMode_t : int { CUBLAS_POINTER_MODE_HOST = 0 };

const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
/// Forgets the workspace that was set before, as cuBLAS does.
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* memory, std::size_t bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode);
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const float* alpha, const float* a, int a_stride, const float* b, int b_stride,
                           const float* beta, float* c, int c_stride);
cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const double* alpha, const double* a, int a_stride, const double* b, int b_stride,
                           const double* beta, double* c, int c_stride);
/// Arrays of matrices lie in the GPU's memory and are read when the products are computed, all others at the call.
cublasStatus_t cublasSgemmGroupedBatched(cublasHandle_t handle, const cublasOperation_t op_a[],
                                         const cublasOperation_t op_b[], const int m[], const int n[], const int k[],
                                         const float alpha[], const float* const a[], const int a_stride[],
                                         const float* const b[], const int b_stride[], const float beta[],
                                         float* const c[], const int c_stride[], int groups, const int group_size[]);
