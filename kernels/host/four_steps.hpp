#pragma once

#include <cstddef>

namespace gradtool::host {

/// What stands between the short transforms of a long one. Complex numbers are float pairs; nothing overlaps but where
/// it says "in place".

/// z[i] *= w[i], or conj(w[i]), in place.
void multiply(float* z, const float* w, std::size_t count, bool conjugate);

/// to[c * rows + r] = from[r * columns + c]; both multiples of 8.
void transpose(const float* from, std::size_t rows, std::size_t columns, float* to);

/// In place: from Z, the transform of M pairs (x[2j], x[2j+1]) taken as complex numbers, to the M + 1 bins of x.
/// w[k] = exp(-2 pi i k / 2M) for k <= M/2; M is even.
void bins_from_pairs(float* z, const float* w, std::size_t m);
/// In place and the other way round, with the factor 2 that makes the unnormalised inverse return 2M x.
void pairs_from_bins(float* z, const float* w, std::size_t m);

}  // namespace gradtool::host
