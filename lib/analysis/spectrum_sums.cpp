#include "lib/analysis/spectrum_sums.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace gradtool {
namespace {

std::size_t top_count(double fraction, std::size_t of) {
  return static_cast<std::size_t>(std::llround(fraction * static_cast<double>(of)));
}

/// For each fraction f, from the largest down: visit(index of f, the round(f size) largest of `keys`, in no order).
/// Each selection is a prefix of the one before, so the whole costs O(size).
template <class T, class Visit>
void visit_tops(std::span<T> keys, Visit visit) {
  auto last = keys.end();
  for (std::size_t i = kTopFractions.size(); i-- > 0;) {
    const auto cut = keys.begin() + static_cast<std::ptrdiff_t>(top_count(kTopFractions[i], keys.size()));
    if (cut != keys.end() && cut != last) std::nth_element(keys.begin(), cut, last, std::greater<>{});
    visit(i, std::span<T>{keys.begin(), cut});
    last = cut;
  }
}

}  // namespace

std::array<std::uint64_t, kTopFractions.size()> top_counts(std::size_t size) {
  std::array<std::uint64_t, kTopFractions.size()> counts{};
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = top_count(kTopFractions[i], size);
  return counts;
}

void add_flatness(SpectrumSums& sums, std::size_t n, double power, double logarithms) {
  if (!(power > 0)) return;  // no interior bins, or nothing in them
  const auto count = static_cast<double>((n - 1) / 2);
  sums.flatness += std::exp(logarithms / count) / (power / count) * static_cast<double>(n);
  sums.flatness_weight += static_cast<double>(n);
}

double energy_of(const StrongestBins& bins, std::size_t n, double zero, double last) {
  double energy = 2 * bins.power;
  if (zero >= bins.threshold) energy -= zero;
  const bool in = last > bins.threshold || (last == bins.threshold && !bins.tie_left_out);
  if (n % 2 == 0 && in) energy -= last;
  return energy;
}

SpectrumSums& SpectrumSums::operator+=(const SpectrumSums& other) {
  const auto add = [](auto& mine, const auto& theirs) {
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
  };
  add(raw, other.raw);
  add(fft, other.fft);
  add(bands, other.bands);
  energy += other.energy;
  spectral_energy += other.spectral_energy;
  flatness += other.flatness;
  flatness_weight += other.flatness_weight;
  lag_product += other.lag_product;
  centred_energy += other.centred_energy;
  return *this;
}

void add_values(SpectrumSums& sums, std::span<const float> values) {
  if (values.empty()) return;
  double energy = 0, total = 0;
  for (const float value : values) {
    const double x = static_cast<double>(value);
    energy += x * x;
    total += x;
  }
  sums.energy += energy;

  // Constant values have no autocorrelation; left to arithmetic, it would be one rounding error over another.
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (*low < *high) {
    const double mean = total / static_cast<double>(values.size());
    double previous = static_cast<double>(values[0]) - mean;
    double centred = previous * previous, product = 0;
    for (std::size_t i = 1; i < values.size(); ++i) {
      const double x = static_cast<double>(values[i]) - mean;
      product += previous * x;
      centred += x * x;
      previous = x;
    }
    sums.lag_product += product;
    sums.centred_energy += centred;
  }

  std::vector<float> keys(values.size());
  std::transform(values.begin(), values.end(), keys.begin(), [](float x) { return std::fabs(x); });
  visit_tops(std::span{keys}, [&](std::size_t i, std::span<const float> top) {
    double sum = 0;
    for (const float x : top) sum += static_cast<double>(x) * static_cast<double>(x);
    sums.raw[i] += sum;
  });
}

void add_power(SpectrumSums& sums, std::size_t n, std::span<double> power) {
  for (std::size_t k = 0; k < power.size(); ++k) {
    // Bin k has the frequency k / n; the Nyquist frequency is 1/2. Integers, so that borders fall exactly.
    const std::size_t band = std::min(kBands - 1, 2 * kBands * k / n);
    sums.bands[band] += bin_weight(k, n) * power[k];
  }
  double energy = 0;
  for (std::size_t k = 0; k < power.size(); ++k) energy += bin_weight(k, n) * power[k];
  sums.spectral_energy += energy;
  double interior = 0, logarithms = 0;
  for (std::size_t k = 1; 2 * k < n; ++k) {
    interior += power[k];
    logarithms += std::log(power[k]);
  }
  add_flatness(sums, n, interior, logarithms);

  const double zero = power[0], last = power[power.size() - 1];
  visit_tops(power, [&](std::size_t i, std::span<const double> top) {
    if (top.empty()) return;
    StrongestBins bins{.threshold = top[0]};
    for (const double x : top) {
      bins.power += x;
      bins.threshold = std::min(bins.threshold, x);
    }
    bins.tie_left_out =
        std::find(power.begin() + static_cast<std::ptrdiff_t>(top.size()), power.end(), bins.threshold) != power.end();
    sums.fft[i] += energy_of(bins, n, zero, last);
  });
}

}  // namespace gradtool
