#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Sums that go into payloads are taken over chunks of so many elements, and chunks are added in an order that is
/// fixed: the bits do not depend on threads. A multiple of 32 and of 20, so that a chunk's codes of 1, 2 or 8/5 bits
/// are whole words.
inline constexpr std::size_t kSumChunk = 7680;
/// Partial sum j of a chunk, in float64, adds elements j, j+16, ...; then halves are added: 8, 4, 2, 1.
inline constexpr std::size_t kSumLanes = 16;

/// So many chunks are added in order, and then the sums of such groups in order: long chains of additions that wait for
/// each other would take a GPU longer than the elements do.
inline constexpr std::size_t kSumGroup = 64;

/// Sums of chunks in that order.
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

/// How n values are cut where sums of chunks have a place of a fixed size: into chunks of kSumChunk, longer ones for so
/// many values that there would be more than kMostChunks.
inline constexpr std::size_t kMostChunks = 4096;
struct SumCut {
  std::size_t chunk;  ///< values, a multiple of kSumLanes; the last one may have fewer
  std::size_t count;
};
GT_HD constexpr SumCut sum_cut(std::size_t n) {
  const std::size_t least = (n + kMostChunks - 1) / kMostChunks;
  const std::size_t chunk = least <= kSumChunk ? kSumChunk : (least + kSumLanes - 1) / kSumLanes * kSumLanes;
  return {chunk, (n + chunk - 1) / chunk};
}

/// Sums down a column of a matrix are taken over chunks of so many rows, and chunks are added in order.
inline constexpr std::size_t kSumRows = 64;

/// sum/count as it is stored: rounded to float32 once, 0 for no elements, and one NaN for all, because processors make
/// different ones.
GT_HD inline float stored_mean(double sum, std::uint64_t count) {
  if (count == 0) return 0.0f;
  const auto mean = static_cast<float>(sum / static_cast<double>(count));
  return mean == mean ? mean : float_of(0x7fc00000u);
}

}  // namespace gradtool::law
