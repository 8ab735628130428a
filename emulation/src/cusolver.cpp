#include <vector>

#include "cusolverDn.h"
#include "emulation/launch.hpp"

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info);
__attribute__((weak)) void openblas_set_num_threads(int threads);
}
// NOLINTEND(readability-identifier-naming)

struct cusolverDnContext {
  cudaStream_t stream = nullptr;
};

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  *handle = new cusolverDnContext;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  delete handle;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDsyevd_bufferSize(cusolverDnHandle_t /*handle*/, cusolverEigMode_t /*mode*/,
                                             cublasFillMode_t /*uplo*/, int n, const double* /*a*/, int /*stride*/,
                                             const double* /*values*/, int* doubles) {
  *doubles = 1 + 6 * n + 2 * n * n;  // the size that LAPACK needs when it computes vectors
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDsyevd(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n,
                                  double* a, int stride, double* values, double* work, int doubles, int* info) {
  if (n < 1 || stride < n || doubles < 1 + 6 * n + 2 * n * n) return CUSOLVER_STATUS_INVALID_VALUE;
  emulation::enqueue(handle->stream, [=] {
    std::vector<int> integers(static_cast<std::size_t>(3 + 5 * n));
    const int integer_count = static_cast<int>(integers.size());
    int status = 0;
    dsyevd_(mode == CUSOLVER_EIG_MODE_VECTOR ? "V" : "N", uplo == CUBLAS_FILL_MODE_LOWER ? "L" : "U", &n, a, &stride,
            values, work, &doubles, integers.data(), &integer_count, &status);
    *info = status;
  });
  return CUSOLVER_STATUS_SUCCESS;
}
