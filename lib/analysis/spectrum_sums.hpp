#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtool {

/// The fractions of frequencies, and of values, whose share of the energy is reported.
inline constexpr std::array<double, 5> kTopFractions{0.01, 0.05, 0.10, 0.15, 0.25};
inline constexpr std::size_t kBands = 16;

/// Sums of squares over one or many gradients; each gradient contributes its own selection. All additive.
struct SpectrumSums {
  double energy = 0;                               ///< sum of x^2
  std::array<double, kTopFractions.size()> raw{};  ///< of the round(f n) largest values by magnitude
  double spectral_energy = 0;                      ///< sum over bins of weight |X|^2; equals `energy` up to rounding
  std::array<double, kTopFractions.size()> fft{};  ///< of the round(f B) strongest of the B = n/2 + 1 bins
  std::array<double, kBands> bands{};              ///< of bins in [b, b+1) / 16 of the Nyquist frequency
  double flatness = 0, flatness_weight = 0;        ///< sum of n times flatness, and of n, where flatness is defined
  double lag_product = 0, centred_energy = 0;      ///< for the lag-1 autocorrelation, about each gradient's own mean

  SpectrumSums& operator+=(const SpectrumSums& other);
};

/// What needs no transform: energy, raw, lag_product, centred_energy. O(n); allocates 4 n bytes.
void add_values(SpectrumSums& sums, std::span<const float> values);

/// What the power spectrum of n values (RealTransform, unitary) says. `power` is reordered. O(n).
void add_power(SpectrumSums& sums, std::size_t n, std::span<double> power);

// Parts of the two above, for sums that were taken elsewhere.
/// How many of `size` each selection takes.
[[nodiscard]] std::array<std::uint64_t, kTopFractions.size()> top_counts(std::size_t size);
/// From the sums of power and of its logarithm over the interior bins of n values.
void add_flatness(SpectrumSums& sums, std::size_t n, double power, double logarithms);
/// The strongest bins of n values: their power, the weakest of them, and whether one as strong was left out.
struct StrongestBins {
  double power = 0, threshold = 0;
  bool tie_left_out = false;
};
/// Their energy, given the power at the edges: all bins count twice but the one or two edges; ties at the threshold go
/// to the lower frequency.
[[nodiscard]] double energy_of(const StrongestBins& bins, std::size_t n, double zero, double last);

/// Weight of bin k of n values in the energy: 1 at frequency 0 and at the Nyquist frequency, 2 elsewhere.
[[nodiscard]] constexpr double bin_weight(std::size_t k, std::size_t n) {
  return k == 0 || 2 * k == n ? 1.0 : 2.0;
}

}  // namespace gradtool
