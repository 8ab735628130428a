#include "lib/analysis/real_transform.hpp"

#include "lib/core/error.hpp"

#ifdef GRADTOOL_ANALYSIS_FFTW
#include <fftw3.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>
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

void expect_length(std::size_t n) {
  expect_valid(n >= 1, "a transform needs at least one value");
  expect_valid(n <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
               "a transform of more than 2^31 - 1 values");
}

void expect_planned(bool planned) {
  if (!planned) throw Error{Fault::backend, "FFTW could not plan a transform"};
}

}  // namespace

struct RealTransform::Plan {
  fftw_plan handle = nullptr, inverse = nullptr;
  ~Plan() {
    fftw_destroy_plan(handle);
    fftw_destroy_plan(inverse);
  }
};

RealTransform::RealTransform(std::size_t n) : n_{n}, plan_{std::make_unique<Plan>()} {
  expect_length(n);
  // Estimated plans do not depend on timing, so results repeat. They leave the buffer's contents alone.
  const Buffer buffer = make_buffer(n);
  plan_->handle = fftw_plan_dft_r2c_1d(static_cast<int>(n), buffer.get(), as_bins(buffer.get()), FFTW_ESTIMATE);
  plan_->inverse = fftw_plan_dft_c2r_1d(static_cast<int>(n), as_bins(buffer.get()), buffer.get(), FFTW_ESTIMATE);
  expect_planned(plan_->handle != nullptr && plan_->inverse != nullptr);
}

RealTransform::~RealTransform() = default;

bool RealTransform::available() {
  return true;
}

namespace {

/// Transforms what is in `x`, in place, and gives the squared magnitudes of its bins, times `scale`.
void transform(fftw_plan plan, double* x, std::span<double> power, double scale) {
  fftw_execute_dft_r2c(plan, x, as_bins(x));
  for (std::size_t k = 0; k < power.size(); ++k) power[k] = (x[2 * k] * x[2 * k] + x[2 * k + 1] * x[2 * k + 1]) * scale;
}

}  // namespace

void RealTransform::power(std::span<const float> values, std::span<double> power) const {
  expects(values.size() == n_ && power.size() == bins(), "a transform was called with another size than planned");
  const Buffer buffer = make_buffer(n_);
  std::copy(values.begin(), values.end(), buffer.get());
  transform(plan_->handle, buffer.get(), power, 1.0 / static_cast<double>(n_));
}

void RealTransform::power(std::span<const double> values, std::span<double> power) const {
  expects(values.size() == n_ && power.size() == bins(), "a transform was called with another size than planned");
  const Buffer buffer = make_buffer(n_);
  std::copy(values.begin(), values.end(), buffer.get());
  transform(plan_->handle, buffer.get(), power, 1.0 / static_cast<double>(n_));
}

void RealTransform::keep_strongest(std::span<const float> values, std::size_t count, std::span<double> out) const {
  expects(values.size() == n_ && out.size() == n_ && count <= bins(), "a transform was called with other sizes");
  const Buffer buffer = make_buffer(n_);
  double* x = buffer.get();
  std::copy(values.begin(), values.end(), x);
  std::vector<double> power(bins());
  transform(plan_->handle, x, power, 1.0);
  std::vector<std::uint32_t> order(bins());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  const auto cut = order.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(order.begin(), cut, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair{-power[a], a} < std::pair{-power[b], b};
  });
  for (auto k = cut; k != order.end(); ++k) x[2 * std::size_t{*k}] = x[2 * std::size_t{*k} + 1] = 0.0;
  fftw_execute_dft_c2r(plan_->inverse, as_bins(x), x);
  const double scale = 1.0 / static_cast<double>(n_);
  std::transform(x, x + n_, out.begin(), [=](double value) { return value * scale; });
}

struct CosineTransform::Plan {
  fftw_plan handle = nullptr;
  ~Plan() { fftw_destroy_plan(handle); }
};

CosineTransform::CosineTransform(std::size_t n) : n_{n}, plan_{std::make_unique<Plan>()} {
  expect_length(n);
  const Buffer buffer = make_buffer(n);
  plan_->handle = fftw_plan_r2r_1d(static_cast<int>(n), buffer.get(), buffer.get(), FFTW_REDFT10, FFTW_ESTIMATE);
  expect_planned(plan_->handle != nullptr);
}

CosineTransform::~CosineTransform() = default;

void CosineTransform::squares(std::span<const float> values, std::span<double> squares) const {
  expects(values.size() == n_ && squares.size() == n_, "a transform was called with another size than planned");
  const Buffer buffer = make_buffer(n_);
  double* x = buffer.get();
  std::copy(values.begin(), values.end(), x);
  fftw_execute_r2r(plan_->handle, x, x);  // 2 sum_j x[j] cos(...)
  const double scale = 0.5 / static_cast<double>(n_);
  for (std::size_t k = 0; k < n_; ++k) squares[k] = x[k] * x[k] * scale;
  squares[0] *= 0.5;
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
void RealTransform::power(std::span<const double>, std::span<double>) const {}
void RealTransform::keep_strongest(std::span<const float>, std::size_t, std::span<double>) const {}

struct CosineTransform::Plan {};

CosineTransform::CosineTransform(std::size_t n) : n_{n} {
  throw Error{Fault::unavailable, "cosine transforms are not available: this gradtool was built without FFTW"};
}

CosineTransform::~CosineTransform() = default;

void CosineTransform::squares(std::span<const float>, std::span<double>) const {}

#endif

}  // namespace gradtool
