#include "kernels/transform.hpp"

#include <cuda_runtime.h>
#include <cufft.h>
#include <algorithm>
#include <mutex>
#include <string>

#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {
namespace {

const char* reason(cufftResult result) {
  switch (result) {
    case CUFFT_ALLOC_FAILED:
      return "no memory left on the GPU";
    case CUFFT_INVALID_SIZE:
      return "this length is not supported";
    case CUFFT_INVALID_VALUE:
      return "a parameter was refused";
    case CUFFT_SETUP_FAILED:
      return "the library could not initialise";
    case CUFFT_EXEC_FAILED:
      return "the GPU did not execute the transform";
    case CUFFT_INTERNAL_ERROR:
      return "internal driver error";
    default:
      return "unexpected error";
  }
}

void check_cufft(cufftResult result, const char* call, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  if (result == CUFFT_SUCCESS) return;
  throw Error{Fault::backend,
              std::string{"cuFFT: "} + call + " failed: " + reason(result) + " (code " +
                  std::to_string(static_cast<int>(result)) + ")",
              file, line};
}
#define GT_CUFFT(call) check_cufft(call, #call)

/// One cuFFT plan. Setting its stream and work area and starting it are one step under the lock.
class Plan {
 public:
  Plan(cufftType type, long long length, long long batch) {
    GT_CUFFT(cufftCreate(&handle_));
    try {
      long long lengths[1] = {length};
      long long bins[1] = {length / 2 + 1};
      long long* from = type == CUFFT_C2R ? bins : lengths;
      long long* to = type == CUFFT_C2R ? lengths : bins;
      GT_CUFFT(cufftSetAutoAllocation(handle_, 0));
      GT_CUFFT(cufftMakePlanMany64(handle_, 1, lengths, from, 1, *from, to, 1, *to, type, batch, &work_bytes_));
    } catch (...) {
      cufftDestroy(handle_);
      throw;
    }
  }
  ~Plan() { cufftDestroy(handle_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  [[nodiscard]] std::size_t work_bytes() const { return work_bytes_; }

  template <class Execute>
  void run(Queue<Space::cuda> queue, std::byte* work, const Execute& execute) {
    const std::lock_guard lock{mutex_};
    GT_CUFFT(cufftSetStream(handle_, queue.stream));
    GT_CUFFT(cufftSetWorkArea(handle_, work));
    execute(handle_);
  }

 private:
  std::mutex mutex_;
  cufftHandle handle_ = 0;
  std::size_t work_bytes_ = 0;
};

}  // namespace

struct RealTransforms::Plans {
  Plans(long long length, long long batch) : forward{CUFFT_R2C, length, batch}, inverse{CUFFT_C2R, length, batch} {}
  Plan forward, inverse;
};

RealTransforms::RealTransforms(std::size_t length, std::size_t batch)
    : plans_{std::make_unique<Plans>(static_cast<long long>(length), static_cast<long long>(batch))} {}
RealTransforms::~RealTransforms() = default;

std::size_t RealTransforms::work_bytes() const {
  return std::max(plans_->forward.work_bytes(), plans_->inverse.work_bytes());
}

void RealTransforms::forward(Queue<Space::cuda> queue, const float* real, float* spectrum, std::byte* work) const {
  plans_->forward.run(queue, work, [&](cufftHandle plan) {
    // Out of place, so the input is only read, in spite of the parameter's type.
    GT_CUFFT(cufftExecR2C(plan, const_cast<cufftReal*>(real), reinterpret_cast<cufftComplex*>(spectrum)));
  });
}

void RealTransforms::inverse(Queue<Space::cuda> queue, float* spectrum, float* real, std::byte* work) const {
  plans_->inverse.run(queue, work, [&](cufftHandle plan) {
    GT_CUFFT(cufftExecC2R(plan, reinterpret_cast<cufftComplex*>(spectrum), real));
  });
}

struct WideTransform::Plans {
  Plan forward;
};

WideTransform::WideTransform(std::size_t length) : plans_{new Plans{{CUFFT_D2Z, static_cast<long long>(length), 1}}} {}
WideTransform::~WideTransform() = default;

std::size_t WideTransform::work_bytes() const {
  return plans_->forward.work_bytes();
}

void WideTransform::forward(Queue<Space::cuda> queue, double* real, double* spectrum, std::byte* work) const {
  plans_->forward.run(queue, work, [&](cufftHandle plan) {
    GT_CUFFT(cufftExecD2Z(plan, real, reinterpret_cast<cufftDoubleComplex*>(spectrum)));
  });
}

}  // namespace gradtool::cuda
