#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// What `gradtool analyze` sums over the values of a gradient and over its spectrum, on the GPU, in double precision.
/// Everything is enqueued and works in memory that the caller gives. The order of all sums depends on the sizes alone.
namespace gradtool::cuda {

inline constexpr std::size_t kSpectrumTops = 5;    ///< selections of the strongest
inline constexpr std::size_t kSpectrumBands = 16;  ///< bands of equal width up to the Nyquist frequency

/// Of n values: what lib/analysis/spectrum_sums.hpp makes its sums from.
struct ValueSums {
  double total = 0, energy = 0;
  double low = 0, high = 0;
  double lag_product = 0, centred_energy = 0;  ///< about the mean total / n
  double tops[kSpectrumTops] = {};             ///< energy of the largest by magnitude that the one before leaves out
  std::uint64_t non_finite = 0;
};

/// Of the n/2 + 1 bins of n values, |X|^2 unitary.
struct PowerSums {
  double bands[kSpectrumBands] = {};      ///< conjugate bins included
  double interior = 0, interior_log = 0;  ///< over the bins between zero and the Nyquist frequency: power and log power
  double zero = 0, last = 0;              ///< the first and the last bin
  double tops[kSpectrumTops] = {};        ///< power of the strongest that the selection before leaves out
  double threshold[kSpectrumTops] = {};   ///< the weakest power selected; with nothing selected 0
  double next[kSpectrumTops] = {};        ///< the strongest left out; -1 when nothing is
};

/// For each selection how many it takes, ascending.
using TopCounts = std::array<std::uint64_t, kSpectrumTops>;

/// Bytes of work memory (256-byte aligned) that both functions take for n values. Asks the current GPU.
[[nodiscard]] std::size_t spectrum_work_bytes(std::size_t n);

/// sums := those of `values`, n >= 1; wide := the values in double precision.
void sum_values(Queue<Space::cuda> queue, const float* values, std::size_t n, const TopCounts& tops, double* wide,
                ValueSums* sums, View<std::byte, Space::cuda> work);

/// sums := those of the unnormalised `spectrum` of n values: n/2 + 1 pairs, 16-byte aligned.
void sum_power(Queue<Space::cuda> queue, const double* spectrum, std::size_t n, const TopCounts& tops, PowerSums* sums,
               View<std::byte, Space::cuda> work);

}  // namespace gradtool::cuda
