#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

/// Sums of floats whose bits are part of a payload. They are taken in an order that both processors keep and that does
/// not depend on the number of threads: lanes of a chunk, chunks of a group, groups.
namespace gradtool::format {

/// Elements of a chunk. A multiple of 32 and of 20, so that the codes of a chunk fill whole words where a code takes 1,
/// 2 or 8/5 bits.
inline constexpr std::size_t kSumChunk = 7680;
/// Partial sums of a chunk, in float64: sum j adds elements j, j + 16 and so on. Then the upper half of the partial
/// sums is added to the lower half, until one is left.
inline constexpr std::size_t kSumLanes = 16;

/// Chunks of a group. The sums of its chunks are added in order, and then the sums of groups in order. In one long
/// chain, in which each addition waits for the one before, they would take a GPU longer than the elements do.
inline constexpr std::size_t kSumGroup = 64;

/// Adds the sums of chunks in that order.
class GroupedSum {
 public:
  GT_HD void add(double chunk) {
    group_ += chunk;
    if (++in_group_ < kSumGroup) return;
    total_ += group_;
    group_ = 0.0;
    in_group_ = 0;
  }
  [[nodiscard]] GT_HD double value() const { return in_group_ == 0 ? total_ : total_ + group_; }

 private:
  double total_ = 0.0;
  double group_ = 0.0;
  std::size_t in_group_ = 0;
};

/// How n values are cut into chunks where the sums of chunks are kept in an array of a fixed size: chunks of kSumChunk,
/// and longer ones where there would be more than kMostChunks.
inline constexpr std::size_t kMostChunks = 4096;
struct SumCut {
  std::size_t chunk;  ///< values of a chunk, a multiple of kSumLanes; the last chunk may have fewer
  std::size_t count;  ///< chunks
};
GT_HD constexpr SumCut sum_cut(std::size_t n) {
  const std::size_t least = (n + kMostChunks - 1) / kMostChunks;
  const std::size_t chunk = least <= kSumChunk ? kSumChunk : (least + kSumLanes - 1) / kSumLanes * kSumLanes;
  return {chunk, (n + chunk - 1) / chunk};
}

/// Rows of a chunk in sums down the columns of a matrix; chunks are added in order.
inline constexpr std::size_t kSumRows = 64;

/// sum/count as payloads store it: rounded to float32 once, 0 where count is 0, and always the same NaN, because
/// processors make different ones.
GT_HD inline float stored_mean(double sum, std::uint64_t count) {
  if (count == 0) return 0.0f;
  const auto mean = static_cast<float>(sum / static_cast<double>(count));
  return mean == mean ? mean : float_of(0x7fc00000u);
}

}  // namespace gradtool::format

namespace gradtool::host {

using format::kSumChunk;
using format::kSumLanes;

/// Moments of the elements of a chunk.
struct Moments {
  double sum = 0.0;
  double squares = 0.0;
  std::uint32_t largest = 0;  ///< binary32 pattern of the largest magnitude; NaN counts as larger than infinity
};
[[nodiscard]] Moments moments_of(const float* x, std::size_t count);

/// Sum of the magnitudes of a chunk.
[[nodiscard]] double magnitudes_of(const float* x, std::size_t count);

/// Sums of the elements of a chunk that are below zero, and of the others. A NaN is not below zero.
struct SignedSums {
  double negative = 0.0;
  double other = 0.0;
};
[[nodiscard]] SignedSums signed_sums_of(const float* x, std::size_t count);

/// Bit i mod 32 of word i div 32 := the sign bit of x[i]; the last word is padded with zeros.
void write_signs(const float* x, std::size_t count, std::uint32_t* words);
/// Bit i says whether x[i] < 0, which is false for negative zeros and NaNs.
void write_negatives(const float* x, std::size_t count, std::uint32_t* words);

}  // namespace gradtool::host
