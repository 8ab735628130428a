#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/analysis/analysis.hpp"

namespace gradtool {

/// The fractions of frequencies, and of values, whose share of the energy is reported.
inline constexpr std::array<double, 5> kTopFractions{0.01, 0.05, 0.10, 0.15, 0.25};
inline constexpr std::size_t kBands = 16;

/// Sums over one or many gradients; each gradient contributes its own selections. Sums of several parts are added.
struct SpectrumSums {
  double energy = 0;                               ///< sum of x^2 over all values
  std::array<double, kTopFractions.size()> raw{};  ///< energy of the round(f n) values of largest magnitude
  double spectral_energy = 0;                      ///< sum over bins of weight |X|^2; equals `energy` up to rounding
  std::array<double, kTopFractions.size()> fft{};  ///< energy of the round(f B) strongest of the B = n/2 + 1 bins
  std::array<double, kBands> bands{};              ///< energy of the bins in [b, b+1) / 16 of the Nyquist frequency
  double flatness = 0, flatness_weight = 0;        ///< sums of n times flatness, and of n, where flatness is defined
  double lag_product = 0, centred_energy = 0;      ///< sums of (x_i - m)(x_{i-1} - m) and (x_i - m)^2, m the mean

  SpectrumSums& operator+=(const SpectrumSums& other);
};

/// Adds the sums that need no transform: energy, raw, lag_product and centred_energy. O(n); allocates 4 n bytes.
void add_values(SpectrumSums& sums, std::span<const float> values);

/// Adds the sums over the power spectrum of n values, the squared magnitudes of the unitary transform (RealTransform).
/// `power` is reordered. O(n).
void add_power(SpectrumSums& sums, std::size_t n, std::span<double> power);

// Parts of the two functions above, for the GPU version.

/// How many of `size` values or bins each selection of kTopFractions takes.
[[nodiscard]] std::array<std::uint64_t, kTopFractions.size()> top_counts(std::size_t size);
/// Adds the flatness of one gradient, given the sums of the power and of its logarithm over the interior bins of n
/// values, and the energy of all bins. Interior power that the transform's rounding alone may have made counts as none:
/// which bins of a constant gradient are exactly 0 differs from one FFT library to another.
void add_flatness(SpectrumSums& sums, std::size_t n, double power, double logarithms, double energy);
/// A selection of the strongest bins.
struct StrongestBins {
  double power = 0;           ///< sum of their powers
  double threshold = 0;       ///< the power of the weakest of them
  bool tie_left_out = false;  ///< whether a bin of the same power as the weakest one is not in the selection
};
/// The energy in a selection of the bins of n values. All bins count twice, except the first one (power `zero`) and,
/// for even n, the last one (power `last`). Of bins with the same power at the threshold the lower frequency is
/// selected.
[[nodiscard]] double energy_of(const StrongestBins& bins, std::size_t n, double zero, double last);

/// For each of kTopFractions, adds the sum of the round(f n) largest of these n squares. `squares` is reordered. O(n).
void add_tops(std::span<double> squares, std::array<double, kTopFractions.size()>& sums);

/// Weight of bin k of n values in the energy: 1 at frequency 0 and at the Nyquist frequency, 2 elsewhere.
[[nodiscard]] constexpr double bin_weight(std::size_t k, std::size_t n) {
  return k == 0 || 2 * k == n ? 1.0 : 2.0;
}

/// The sums of the spectrum analysis, on the CPU or on a GPU.
using SpectrumAccumulator = Summing<SpectrumSums>;

}  // namespace gradtool
