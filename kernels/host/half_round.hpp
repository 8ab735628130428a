#pragma once

#include <cstddef>

namespace gradtool::host {

/// What is left of numbers that are held in binary16 after scaling: x[i] := f16(x[i] 2^s) 2^-s, rounding to nearest
/// even, with the s that brings the largest magnitude into [2^(top-1), 2^top). top <= 15, so nothing overflows; what
/// lies 2^(top+13) below the largest is rounded as a subnormal. |s| <= 120. Zeros stay, and so does everything when one
/// number is not finite.
void round_to_half(float* x, std::size_t count, int top);

}  // namespace gradtool::host
