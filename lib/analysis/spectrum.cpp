#include "lib/analysis/spectrum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/analysis/real_transform.hpp"

namespace gradtool {
namespace {

std::size_t top_count(double fraction, std::size_t size) {
  return static_cast<std::size_t>(std::llround(fraction * static_cast<double>(size)));
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

void add_flatness(SpectrumSums& sums, std::size_t n, double power, double logarithms, double energy) {
  // An FFT in double precision errs by some 1e-16 log n of the values' norm. A float32 that differs by its last bit
  // from all others, one of 1e8, has a share of 3e-23.
  constexpr double kRounding = 1e-28;
  if (!(power > kRounding * energy)) return;  // no interior bins, or nothing in them
  const std::size_t interior = (n - 1) / 2;
  const auto count = static_cast<double>(interior);
  sums.flatness += std::exp(logarithms / count) / (power / count) * static_cast<double>(n);
  sums.flatness_weight += static_cast<double>(n);
}

void add_tops(std::span<double> squares, std::array<double, kTopFractions.size()>& sums) {
  visit_tops(squares, [&](std::size_t i, std::span<const double> top) {
    sums[i] += std::accumulate(top.begin(), top.end(), 0.0);
  });
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

  // Constant values have no autocorrelation. Computed all the same, it would be the quotient of two rounding errors.
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
  add_flatness(sums, n, interior, logarithms, energy);

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

namespace {

/// Transforms each worker's gradient of the tensor on its own, in its native contiguous order.
class HostSpectrum final : public SpectrumAccumulator {
 public:
  explicit HostSpectrum(std::shared_ptr<const RealTransform> transform) : transform_{std::move(transform)} {}

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient)) return;
    add_values(sums_, slice.gradient);
    if (!transform_) return;
    power_.resize(transform_->bins());
    transform_->power(slice.gradient, power_);
    add_power(sums_, slice.gradient.size(), power_);
  }

  void close() override { power_ = {}; }

 private:
  std::shared_ptr<const RealTransform> transform_;
  std::vector<double> power_;
};

std::string percent_suffix(double fraction) {
  return fmt::format("{:02.0f}", 100 * fraction);
}

std::vector<Column> spectrum_columns(std::vector<Column> columns) {
  for (const double f : kTopFractions) {
    columns.push_back({"fft_share_" + percent_suffix(f),
                       fmt::format("share of the energy in the strongest {:.0f} % of the n/2+1 frequencies", 100 * f)});
  }
  for (const double f : kTopFractions) {
    columns.push_back(
        {"raw_share_" + percent_suffix(f),
         fmt::format("share of the energy in the {:.0f} % of values that are largest by magnitude", 100 * f)});
  }
  columns.push_back({"fft_advantage_15_db",
                     "10 log10((1 - raw_share_15) / (1 - fft_share_15)): above 0, keeping 15 % of the frequencies "
                     "loses less than keeping 15 % of the values, which is as many numbers"});
  columns.push_back({"flatness",
                     "spectral flatness: geometric over arithmetic mean of the power at the interior frequencies, "
                     "averaged over gradients; 0.56 for white noise, near 0 when a few frequencies dominate"});
  columns.push_back(
      {"lag1_autocorrelation", "correlation of an element with its neighbour in the contiguous order, -1 to 1"});
  return columns;
}

std::vector<Column> band_columns() {
  return {{"schema_version", "version of this table's columns"},
          {"file", "the gradient file as named on the command line"},
          {"tensor", "name of the parameter tensor, or `all`; tensors that were skipped have no rows"},
          {"band", "number of the band, from 0; 16 bands of equal width"},
          {"from_nyquist", "lower border of the band as a fraction of the Nyquist frequency, included"},
          {"to_nyquist", "upper border, excluded but in the last band"},
          {"energy_share", "share of the energy at the frequencies of the band, conjugate bins included"}};
}

class Spectrum final : public SummingAnalysis<SpectrumSums> {
 public:
  Spectrum(Scope studied, std::shared_ptr<AnalysisGpu> gpu)
      : SummingAnalysis{std::move(studied), Unit::slices},
        gpu_{std::move(gpu)},
        table_{make_table("spectrum", spectrum_columns(leading_columns()))},
        bands_{make_table("spectrum_bands", band_columns())} {}

  // 8 bytes for the transform in place, 4 for the power of half as many bins, and 4 for the magnitudes.
  [[nodiscard]] std::size_t bytes_per_element() const override { return 8 + 4 + 4; }

  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    if (gpu_) return start_gpu_spectrum(gpu_, scope(), part);
    const auto n = static_cast<std::size_t>(part.count);
    if (RealTransform::available() && (!transform_ || planned_ != n)) {
      transform_ = std::make_shared<const RealTransform>(n);
      planned_ = n;
    }
    return std::make_unique<HostSpectrum>(transform_);
  }

 private:
  void add_rows(const TensorInfo* tensor, const SpectrumSums& sums) override {
    const bool available = gpu_ || RealTransform::available();
    auto row = leading_cells(tensor, available ? "ok" : "unavailable",
                             available ? "" : "built without FFTW: no frequencies, the values only");
    for (const double top : sums.fft) row.push_back(ratio_cell(top, sums.spectral_energy));
    for (const double top : sums.raw) row.push_back(ratio_cell(top, sums.energy));
    append(row, advantage(sums), ratio_cell(sums.flatness, sums.flatness_weight),
           ratio_cell(sums.lag_product, sums.centred_energy));
    table_.add(std::move(row));
    if (!available) return;
    for (std::size_t band = 0; band < kBands; ++band) {
      const auto border = [](std::size_t b) { return static_cast<double>(b) / static_cast<double>(kBands); };
      bands_.add({std::int64_t{1}, scope().file, tensor != nullptr ? tensor->name : std::string{"all"},
                  static_cast<std::int64_t>(band), border(band), border(band + 1),
                  ratio_cell(sums.bands[band], sums.spectral_energy)});
    }
  }

  /// fft_advantage_15_db. Empty when one of the selections keeps everything or nothing.
  static Cell advantage(const SpectrumSums& sums) {
    constexpr std::size_t kFifteen = 3;
    static_assert(kTopFractions[kFifteen] == 0.15);
    if (!(sums.raw[kFifteen] > 0 && sums.fft[kFifteen] > 0)) return {};
    const double raw_loss = 1 - sums.raw[kFifteen] / sums.energy;
    const double fft_loss = 1 - sums.fft[kFifteen] / sums.spectral_energy;
    constexpr double kNothing = 1e-12;
    if (raw_loss < kNothing || fft_loss < kNothing) return {};
    return 10 * std::log10(raw_loss / fft_loss);
  }

  std::shared_ptr<AnalysisGpu> gpu_;
  Table &table_, &bands_;
  std::shared_ptr<const RealTransform> transform_;
  std::size_t planned_ = 0;
};

}  // namespace

std::unique_ptr<Analysis> make_spectrum(Scope scope, std::shared_ptr<AnalysisGpu> gpu) {
  return std::make_unique<Spectrum>(std::move(scope), std::move(gpu));
}

bool spectrum_available() {
  return RealTransform::available();
}

}  // namespace gradtool
