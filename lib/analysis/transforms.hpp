#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

// Orthonormal bases and orders in which the energy of a gradient may be more compact than in its elements. What has
// FFTW is in real_transform.hpp.

/// Replaces n values by their coefficients in a basis of Walsh-Hadamard or of Haar functions. Such bases exist for
/// powers of two; any n is cut into the powers of two that it is the sum of, the largest first, each of which is
/// transformed on its own. So there are n coefficients of the same energy. O(n log n) and O(n).
void hadamard(std::span<double> values);
/// Coefficients are written coarse to fine: the mean of a piece times the root of its length, then the differences.
void haar(std::span<double> values);

/// The positions in a tensor's contiguous order of its elements in the order HWIO: spatial taps slowest, then input and
/// output channels. Empty for a tensor that is not a convolution with layout OI and spatial axes, or has one tap.
[[nodiscard]] std::vector<std::size_t> hwio_order(const TensorInfo& tensor);

}  // namespace gradtool
