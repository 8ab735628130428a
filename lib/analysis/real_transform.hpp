#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace gradtool {

/// A plan of FFTW.
struct DestroyPlan {
  void operator()(void* plan) const noexcept;
};
using FftwPlan = std::unique_ptr<void, DestroyPlan>;

/// Unitary discrete Fourier transform of n real values, in double precision (FFTW).
///
/// X[k] = 1/sqrt(n) * sum_j x[j] exp(-2 pi i j k / n), k = 0 .. n/2. A real signal's other bins are conjugates of
/// these, so with weight(k) = 2 for interior bins and 1 for k = 0 and, when n is even, k = n/2, Parseval reads sum_k
/// weight(k) |X[k]|^2 = sum_j x[j]^2.
class RealTransform {
 public:
  /// Plans for n >= 1 values. Not thread-safe. Throws Fault::unavailable in a build without FFTW.
  explicit RealTransform(std::size_t n);

  [[nodiscard]] std::size_t bins() const { return n_ / 2 + 1; }
  [[nodiscard]] static bool available();

  /// power[k] = |X[k]|^2; values.size() == n, power.size() == bins(). Thread-safe; allocates 8 (n + 2) bytes.
  void power(std::span<const float> values, std::span<double> power) const { power_of(values, power); }
  void power(std::span<const double> values, std::span<double> power) const { power_of(values, power); }

  /// The values of which all but `count` bins were set to 0: those of largest magnitude, of equal ones the lower
  /// frequencies. Thread-safe; allocates 16 (n + 2) bytes. out.size() == n.
  void keep_strongest(std::span<const float> values, std::size_t count, std::span<double> out) const;

 private:
  template <class Value>
  void power_of(std::span<const Value> values, std::span<double> power) const;

  std::size_t n_;
  FftwPlan forward_, inverse_;
};

/// Orthonormal discrete cosine transform (DCT-II) of n real values, in double precision (FFTW):
///
/// X[k] = c_k sum_j x[j] cos(pi (2 j + 1) k / (2 n)), c_0 = sqrt(1/n), else c_k = sqrt(2/n), so that the energies of x
/// and X are equal.
class CosineTransform {
 public:
  /// Has the contract of RealTransform's constructor.
  explicit CosineTransform(std::size_t n);

  /// squares[k] = X[k]^2. Thread-safe; allocates 8 n bytes.
  void squares(std::span<const float> values, std::span<double> squares) const;

 private:
  std::size_t n_;
  FftwPlan plan_;
};

}  // namespace gradtool
