#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/spectrum.hpp"
#include "kernels/law/hd.hpp"

/// What the sums over values and over powers have in common: kernels/cuda/spectrum_tops.cu.
namespace gradtool::cuda {

inline constexpr unsigned kMostSpectrumBlocks = 512;  ///< of one sum; so many partial sums

/// Ends of the selections, for kernels.
struct SpectrumCuts {
  explicit SpectrumCuts(const TopCounts& tops) { std::copy(tops.begin(), tops.end(), end); }
  std::uint64_t end[kSpectrumTops];
  [[nodiscard]] GT_HD std::uint64_t first(unsigned top) const { return top == 0 ? 0 : end[top - 1]; }
};

/// Pieces of the work memory. Keys and sorted keys are those of values, as 32-bit patterns, or of powers, never both.
struct SpectrumWork {
  SpectrumWork(View<std::byte, Space::cuda> memory, std::size_t n);
  std::byte *keys, *sorted;
  double *partial, *joined;
  View<std::byte, Space::cuda> sort;
  std::size_t bytes;
};

/// sums[r] := row r of `partial`, `count` numbers.
void join_rows(Queue<Space::cuda> queue, const double* partial, unsigned count, unsigned rows, double* sums);

/// work.sorted := the keys, descending; out[t] := the energy that selection t adds to the one before. `Key` is uint32_t
/// or double.
template <class Key>
void sum_tops(Queue<Space::cuda> queue, const SpectrumWork& work, std::size_t count, const SpectrumCuts& cuts,
              double* out);

}  // namespace gradtool::cuda
