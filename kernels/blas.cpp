#include "kernels/blas.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

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
__attribute__((weak)) void* blas_memory_alloc(int unused);
__attribute__((weak)) void blas_memory_free(void* buffer);
}
// NOLINTEND(readability-identifier-naming)

namespace gradtool::host {
namespace {

/// The buffers that OpenBLAS has, and the calls that use them.
class Buffers {
 public:
  void enter() {
    std::unique_lock lock{mutex_};
    for (;;) {
      left_.wait(lock, [&] { return !growing_ && (running_ < count_ || !full_); });
      if (running_ < count_) break;
      growing_ = true;
      left_.wait(lock, [&] { return running_ == 0; });
      full_ = !grow() || count_ >= std::min<std::size_t>(kMost, std::thread::hardware_concurrency());
      growing_ = false;
      left_.notify_all();
      if (count_ > 0) continue;
      full_ = false;  // another call may find room
      throw Error{Fault::backend,
                  "out of memory: OpenBLAS takes 128 MiB of address space, which are not there; raise `ulimit -v`, or "
                  "use fewer workers"};
    }
    ++running_;
  }
  void leave() {
    const std::lock_guard lock{mutex_};
    --running_;
    left_.notify_all();
  }

 private:
  /// Makes OpenBLAS take one buffer more than it has, none of which is in use. False where there is no room.
  bool grow() {
    constexpr std::size_t kRoom = std::size_t{136} << 20;  // a buffer, and something beside it
    void* const room = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return false;
    munmap(room, kRoom);
    ++count_;
    if (blas_memory_alloc == nullptr) return true;
    std::array<void*, kMost> all{};
    for (std::size_t i = 0; i < count_; ++i) all[i] = blas_memory_alloc(0);
    for (std::size_t i = 0; i < count_; ++i) blas_memory_free(all[i]);
    return true;
  }

  static constexpr std::size_t kMost = 64;  ///< more calls than processors at a time gain nothing, either

  std::mutex mutex_;
  std::condition_variable left_;  ///< a call has ended, or buffers have been added
  std::size_t running_ = 0, count_ = 0;
  bool growing_ = false, full_ = false;
};
Buffers buffers;

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
  buffers.enter();
}

BlasCall::~BlasCall() {
  if (openblas_set_num_threads != nullptr) buffers.leave();
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
