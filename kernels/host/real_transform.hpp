#pragma once

#include <cstddef>
#include <memory>

namespace gradtool::host {

/// Real-to-complex transform of one length, unnormalised: X[k] = sum_n x[n] exp(-2 pi i k n / L) for k = 0 .. L/2, and
/// its inverse, which returns L x. By FFTW with FFTW_ESTIMATE: plans, and so rounding, do not depend on timing, and
/// ranks in different processes get the same bits.
///
/// For powers of two from 2^15 to 2^20 the plans that FFTW estimates are two to three times slower than those it
/// measures, and measuring takes seconds. These lengths are therefore split here into short transforms, for which
/// estimates are good: complex transforms of columns and rows (Bailey's four steps) of the numbers taken in pairs.
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
