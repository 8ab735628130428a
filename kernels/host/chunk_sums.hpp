#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/chunk_sums.hpp"

namespace gradtool::host {

using law::kSumChunk;
using law::kSumLanes;

struct Moments {
  double sum = 0.0;
  double squares = 0.0;
  std::uint32_t largest = 0;  ///< pattern of the largest magnitude, NaN above infinity
};
[[nodiscard]] Moments moments_of(const float* x, std::size_t count);

/// Sum of magnitudes.
[[nodiscard]] double magnitudes_of(const float* x, std::size_t count);

/// Sums of the elements below zero, and of the others; a NaN is not below.
struct SignedSums {
  double negative = 0.0;
  double other = 0.0;
};
[[nodiscard]] SignedSums signed_sums_of(const float* x, std::size_t count);

/// Bit i mod 32 of word i div 32 := the sign bit of x[i]; the last word is padded with zeros.
void write_signs(const float* x, std::size_t count, std::uint32_t* words);
/// The same for x[i] < 0: a negative zero is not.
void write_negatives(const float* x, std::size_t count, std::uint32_t* words);

}  // namespace gradtool::host
