#include "kernels/blas.hpp"

#include <sys/mman.h>

#include <atomic>
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

constexpr std::size_t kBlasRoom = std::size_t{136} << 20;  ///< OpenBLAS's buffer, and something beside it
std::atomic<int> calls_under_way{0}, most_at_once{0};
std::mutex first_of_its_number;  ///< held while the library may take memory

int as_int(std::size_t value) {
  expect_valid(value <= 0x7fffffff, "a matrix is too large for BLAS");
  return static_cast<int>(value);
}

/// out[outputs, length] := weights[outputs, count] rows[count, length], all by rows; where `transposed`, `rows` is
/// [length, count]. By `gemm`, to which a matrix by rows is a transposed one.
template <class Value, class Gemm>
void multiply_by(const Gemm& gemm, const Value* weights, const Value* rows, std::size_t outputs, std::size_t count,
                 std::size_t length, bool transposed, Value* out) {
  const BlasCall call;
  const int m = as_int(length);
  const int n = as_int(outputs);
  const int k = as_int(count);
  const Value one = 1, zero = 0;
  gemm(transposed ? "T" : "N", "N", &m, &n, &k, &one, rows, transposed ? &k : &m, weights, &k, &zero, out, &m);
}

}  // namespace

BlasCall::BlasCall(Threads threads) {
  static std::once_flag once;
  if (openblas_set_num_threads == nullptr) return;
  if (threads == Threads::one) std::call_once(once, [] { openblas_set_num_threads(1); });
  if (++calls_under_way <= most_at_once) return;
  alone_ = std::unique_lock{first_of_its_number};
  const int number = calls_under_way;
  if (number <= most_at_once) {
    alone_.unlock();
    return;
  }
  void* const room = mmap(nullptr, kBlasRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    --calls_under_way;
    throw Error{Fault::backend,
                "out of memory: OpenBLAS takes 128 MiB of address space for each thread, which are not there; raise "
                "`ulimit -v`, or use fewer workers and threads"};
  }
  munmap(room, kBlasRoom);
  most_at_once = number;
}

BlasCall::~BlasCall() {
  if (openblas_set_num_threads != nullptr) --calls_under_way;
}

void add_gram(const double* rows, std::size_t count, std::size_t length, double* gram) {
  const BlasCall call;
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
