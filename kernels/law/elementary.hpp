#pragma once

#include <bit>
#include <cstdint>

#include "kernels/law/hd.hpp"

/// Elementary functions in double by +, -, *, / alone, so that CPU and GPU give the same bits; the libraries' differ in
/// the last. Relative errors are a few units of the last place.
namespace gradtool::law {

GT_HD inline std::uint64_t bits_of_double(double x) {
  return std::bit_cast<std::uint64_t>(x);
}
GT_HD inline double double_of(std::uint64_t bits) {
  return std::bit_cast<double>(bits);
}

// ln 2 in two parts: a multiple of the first by an exponent is exact.
inline constexpr double kLn2High = 0x1.62e42fee00000p-1;
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr std::uint64_t kInfiniteDouble = 0x7ff0000000000000u;

/// ln x by the series of artanh; -infinity at 0, NaN below.
GT_HD inline double natural_log(double x) {
  if (!(x > 0.0)) return double_of(x == 0.0 ? kInfiniteDouble | std::uint64_t{1} << 63 : 0x7ff8000000000000u);
  if (bits_of_double(x) == kInfiniteDouble) return x;
  int exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  const std::uint64_t bits = bits_of_double(x);
  exponent += static_cast<int>(bits >> 52) - 1023;
  double m = double_of((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);  // at most 0.172
  const double square = s * s;
  double sum = 0.0;
  for (int i = 23; i >= 3; i -= 2) sum = (sum + 1.0 / i) * square;
  const double e = exponent;
  return e * kLn2High + (2.0 * s * (1.0 + sum) + e * kLn2Low);
}

/// 1 + x/2 (1 + x/3 (1 + ...)): (e^x - 1) / x for small x.
GT_HD inline double exp_series(double x) {
  double sum = 1.0;
  for (int i = 18; i >= 2; --i) sum = 1.0 + sum * x / i;
  return sum;
}

/// e^x.
GT_HD inline double exponential(double x) {
  if (!(x < 709.7)) return x >= 709.7 ? double_of(kInfiniteDouble) : x;
  if (x < -708.3) return 0.0;  // subnormal results are not worth their code here
  const double scaled = x * 1.4426950408889634;
  const int k = static_cast<int>(scaled < 0.0 ? scaled - 0.5 : scaled + 0.5);
  const double rest = x - k * kLn2High - k * kLn2Low;
  const double value = 1.0 + rest * exp_series(rest);
  const double half = double_of(static_cast<std::uint64_t>(k / 2 + 1023) << 52);
  return value * half * double_of(static_cast<std::uint64_t>(k - k / 2 + 1023) << 52);
}

/// e^x - 1, without cancellation at small x.
GT_HD inline double exponential_less_one(double x) {
  return x > -0.5 && x < 0.5 ? x * exp_series(x) : exponential(x) - 1.0;
}

/// ln of the gamma function, x > 0, by Stirling's series from 10 on.
GT_HD inline double log_gamma(double x) {
  double product = 1.0;
  for (; x < 10.0; x += 1.0) product *= x;
  const double inverse = 1.0 / x;
  const double square = inverse * inverse;
  double sum =
      1.0 / 12.0 -
      square *
          (1.0 / 360.0 -
           square * (1.0 / 1260.0 - square * (1.0 / 1680.0 - square * (1.0 / 1188.0 - square * (691.0 / 360360.0)))));
  sum *= inverse;
  return (x - 0.5) * natural_log(x) - x + 0.91893853320467274 + sum - natural_log(product);
}

}  // namespace gradtool::law
