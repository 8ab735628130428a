#pragma once

#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Count, mean and sums of powers of deviations of some values, in double precision, with what else one look at a
/// value tells. Of no values: all zero.
struct Moments {
  double count = 0, mean = 0;
  double m2 = 0, m3 = 0, m4 = 0;  ///< sum of (x - mean)^p
  double min = 0, max = 0;        ///< of nothing: 0
  double abs_sum = 0, square_sum = 0;
  std::uint64_t zeros = 0;  ///< values that are exactly 0
};

/// `mine` := the moments of its values and of `other`'s, by Chan's and Pebay's update formulas (P. Pebay,
/// SAND2008-6212), so that no sum of squares is ever subtracted from another.
GT_HD inline void join(Moments& mine, const Moments& other) {
  if (other.count == 0) return;
  if (mine.count == 0) {
    mine = other;
    return;
  }
  const double na = mine.count, nb = other.count, n = na + nb;
  const double delta = other.mean - mine.mean;
  const double d = delta / n;
  mine.m4 += other.m4 + delta * d * d * d * na * nb * (na * na - na * nb + nb * nb) +
             6 * d * d * (na * na * other.m2 + nb * nb * mine.m2) + 4 * d * (na * other.m3 - nb * mine.m3);
  mine.m3 += other.m3 + delta * d * d * na * nb * (na - nb) + 3 * d * (na * other.m2 - nb * mine.m2);
  mine.m2 += other.m2 + delta * d * na * nb;
  mine.mean += d * nb;
  mine.count = n;
  mine.min = other.min < mine.min ? other.min : mine.min;
  mine.max = other.max > mine.max ? other.max : mine.max;
  mine.abs_sum += other.abs_sum;
  mine.square_sum += other.square_sum;
  mine.zeros += other.zeros;
}

}  // namespace gradtool::law
