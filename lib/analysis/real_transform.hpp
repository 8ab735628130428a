#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace gradtool {

/// Unitary discrete Fourier transform of n real values, in double precision (FFTW).
///
/// X[k] = 1/sqrt(n) * sum_j x[j] exp(-2 pi i j k / n), k = 0 .. n/2. A real signal's other bins are conjugates of
/// these, so with weight(k) = 2 for interior bins and 1 for k = 0 and, when n is even, k = n/2, Parseval reads sum_k
/// weight(k) |X[k]|^2 = sum_j x[j]^2.
class RealTransform {
 public:
  /// Plans for n >= 1 values. Not thread-safe. Throws Fault::unavailable in a build without FFTW.
  explicit RealTransform(std::size_t n);
  ~RealTransform();
  RealTransform(const RealTransform&) = delete;
  RealTransform& operator=(const RealTransform&) = delete;

  [[nodiscard]] std::size_t bins() const { return n_ / 2 + 1; }
  [[nodiscard]] static bool available();

  /// power[k] = |X[k]|^2; values.size() == n, power.size() == bins(). Thread-safe; allocates 8 (n + 2) bytes.
  void power(std::span<const float> values, std::span<double> power) const;

 private:
  struct Plan;
  std::size_t n_;
  std::unique_ptr<Plan> plan_;
};

}  // namespace gradtool
