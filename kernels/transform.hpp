#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/view.hpp"

/// Fourier transforms of real numbers: FFTW on the CPU, cuFFT on the GPU. The two round differently, so spectra agree
/// only nearly; each is the same from run to run.
namespace gradtool::host {

/// Real-to-complex transform of one length, unnormalised: X[k] = sum_n x[n] exp(-2 pi i k n / L) for k = 0 .. L/2, and
/// its inverse, which returns L x. By FFTW with FFTW_ESTIMATE: plans, and so rounding, do not depend on timing, and
/// ranks in different processes get the same bits.
///
/// For powers of two from 2^15 to 2^20 the plans that FFTW estimates are two to three times slower than those it
/// measures, and measuring takes seconds. Transforms of these lengths are therefore made of short ones, for which
/// estimates are good: the numbers are taken in pairs as complex ones, and those as a matrix, whose columns and rows
/// are transformed (Bailey's four steps, J. Supercomputing 1990).
///
/// Buffers are 64-byte aligned; complex numbers are float pairs (re, im). Calls are thread-safe and allocate nothing.
class RealTransform {
 public:
  explicit RealTransform(std::size_t length);  ///< takes a global lock: FFTW's planner is not thread-safe
  ~RealTransform();
  RealTransform(const RealTransform&) = delete;
  RealTransform& operator=(const RealTransform&) = delete;

  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] std::size_t bins() const { return length_ / 2 + 1; }

  void forward(float* real, float* spectrum) const;  ///< `real` is destroyed
  void inverse(float* spectrum, float* real) const;  ///< `spectrum` is destroyed

 private:
  struct Plans;
  std::size_t length_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace gradtool::host

namespace gradtool::cuda {

/// Real-to-complex transforms of `batch` rows of one length, and back, by cuFFT in single precision; unnormalised as
/// host::RealTransform. Rows lie one behind the other: `length` floats of a row, and length/2 + 1 pairs of its
/// spectrum.
///
/// Belongs to the GPU that was current when it was made. Calls are thread-safe, enqueue and allocate nothing: cuFFT's
/// work area is the caller's, a different one for every stream.
class RealTransforms {
 public:
  /// Throws Fault::backend when cuFFT has no memory or no algorithm for this length.
  RealTransforms(std::size_t length, std::size_t batch);
  ~RealTransforms();
  RealTransforms(const RealTransforms&) = delete;
  RealTransforms& operator=(const RealTransforms&) = delete;

  [[nodiscard]] std::size_t work_bytes() const;

  /// `work` holds work_bytes() and is 256-byte aligned, `real` is 16-byte aligned, `spectrum` 8-byte aligned.
  void forward(Queue<Space::cuda> queue, const float* real, float* spectrum, std::byte* work) const;
  /// `spectrum` is destroyed. The imaginary parts of bins that are real must be 0.
  void inverse(Queue<Space::cuda> queue, float* spectrum, float* real, std::byte* work) const;

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

/// The forward transform of one row in double precision, for analyses. In all else as RealTransforms.
class WideTransform {
 public:
  explicit WideTransform(std::size_t length);
  ~WideTransform();
  WideTransform(const WideTransform&) = delete;
  WideTransform& operator=(const WideTransform&) = delete;

  [[nodiscard]] std::size_t work_bytes() const;
  /// `real` is destroyed. Both are 16-byte aligned.
  void forward(Queue<Space::cuda> queue, double* real, double* spectrum, std::byte* work) const;

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace gradtool::cuda
