#include "kernels/blas.hpp"

#include <cublas_v2.h>
#include <map>
#include <mutex>
#include <string>

#include "kernels/cuda/late.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {
namespace {

#define GT_BLAS(function) GT_LATE("libcublas.so." GT_TEXT(CUBLAS_VER_MAJOR), function)

void check_cublas(cublasStatus_t status, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error{Fault::backend, std::string{"cuBLAS: "} + call + " failed: " + GT_BLAS(cublasGetStatusString)(status),
              file, line};
}
#define GT_CUBLAS(call) check_cublas(call, #call)

int as_int(std::size_t value) {
  expect_valid(value <= 0x7fffffff, "a matrix is too large for cuBLAS");
  return static_cast<int>(value);
}

cublasOperation_t operation(bool transposed) {
  return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/// The sizes that NVIDIA recommends: 32 MiB from Hopper on, 4 MiB before. OpenBLAS needs none, and tests look at every
/// byte.
std::size_t recommended_work() {
  if (emulated()) return std::size_t{4} << 10;
  return std::size_t{device_info(current_device()).major >= 9 ? 32U : 4U} << 20;
}

}  // namespace

/// Choosing the stream takes the workspace away again, so both and the call are one step under the lock.
struct Blas::Handle {
  Handle() : work{recommended_work()} {
    GT_CUBLAS(GT_BLAS(cublasCreate)(&cublas));
    GT_BLAS(cublasSetMathMode)(cublas, CUBLAS_DEFAULT_MATH);  // no TF32, which must be asked for
    GT_BLAS(cublasSetPointerMode)(cublas, CUBLAS_POINTER_MODE_HOST);
  }
  ~Handle() { GT_BLAS(cublasDestroy)(cublas); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  template <class Call>
  void run(Queue<Space::cuda> queue, View<std::byte, Space::cuda> room, const Call& call) {
    expects(room.size() >= work, "too little workspace for a product");
    const std::lock_guard lock{mutex};
    GT_CUBLAS(GT_BLAS(cublasSetStream)(cublas, queue.stream));
    GT_CUBLAS(GT_BLAS(cublasSetWorkspace)(cublas, room.data(), room.size()));
    call(cublas);
  }

  std::mutex mutex;
  cublasHandle_t cublas = nullptr;
  std::size_t work;
};

Blas::Blas(std::unique_ptr<Handle> handle) : handle_{std::move(handle)} {}
Blas::~Blas() = default;

std::shared_ptr<Blas> Blas::of_this_thread() {
  thread_local std::map<int, std::weak_ptr<Blas>> by_device;
  std::weak_ptr<Blas>& kept = by_device[current_device()];
  std::shared_ptr<Blas> blas = kept.lock();
  if (blas == nullptr) {
    blas.reset(new Blas{std::make_unique<Handle>()});
    kept = blas;
  }
  return blas;
}

std::size_t Blas::work_bytes() const {
  return handle_->work;
}

void Blas::multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                    std::size_t k, float alpha, const Factor<float>& a, const Factor<float>& b, float beta, float* c,
                    std::size_t c_stride) {
  handle_->run(queue, work, [&](cublasHandle_t cublas) {
    GT_CUBLAS(GT_BLAS(cublasSgemm)(cublas, operation(a.transposed), operation(b.transposed), as_int(m), as_int(n),
                                   as_int(k), &alpha, a.data, as_int(a.stride), b.data, as_int(b.stride), &beta, c,
                                   as_int(c_stride)));
  });
}

void Blas::multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                    std::size_t k, double alpha, const Factor<double>& a, const Factor<double>& b, double beta,
                    double* c, std::size_t c_stride) {
  handle_->run(queue, work, [&](cublasHandle_t cublas) {
    GT_CUBLAS(GT_BLAS(cublasDgemm)(cublas, operation(a.transposed), operation(b.transposed), as_int(m), as_int(n),
                                   as_int(k), &alpha, a.data, as_int(a.stride), b.data, as_int(b.stride), &beta, c,
                                   as_int(c_stride)));
  });
}

}  // namespace gradtool::cuda
