#include "cublas_v2.h"

#include <algorithm>
#include <cstring>

#include "emulation/launch.hpp"

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
__attribute__((weak)) void openblas_set_num_threads(int threads);
}
// NOLINTEND(readability-identifier-naming)

struct cublasContext {
  cudaStream_t stream = nullptr;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
};

namespace {

template <class T>
struct Matrices {
  const T *a, *b;
  T* c;
};

/// The library would allocate memory by itself if the caller provided no workspace; gradtool must always provide one.
/// `matrices` says where they are when the product is computed.
template <class T, class Product, class Find>
cublasStatus_t multiply(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                        T alpha, int a_stride, int b_stride, T beta, int c_stride, Product product, Find matrices) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || a_stride < std::max(1, op_a == CUBLAS_OP_N ? m : k) ||
      b_stride < std::max(1, op_b == CUBLAS_OP_N ? k : n) || c_stride < std::max(1, m) || handle->memory == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  auto* const memory = handle->memory;
  const std::size_t bytes = std::min<std::size_t>(handle->bytes, 4096);
  emulation::enqueue(handle->stream, [=] {
    const Matrices<T> at = matrices();
    std::memset(memory, 0xC7, bytes);  // the workspace may be overwritten by every call
    if (beta == T{0}) {
      for (int j = 0; j < n; ++j) std::fill_n(at.c + static_cast<std::ptrdiff_t>(j) * c_stride, m, T{0});
    }
    product(op_a == CUBLAS_OP_N ? "N" : "T", op_b == CUBLAS_OP_N ? "N" : "T", &m, &n, &k, &alpha, at.a, &a_stride, at.b,
            &b_stride, &beta, at.c, &c_stride);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "a parameter was refused";
}
cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->memory = nullptr;
  handle->bytes = 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* memory, std::size_t bytes) {
  if (reinterpret_cast<std::size_t>(memory) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  handle->memory = static_cast<std::byte*>(memory);
  handle->bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t /*handle*/, cublasMath_t /*mode*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode(cublasHandle_t /*handle*/, cublasPointerMode_t /*mode*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const float* alpha, const float* a, int a_stride, const float* b, int b_stride,
                           const float* beta, float* c, int c_stride) {
  return multiply(handle, op_a, op_b, m, n, k, *alpha, a_stride, b_stride, *beta, c_stride, sgemm_, [=] {
    return Matrices<float>{a, b, c};
  });
}
cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const double* alpha, const double* a, int a_stride, const double* b, int b_stride,
                           const double* beta, double* c, int c_stride) {
  return multiply(handle, op_a, op_b, m, n, k, *alpha, a_stride, b_stride, *beta, c_stride, dgemm_, [=] {
    return Matrices<double>{a, b, c};
  });
}

cublasStatus_t cublasSgemmGroupedBatched(cublasHandle_t handle, const cublasOperation_t op_a[],
                                         const cublasOperation_t op_b[], const int m[], const int n[], const int k[],
                                         const float alpha[], const float* const a[], const int a_stride[],
                                         const float* const b[], const int b_stride[], const float beta[],
                                         float* const c[], const int c_stride[], int groups, const int group_size[]) {
  int at = 0;
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < group_size[g]; ++i, ++at) {
      const cublasStatus_t status = multiply(handle, op_a[g], op_b[g], m[g], n[g], k[g], alpha[g], a_stride[g],
                                             b_stride[g], beta[g], c_stride[g], sgemm_, [=] {
                                               return Matrices<float>{a[at], b[at], c[at]};
                                             });
      if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
