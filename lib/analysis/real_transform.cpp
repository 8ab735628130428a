#include "lib/analysis/real_transform.hpp"

#include "lib/core/error.hpp"

#ifdef GRADTOOL_ANALYSIS_FFTW
#include <fftw3.h>

#include <limits>
#endif

namespace gradtool {

#ifdef GRADTOOL_ANALYSIS_FFTW

namespace {

struct Free {
  void operator()(double* block) const noexcept { fftw_free(block); }
};
using Buffer = std::unique_ptr<double, Free>;

/// Room for n reals and, in place, for their n/2 + 1 complex bins.
Buffer make_buffer(std::size_t n) {
  Buffer buffer{fftw_alloc_real(2 * (n / 2 + 1))};
  if (!buffer) throw Error{Fault::backend, "FFTW could not allocate memory for a transform"};
  return buffer;
}

fftw_complex* as_bins(double* block) {
  return reinterpret_cast<fftw_complex*>(block);
}

}  // namespace

struct RealTransform::Plan {
  fftw_plan handle = nullptr;
  ~Plan() { fftw_destroy_plan(handle); }
};

RealTransform::RealTransform(std::size_t n) : n_{n}, plan_{std::make_unique<Plan>()} {
  expect_valid(n >= 1, "a transform needs at least one value");
  expect_valid(n <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
               "a transform of more than 2^31 - 1 values");
  // Estimated plans do not depend on timing, so results repeat. They leave the buffer's contents alone.
  const Buffer buffer = make_buffer(n);
  plan_->handle = fftw_plan_dft_r2c_1d(static_cast<int>(n), buffer.get(), as_bins(buffer.get()), FFTW_ESTIMATE);
  if (plan_->handle == nullptr) throw Error{Fault::backend, "FFTW could not plan a transform"};
}

RealTransform::~RealTransform() = default;

bool RealTransform::available() {
  return true;
}

void RealTransform::power(std::span<const float> values, std::span<double> power) const {
  expects(values.size() == n_ && power.size() == bins(), "a transform was called with another size than planned");
  const Buffer buffer = make_buffer(n_);
  double* x = buffer.get();
  for (std::size_t i = 0; i < n_; ++i) x[i] = static_cast<double>(values[i]);
  fftw_execute_dft_r2c(plan_->handle, x, as_bins(x));
  const double scale = 1.0 / static_cast<double>(n_);
  for (std::size_t k = 0; k < power.size(); ++k) power[k] = (x[2 * k] * x[2 * k] + x[2 * k + 1] * x[2 * k + 1]) * scale;
}

#else

struct RealTransform::Plan {};

RealTransform::RealTransform(std::size_t n) : n_{n} {
  throw Error{Fault::unavailable, "frequency spectra are not available: this gradtool was built without FFTW"};
}

RealTransform::~RealTransform() = default;

bool RealTransform::available() {
  return false;
}

void RealTransform::power(std::span<const float>, std::span<double>) const {}

#endif

}  // namespace gradtool
