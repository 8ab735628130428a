#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// Real-to-complex transforms of `batch` rows of one length, and back, by cuFFT in single precision; unnormalised as
/// host::RealTransform. Rows lie one behind the other: `length` floats, length/2+1 pairs.
///
/// Belongs to the GPU that was current when it was made. Calls are thread-safe, enqueue and allocate nothing: cuFFT's
/// work area is the caller's, a different one for every stream. cuFFT rounds in its own way, so spectra equal those of
/// another library only nearly; they are the same from run to run.
class RealTransforms {
 public:
  /// Fault::backend when cuFFT has no room or no algorithm.
  RealTransforms(std::size_t length, std::size_t batch);
  ~RealTransforms();
  RealTransforms(const RealTransforms&) = delete;
  RealTransforms& operator=(const RealTransforms&) = delete;

  [[nodiscard]] std::size_t work_bytes() const;

  /// `work`: work_bytes(), 256-byte aligned. `real` 16-byte, `spectrum` 8-byte aligned.
  void forward(Queue<Space::cuda> queue, const float* real, float* spectrum, std::byte* work) const;
  /// `spectrum` is destroyed. The imaginary parts of bins that are real must be 0.
  void inverse(Queue<Space::cuda> queue, float* spectrum, float* real, std::byte* work) const;

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

/// The forward transform of one row in double precision, for analyses. Otherwise as RealTransforms.
class WideTransform {
 public:
  explicit WideTransform(std::size_t length);
  ~WideTransform();
  WideTransform(const WideTransform&) = delete;
  WideTransform& operator=(const WideTransform&) = delete;

  [[nodiscard]] std::size_t work_bytes() const;
  /// `real` is destroyed. Both 16-byte aligned.
  void forward(Queue<Space::cuda> queue, double* real, double* spectrum, std::byte* work) const;

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace gradtool::cuda
