#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/analysis/real_transform.hpp"

namespace gradtool {
namespace {

/// Transforms each worker's gradient of the tensor on its own, in its native contiguous order.
class HostSpectrum final : public SpectrumAccumulator {
 public:
  explicit HostSpectrum(std::shared_ptr<const RealTransform> transform) : transform_{std::move(transform)} {}

  void observe(const Slice& slice) override {
    const auto bad =
        std::count_if(slice.gradient.begin(), slice.gradient.end(), [](float x) { return !std::isfinite(x); });
    non_finite_ += static_cast<std::uint64_t>(bad);
    if (non_finite_ > 0) return;
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
  columns.push_back(
      {"fft_advantage_15_db",
       "10 log10((1 - raw_share_15) / (1 - fft_share_15)): above 0, keeping 15 % of the frequencies loses less "
       "than keeping 15 % of the values, which is as many numbers"});
  columns.push_back(
      {"flatness",
       "spectral flatness: geometric over arithmetic mean of the power at the interior frequencies, averaged "
       "over gradients; 0.56 for white noise, near 0 when a few frequencies dominate"});
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

class Spectrum final : public Analysis {
 public:
  Spectrum(Scope studied, std::shared_ptr<AnalysisGpu> gpu)
      : Analysis{std::move(studied)},
        gpu_{std::move(gpu)},
        table_{"spectrum", spectrum_columns(leading_columns())},
        bands_{"spectrum_bands", band_columns()} {}

  [[nodiscard]] std::string_view name() const override { return "spectrum"; }
  [[nodiscard]] Unit unit() const override { return Unit::slices; }
  // The transform in place, the power of half as many bins, the magnitudes.
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

  void finish(std::size_t tensor, const Accumulator& whole) override {
    if (whole.non_finite() > 0) return add_skipped(table_, tensor, whole.non_finite());
    const auto& sums = dynamic_cast<const SpectrumAccumulator&>(whole).sums();
    add_row(&scope().tensors.at(tensor), sums);
    total_ += sums;
  }

  [[nodiscard]] std::vector<Table> tables() override {
    add_row(nullptr, total_);
    return {std::move(table_), std::move(bands_)};
  }

 private:
  void add_row(const TensorInfo* tensor, const SpectrumSums& sums) {
    const bool available = gpu_ || RealTransform::available();
    auto row = leading_cells(tensor, available ? "ok" : "unavailable",
                             available ? "" : "built without FFTW: no frequencies, the values only");
    for (const double top : sums.fft) row.push_back(ratio_cell(top, sums.spectral_energy));
    for (const double top : sums.raw) row.push_back(ratio_cell(top, sums.energy));
    row.push_back(advantage(sums));
    row.push_back(ratio_cell(sums.flatness, sums.flatness_weight));
    row.push_back(ratio_cell(sums.lag_product, sums.centred_energy));
    table_.add(std::move(row));
    if (!available) return;
    for (std::size_t band = 0; band < kBands; ++band) {
      const auto border = [](std::size_t b) { return static_cast<double>(b) / static_cast<double>(kBands); };
      bands_.add({std::int64_t{1}, scope().file, tensor != nullptr ? tensor->name : std::string{"all"},
                  static_cast<std::int64_t>(band), border(band), border(band + 1),
                  ratio_cell(sums.bands[band], sums.spectral_energy)});
    }
  }

  /// Empty when either selection keeps everything, or nothing: then there is nothing to compare.
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
  Table table_, bands_;
  SpectrumSums total_;
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
