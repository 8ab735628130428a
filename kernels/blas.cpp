#include "kernels/blas.hpp"

#include <mutex>

#include "lib/core/error.hpp"

// The libraries' own calling convention: column-major, 32-bit integers, everything by address.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void dsyrk_(const char* uplo, const char* trans, const int* n, const int* k, const double* alpha, const double* a,
            const int* lda, const double* beta, double* c, const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
// OpenBLAS's; other libraries have their own ways.
__attribute__((weak)) void openblas_set_num_threads(int threads);
}
// NOLINTEND(readability-identifier-naming)

namespace gradtool::host {
namespace {

int as_int(std::size_t value) {
  expect_valid(value <= 0x7fffffff, "a matrix is too large for BLAS");
  return static_cast<int>(value);
}

/// out[outputs, length] := weights[outputs, count] rows[count, length], all by rows; where `transposed`, `rows` is
/// [length, count]. By `gemm`, to which a matrix by rows is a transposed one.
template <class Value, class Gemm>
void multiply_by(const Gemm& gemm, const Value* weights, const Value* rows, std::size_t outputs, std::size_t count,
                 std::size_t length, bool transposed, Value* out) {
  use_one_blas_thread();
  const int m = as_int(length);
  const int n = as_int(outputs);
  const int k = as_int(count);
  const Value one = 1, zero = 0;
  gemm(transposed ? "T" : "N", "N", &m, &n, &k, &one, rows, transposed ? &k : &m, weights, &k, &zero, out, &m);
}

}  // namespace

void use_one_blas_thread() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  });
}

void add_gram(const double* rows, std::size_t count, std::size_t length, double* gram) {
  use_one_blas_thread();
  const int n = as_int(count);
  const int k = as_int(length);
  const double one = 1.0;
  dsyrk_("L", "T", &n, &k, &one, rows, &k, &one, gram, &n);  // a row-major matrix is a transposed one
}

void multiply(const double* weights, const double* rows, std::size_t outputs, std::size_t count, std::size_t length,
              double* out) {
  multiply_by(dgemm_, weights, rows, outputs, count, length, false, out);
}
void multiply(const float* weights, const float* rows, std::size_t outputs, std::size_t count, std::size_t length,
              float* out) {
  multiply_by(sgemm_, weights, rows, outputs, count, length, false, out);
}
void multiply_transposed(const float* weights, const float* rows, std::size_t outputs, std::size_t length,
                         std::size_t count, float* out) {
  multiply_by(sgemm_, weights, rows, outputs, length, count, true, out);
}

}  // namespace gradtool::host
