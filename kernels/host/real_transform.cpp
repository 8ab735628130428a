#include "kernels/host/real_transform.hpp"

#include <fftw3.h>

#include <mutex>

#include "lib/core/error.hpp"

namespace gradtool::host {
namespace {

std::mutex& planner() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

struct RealTransform::Plans {
  fftwf_plan forward = nullptr;
  fftwf_plan inverse = nullptr;
  ~Plans() {
    const std::lock_guard lock{planner()};
    if (forward != nullptr) fftwf_destroy_plan(forward);
    if (inverse != nullptr) fftwf_destroy_plan(inverse);
  }
};

RealTransform::RealTransform(std::size_t length) : length_{length}, plans_{std::make_unique<Plans>()} {
  expects(length >= 1 && length <= 0x7fffffff, "a transform's length is 1 to 2^31-1");
  struct Free {
    void operator()(float* p) const { fftwf_free(p); }
  };
  // Planned on FFTW's own buffers, so that every later call may assume the alignment it wants.
  const std::unique_ptr<float, Free> real{fftwf_alloc_real(length)};
  const std::unique_ptr<float, Free> spectrum{fftwf_alloc_real(2 * bins())};
  auto* complex = reinterpret_cast<fftwf_complex*>(spectrum.get());
  const std::lock_guard lock{planner()};
  plans_->forward = fftwf_plan_dft_r2c_1d(static_cast<int>(length), real.get(), complex, FFTW_ESTIMATE);
  plans_->inverse = fftwf_plan_dft_c2r_1d(static_cast<int>(length), complex, real.get(), FFTW_ESTIMATE);
  if (plans_->forward == nullptr || plans_->inverse == nullptr) throw Error{Fault::backend, "FFTW made no plan"};
}

RealTransform::~RealTransform() = default;

void RealTransform::forward(float* real, float* spectrum) const {
  fftwf_execute_dft_r2c(plans_->forward, real, reinterpret_cast<fftwf_complex*>(spectrum));
}

void RealTransform::inverse(float* spectrum, float* real) const {
  fftwf_execute_dft_c2r(plans_->inverse, reinterpret_cast<fftwf_complex*>(spectrum), real);
}

}  // namespace gradtool::host
