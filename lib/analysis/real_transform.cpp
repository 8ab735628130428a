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
template <class Value>
Buffer copy_of(std::span<const Value> values) {
  Buffer buffer = make_buffer(values.size());
  std::copy(values.begin(), values.end(), buffer.get());
  return buffer;
}

fftw_complex* as_bins(double* block) {
  return reinterpret_cast<fftw_complex*>(block);
}
fftw_plan handle(const FftwPlan& plan) {
  return static_cast<fftw_plan>(plan.get());
}

/// make(n, buffer) makes a plan for n values in place. Estimated plans do not depend on timing, so results repeat. They
/// leave the buffer's contents alone.
template <class Make>
FftwPlan make_plan(std::size_t n, const Make& make) {
  expect_valid(n >= 1, "a transform needs at least one value");
  expect_valid(n <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
               "a transform of more than 2^31 - 1 values");
  const Buffer buffer = make_buffer(n);
  FftwPlan plan{make(static_cast<int>(n), buffer.get())};
  if (plan == nullptr) throw Error{Fault::backend, "FFTW could not plan a transform"};
  return plan;
}

/// Transforms what is in `x`, in place, and gives the squared magnitudes of its bins, times `scale`.
void transform(const FftwPlan& plan, double* x, std::span<double> power, double scale) {
  fftw_execute_dft_r2c(handle(plan), x, as_bins(x));
  for (std::size_t k = 0; k < power.size(); ++k) power[k] = (x[2 * k] * x[2 * k] + x[2 * k + 1] * x[2 * k + 1]) * scale;
}

}  // namespace

void DestroyPlan::operator()(void* plan) const noexcept {
  fftw_destroy_plan(static_cast<fftw_plan>(plan));
}

RealTransform::RealTransform(std::size_t n)
    : n_{n},
      forward_{
          make_plan(n, [](int size, double* x) { return fftw_plan_dft_r2c_1d(size, x, as_bins(x), FFTW_ESTIMATE); })},
      inverse_{
          make_plan(n, [](int size, double* x) { return fftw_plan_dft_c2r_1d(size, as_bins(x), x, FFTW_ESTIMATE); })} {}

bool RealTransform::available() {
  return true;
}

template <class Value>
void RealTransform::power_of(std::span<const Value> values, std::span<double> power) const {
  expects(values.size() == n_ && power.size() == bins(), "a transform was called with another size than planned");
  const Buffer buffer = copy_of(values);
  transform(forward_, buffer.get(), power, 1.0 / static_cast<double>(n_));
}

void RealTransform::keep_strongest(std::span<const float> values, std::size_t count, std::span<double> out) const {
  expects(values.size() == n_ && out.size() == n_ && count <= bins(), "a transform was called with other sizes");
  const Buffer buffer = copy_of(values);
  double* x = buffer.get();
  std::vector<double> power(bins());
  transform(forward_, x, power, 1.0);
  std::vector<std::uint32_t> order(bins());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  const auto cut = order.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(order.begin(), cut, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair{-power[a], a} < std::pair{-power[b], b};
  });
  for (auto k = cut; k != order.end(); ++k) x[2 * std::size_t{*k}] = x[2 * std::size_t{*k} + 1] = 0.0;
  fftw_execute_dft_c2r(handle(inverse_), as_bins(x), x);
  const double scale = 1.0 / static_cast<double>(n_);
  std::transform(x, x + n_, out.begin(), [=](double value) { return value * scale; });
}

CosineTransform::CosineTransform(std::size_t n)
    : n_{n}, plan_{make_plan(n, [](int size, double* x) {
        return fftw_plan_r2r_1d(size, x, x, FFTW_REDFT10, FFTW_ESTIMATE);
      })} {}

void CosineTransform::squares(std::span<const float> values, std::span<double> squares) const {
  expects(values.size() == n_ && squares.size() == n_, "a transform was called with another size than planned");
  const Buffer buffer = copy_of(values);
  double* x = buffer.get();
  fftw_execute_r2r(handle(plan_), x, x);  // 2 sum_j x[j] cos(...)
  const double scale = 0.5 / static_cast<double>(n_);
  for (std::size_t k = 0; k < n_; ++k) squares[k] = x[k] * x[k] * scale;
  squares[0] *= 0.5;
}

#else

void DestroyPlan::operator()(void* /*plan*/) const noexcept {}

RealTransform::RealTransform(std::size_t n) : n_{n} {
  throw Error{Fault::unavailable, "frequency spectra are not available: this gradtool was built without FFTW"};
}

bool RealTransform::available() {
  return false;
}

template <class Value>
void RealTransform::power_of(std::span<const Value>, std::span<double>) const {}
void RealTransform::keep_strongest(std::span<const float>, std::size_t, std::span<double>) const {}

CosineTransform::CosineTransform(std::size_t n) : n_{n} {
  throw Error{Fault::unavailable, "cosine transforms are not available: this gradtool was built without FFTW"};
}

void CosineTransform::squares(std::span<const float>, std::span<double>) const {}

#endif

template void RealTransform::power_of(std::span<const float>, std::span<double>) const;
template void RealTransform::power_of(std::span<const double>, std::span<double>) const;

}  // namespace gradtool
