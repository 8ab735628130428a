#include "lib/analysis/transforms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>
#include <string>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/real_transform.hpp"
#include "lib/analysis/slices.hpp"
#include "lib/analysis/spectrum.hpp"

namespace gradtool {
namespace {

/// Calls `transform` for each power of two that values.size() is the sum of, the largest first.
template <class Transform>
void by_powers_of_two(std::span<double> values, Transform transform) {
  while (!values.empty()) {
    const std::size_t length = std::bit_floor(values.size());
    transform(values.first(length));
    values = values.subspan(length);
  }
}

}  // namespace

void hadamard(std::span<double> values) {
  by_powers_of_two(values, [](std::span<double> piece) {
    for (std::size_t half = 1; half < piece.size(); half *= 2) {
      for (std::size_t first = 0; first < piece.size(); first += 2 * half) {
        for (std::size_t i = first; i < first + half; ++i) {
          const double a = piece[i], b = piece[i + half];
          piece[i] = a + b;
          piece[i + half] = a - b;
        }
      }
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(piece.size()));
    for (double& x : piece) x *= scale;
  });
}

void haar(std::span<double> values) {
  std::vector<double> differences(values.size() / 2);
  by_powers_of_two(values, [&](std::span<double> piece) {
    for (std::size_t length = piece.size(); length > 1; length /= 2) {
      const std::size_t half = length / 2;
      for (std::size_t i = 0; i < half; ++i) {
        const double a = piece[2 * i], b = piece[2 * i + 1];
        piece[i] = (a + b) * std::numbers::sqrt2 / 2;
        differences[i] = (a - b) * std::numbers::sqrt2 / 2;
      }
      std::copy_n(differences.begin(), half, piece.begin() + static_cast<std::ptrdiff_t>(half));
    }
  });
}

std::vector<std::size_t> hwio_order(const TensorInfo& tensor) {
  if (!Slicing{tensor, 0}.transposed()) return {};
  const auto outputs = static_cast<std::size_t>(tensor.shape[0]), inputs = static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t taps = static_cast<std::size_t>(tensor.elements) / (outputs * inputs);
  if (taps == 1) return {};
  std::vector<std::size_t> order;
  order.reserve(outputs * inputs * taps);
  for (std::size_t tap = 0; tap < taps; ++tap) {
    for (std::size_t input = 0; input < inputs; ++input) {
      for (std::size_t output = 0; output < outputs; ++output) order.push_back((output * inputs + input) * taps + tap);
    }
  }
  return order;
}

namespace {

/// Steps that are transformed, at most: three orders in five bases are the costliest analysis of all.
constexpr std::size_t kTransformSteps = 8;
constexpr std::size_t kSegment = 64;  ///< of Welch's estimate, in elements
constexpr std::size_t kElementLags = 16;
constexpr std::size_t kFifteen = 3;
static_assert(kTopFractions[kFifteen] == 0.15);
constexpr std::array<double, 3> kThetas{0.50, 0.85, 0.99};
constexpr std::array<double, 7> kErrorQuantiles{0.10, 0.25, 0.50, 0.75, 0.90, 0.99, 1.00};

enum class Order : std::uint8_t { native, hwio, sorted };
constexpr std::array kOrders{Order::native, Order::hwio, Order::sorted};
constexpr std::array kOrderNames{"native", "HWIO", "sorted"};
constexpr std::array kBasisNames{"identity", "dft", "dct", "hadamard", "haar"};
using Tops = std::array<double, kTopFractions.size()>;

template <class Numbers>
void add(Numbers& mine, const Numbers& theirs) {
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
}

/// Sums over gradients in one order of elements.
struct OrderSums {
  std::size_t longest = 0;  ///< elements of the longest
  SpectrumSums spectrum;    ///< identity and DFT
  Tops dct{}, hadamard{}, haar{};
  double entropy = 0, entropy_weight = 0;  ///< sums of n times the spectral entropy, and of n, where it is defined
  std::array<double, kElementLags> lag_products{};  ///< sum of (x_i - m)(x_{i-lag} - m)
  std::array<double, kSegment / 2 + 1> welch{};     ///< sum over gradients of the mean over segments

  OrderSums& operator+=(const OrderSums& other) {
    spectrum += other.spectrum;
    add(dct, other.dct), add(hadamard, other.hadamard), add(haar, other.haar);
    add(lag_products, other.lag_products), add(welch, other.welch);
    longest = std::max(longest, other.longest);
    entropy += other.entropy;
    entropy_weight += other.entropy_weight;
    return *this;
  }
  [[nodiscard]] bool any() const { return spectrum.energy > 0; }
  /// The energy in the strongest kTopFractions[i] of the coefficients in a basis, as a share.
  [[nodiscard]] Cell share(std::size_t basis, std::size_t i) const {
    const std::array<const Tops*, kBasisNames.size()> tops{&spectrum.raw, &spectrum.fft, &dct, &hadamard, &haar};
    return ratio_cell((*tops[basis])[i], basis == 1 ? spectrum.spectral_energy : spectrum.energy);
  }
};

/// The loss from keeping a share 1 - theta of the frequencies, or of the values.
struct ThetaSums {
  double error = 0, energy = 0;                            ///< sums of squares
  std::array<double, kErrorQuantiles.size()> quantiles{};  ///< sums of n times a quantile of |error| / rms
  double weight = 0;                                       ///< sum of n
};

struct TransformSums {
  std::array<OrderSums, kOrders.size()> orders;
  std::array<std::array<ThetaSums, kThetas.size()>, 2> thetas;  ///< [0: frequencies, 1: values]
  std::map<std::size_t, OrderSums> steps;                       ///< by step, in the native order

  TransformSums& operator+=(const TransformSums& other) {
    for (std::size_t i = 0; i < orders.size(); ++i) orders[i] += other.orders[i];
    for (std::size_t m = 0; m < thetas.size(); ++m) {
      for (std::size_t t = 0; t < kThetas.size(); ++t) {
        ThetaSums& mine = thetas[m][t];
        const ThetaSums& theirs = other.thetas[m][t];
        mine.error += theirs.error, mine.energy += theirs.energy, mine.weight += theirs.weight;
        add(mine.quantiles, theirs.quantiles);
      }
    }
    for (const auto& [step, sums] : other.steps) steps[step] += sums;
    return *this;
  }
};

/// FFTW's plans for pieces of one length.
struct Plans {
  explicit Plans(std::size_t n) : fourier{n}, cosine{n} {}
  RealTransform fourier;
  CosineTransform cosine;
};
using PlansByLength = std::map<std::size_t, std::shared_ptr<const Plans>>;

/// Shannon's entropy of the shares of the power in bins 1 .. n - 1 of the full spectrum, over that of equal shares. Bin
/// n - k has the power of bin k; the bin of the Nyquist frequency is its own mirror image.
void add_entropy(OrderSums& sums, std::size_t n, std::span<const double> power) {
  double total = 0, entropy = 0;
  for (std::size_t k = 1; k < power.size(); ++k) total += bin_weight(k, n) * power[k];
  if (power.size() < 3 || !(total > 0)) return;
  for (std::size_t k = 1; k < power.size(); ++k) {
    const double share = power[k] / total;
    if (share > 0) entropy -= bin_weight(k, n) * share * std::log(share);
  }
  sums.entropy += entropy / std::log(static_cast<double>(n - 1)) * static_cast<double>(n);
  sums.entropy_weight += static_cast<double>(n);
}

/// Autocorrelation about the gradient's own mean, as SpectrumSums::lag_product of lag 1. Constant values have none.
void add_lags(OrderSums& sums, std::span<const float> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (!(*low < *high)) return;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  std::vector<double> centred(values.begin(), values.end());
  for (double& x : centred) x -= mean;
  for (std::size_t lag = 1; lag <= std::min(kElementLags, values.size() - 1); ++lag)
    sums.lag_products[lag - 1] += dot(centred.data() + lag, centred.data(), values.size() - lag);
}

/// Welch's estimate: segments that overlap by half, less their mean, under Hann's window.
void add_welch(OrderSums& sums, std::span<const float> values, const RealTransform& transform) {
  if (values.size() < kSegment) return;
  static const auto window = [] {
    std::array<double, kSegment> hann{};
    for (std::size_t i = 0; i < kSegment; ++i)
      hann[i] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(kSegment));
    return hann;
  }();
  std::array<double, kSegment / 2 + 1> power{}, total{};
  std::array<double, kSegment> segment{};
  std::size_t count = 0;
  for (std::size_t first = 0; first + kSegment <= values.size(); first += kSegment / 2, ++count) {
    const auto part = values.subspan(first, kSegment);
    const double mean = std::accumulate(part.begin(), part.end(), 0.0) / static_cast<double>(kSegment);
    for (std::size_t i = 0; i < kSegment; ++i) segment[i] = (static_cast<double>(part[i]) - mean) * window[i];
    transform.power(std::span<const double>{segment}, power);
    add(total, power);
  }
  for (std::size_t k = 0; k < total.size(); ++k)
    sums.welch[k] += bin_weight(k, kSegment) * total[k] / static_cast<double>(count);
}

class TransformsOfGradient final : public Summing<TransformSums> {
 public:
  TransformsOfGradient(const TensorInfo& tensor, bool studied, PlansByLength plans,
                       std::shared_ptr<const RealTransform> welch)
      : tensor_{tensor}, studied_{studied}, plans_{std::move(plans)}, welch_{std::move(welch)} {}

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient) || !studied_) return;
    study(Order::native, slice.gradient, &sums_.steps[slice.step]);
    std::vector<float> values;
    if (const auto order = hwio_order(tensor_); !order.empty()) {
      values.reserve(order.size());
      for (const std::size_t i : order) values.push_back(slice.gradient[i]);
      study(Order::hwio, values, nullptr);
    }
    values.assign(slice.gradient.begin(), slice.gradient.end());
    study(Order::sorted, values, nullptr);
  }
  void close() override { plans_ = {}; }

 private:
  void study(Order order, std::span<const float> values, OrderSums* by_step) {
    for (const auto& [first, count] : studied_pieces(values.size())) {
      const auto piece = values.subspan(first, count);
      OrderSums found;
      if (order == Order::sorted) {
        std::vector<float> sorted(piece.begin(), piece.end());
        std::sort(sorted.begin(), sorted.end());
        study_piece(sorted, found);
      } else {
        study_piece(piece, found);
        if (order == Order::native) add_errors(piece);
      }
      sums_.orders[static_cast<std::size_t>(order)] += found;
      if (by_step != nullptr) *by_step += found;
    }
  }

  void study_piece(std::span<const float> values, OrderSums& found) {
    const std::size_t n = values.size();
    const Plans& plans = *plans_.at(n);
    found.longest = n;
    add_values(found.spectrum, values);
    add_lags(found, values);
    add_welch(found, values, *welch_);
    std::vector<double> work(plans.fourier.bins());
    plans.fourier.power(values, work);
    add_entropy(found, n, work);
    add_power(found.spectrum, n, work);
    work.resize(n);
    plans.cosine.squares(values, work);
    add_tops(work, found.dct);
    const std::array<std::pair<void (*)(std::span<double>), Tops*>, 2> bases{
        {{hadamard, &found.hadamard}, {haar, &found.haar}}};
    for (const auto& [transform, tops] : bases) {
      std::copy(values.begin(), values.end(), work.begin());
      transform(work);
      for (double& x : work) x *= x;
      add_tops(work, *tops);
    }
  }

  /// Figures of the FFT paper: what is lost where a share theta of the frequencies, or of the values, is dropped.
  void add_errors(std::span<const float> values) {
    const std::size_t n = values.size();
    const RealTransform& fourier = plans_.at(n)->fourier;
    double energy = 0;
    for (const float x : values) energy += static_cast<double>(x) * static_cast<double>(x);
    if (!(energy > 0)) return;
    const double rms = std::sqrt(energy / static_cast<double>(n));
    std::vector<float> magnitudes(n);
    std::transform(values.begin(), values.end(), magnitudes.begin(), [](float x) { return std::fabs(x); });
    std::sort(magnitudes.begin(), magnitudes.end());
    std::vector<double> errors(n);
    for (std::size_t t = 0; t < kThetas.size(); ++t) {
      const auto kept = [&](std::size_t of) {
        return static_cast<std::size_t>(std::llround((1 - kThetas[t]) * static_cast<double>(of)));
      };
      fourier.keep_strongest(values, kept(fourier.bins()), errors);
      for (std::size_t i = 0; i < n; ++i) errors[i] = std::fabs(errors[i] - static_cast<double>(values[i]));
      add_error(sums_.thetas[0][t], errors, energy, rms);
      // The values that top-k keeps have no error; each dropped value is its own error.
      std::fill(errors.begin(), errors.end(), 0.0);
      std::copy_n(magnitudes.begin(), n - kept(n), errors.begin());
      add_error(sums_.thetas[1][t], errors, energy, rms);
    }
  }

  /// Quantile q is the error of rank ceil(q n), the smallest has rank 1.
  static void add_error(ThetaSums& sums, std::span<double> errors, double energy, double rms) {
    const auto n = static_cast<double>(errors.size());
    for (const double e : errors) sums.error += e * e;
    sums.energy += energy;
    sums.weight += n;
    auto first = errors.begin();
    for (std::size_t q = 0; q < kErrorQuantiles.size(); ++q) {
      const auto rank = std::max(1.0, std::ceil(kErrorQuantiles[q] * n));
      const auto at = errors.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
      if (at >= first) std::nth_element(first, at, errors.end());
      first = std::max(first, at);
      sums.quantiles[q] += *at / rms * n;
    }
  }

  const TensorInfo& tensor_;
  bool studied_;
  PlansByLength plans_;
  std::shared_ptr<const RealTransform> welch_;
};

std::vector<Column> transform_columns(std::vector<Column> columns) {
  columns.push_back({"studied_steps", "captured steps that were transformed: all, or 8 evenly spaced ones"});
  for (const char* order : {"native", "hwio"}) {
    for (std::size_t basis = order == std::string{"native"} ? 0 : 1; basis < kBasisNames.size(); ++basis) {
      columns.push_back(
          {fmt::format("{}_{}_15", order, kBasisNames[basis]),
           fmt::format("share of the energy in the strongest 15 % of the coefficients, order {}, basis {}{}",
                       order == std::string{"hwio"} ? "HWIO" : order, kBasisNames[basis],
                       order == std::string{"hwio"} ? "; empty where there is no such order" : "")});
    }
  }
  columns.push_back({"best_basis", "the one with the largest of these shares, as order/basis"});
  columns.push_back(
      {"spectral_entropy",
       "entropy of the shares of the full spectrum's power at the frequencies 1/n to (n - 1)/n over log(n - 1), native "
       "order, averaged over gradients: 1 for equal powers, near it for noise, log 2 / log(n - 1) for one frequency"});
  return columns;
}

class TransformAnalysis final : public Analysis {
 public:
  explicit TransformAnalysis(Scope studied)
      : Analysis{std::move(studied), Unit::slices},
        steps_{evenly_spaced(kTransformSteps, scope().steps())},
        table_{make_table("transforms", transform_columns(leading_columns()))},
        compaction_{
            make_long_table("compaction", {{"order",
                                            "order of the elements: native (as stored), HWIO (convolutions: taps, "
                                            "input, output channels) or sorted (by value)"},
                                           {"basis", "identity, dft, dct, hadamard or haar, all orthonormal"},
                                           {"kept", "share of the coefficients that is kept, the strongest ones"},
                                           {"energy_share", "share of the energy in them"}})},
        spectra_{
            make_long_table("spectra", {{"order", "as in compaction.csv"},
                                        {"estimate", "periodogram (energies in 16 bands) or welch (segments of 64)"},
                                        {"frequency", "in cycles per element, 0 to 0.5; the middle of a band"},
                                        {"share", "share of the power; shares of one spectrum add up to 1"}})},
        lags_{
            make_long_table("autocorrelation", {{"order", "as in compaction.csv"},
                                                {"lag", "distance of two elements in that order"},
                                                {"autocorrelation", "correlation of elements so far apart, -1 to 1"}})},
        errors_{make_long_table(
            "fft_errors", {{"method", "fft (frequencies are dropped) or topk (values are)"},
                           {"theta", "share of the frequencies, or of the values, that is dropped"},
                           {"nmse", "squared error over squared norm"},
                           {"quantile", "of the absolute errors of a gradient's elements"},
                           {"error", "that quantile over the gradient's root mean square, mean over gradients"}})},
        by_step_{make_long_table("spectrum_steps",
                                 {{"step", "position of the captured step, from 0"},
                                  {"iteration", "training iteration of that step"},
                                  {"low_share", "share of the energy in the lowest quarter of the frequencies"},
                                  {"spectral_entropy", "as in transforms.csv"},
                                  {"fft_share_15", "share of the energy in the strongest 15 % of the frequencies"},
                                  {"raw_share_15", "share of the energy in the largest 15 % of the values"}})} {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return 4 + 8; }

  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    const TensorInfo& tensor = scope().tensors.at(part.tensor);
    if (planned_ != part.tensor) plans_.clear();
    planned_ = part.tensor;
    const bool studied = std::binary_search(steps_.begin(), steps_.end(), part.first_step);
    if (studied && !welch_) welch_ = std::make_shared<const RealTransform>(kSegment);
    for (const Piece& piece : studied ? studied_pieces(part.count) : std::vector<Piece>{}) {
      if (auto& plans = plans_[piece.count]; !plans) plans = std::make_shared<const Plans>(piece.count);
    }
    return std::make_unique<TransformsOfGradient>(tensor, studied, plans_, welch_);
  }

  void add(std::size_t tensor, const Accumulator& whole) override {
    const auto& sums = dynamic_cast<const TransformsOfGradient&>(whole).sums();
    const TensorInfo& info = scope().tensors.at(tensor);
    add_rows(&info, info.kind, sums);
    kinds_[info.kind] += sums;
    all_ += sums;
  }

  void add_all() override {
    for (const auto& [kind, sums] : kinds_) add_rows(nullptr, kind, sums);
    add_rows(nullptr, "", all_);
  }

 private:
  void add_rows(const TensorInfo* tensor, const std::string& kind, const TransformSums& sums) {
    if (tensor != nullptr || kind.empty()) add_headline(tensor, sums);
    const auto begin = long_cells(tensor, kind);
    const auto row = [&](std::initializer_list<Cell> cells) {
      std::vector<Cell> all = begin;
      all.insert(all.end(), cells);
      return all;
    };
    for (std::size_t o = 0; o < kOrders.size(); ++o) {
      const OrderSums& order = sums.orders[o];
      if (!order.any()) continue;
      for (std::size_t b = 0; b < kBasisNames.size(); ++b) {
        for (std::size_t i = 0; i < kTopFractions.size(); ++i)
          compaction_.add(row({kOrderNames[o], kBasisNames[b], kTopFractions[i], order.share(b, i)}));
      }
      for (std::size_t band = 0; band < kBands; ++band) {
        spectra_.add(
            row({kOrderNames[o], "periodogram", (static_cast<double>(band) + 0.5) / (2.0 * static_cast<double>(kBands)),
                 ratio_cell(order.spectrum.bands[band], order.spectrum.spectral_energy)}));
      }
      const double welch = std::accumulate(order.welch.begin(), order.welch.end(), 0.0);
      for (std::size_t k = 0; welch > 0 && k < order.welch.size(); ++k) {
        spectra_.add(row(
            {kOrderNames[o], "welch", static_cast<double>(k) / static_cast<double>(kSegment), order.welch[k] / welch}));
      }
      for (std::size_t lag = 1; lag <= kElementLags; ++lag) {
        const bool any = lag < order.longest;  // two elements so far apart
        lags_.add(row({kOrderNames[o], static_cast<std::int64_t>(lag),
                       any ? ratio_cell(order.lag_products[lag - 1], order.spectrum.centred_energy) : Cell{}}));
      }
    }
    for (std::size_t m = 0; m < sums.thetas.size(); ++m) {
      for (std::size_t t = 0; t < kThetas.size(); ++t) {
        const ThetaSums& theta = sums.thetas[m][t];
        if (!(theta.energy > 0)) continue;
        for (std::size_t q = 0; q < kErrorQuantiles.size(); ++q) {
          errors_.add(row({m == 0 ? "fft" : "topk", kThetas[t], theta.error / theta.energy, kErrorQuantiles[q],
                           theta.quantiles[q] / theta.weight}));
        }
      }
    }
    for (const auto& [step, order] : sums.steps) {
      const std::size_t position = scope().first_step + step;
      const double low = std::accumulate(order.spectrum.bands.begin(), order.spectrum.bands.begin() + kBands / 4, 0.0);
      by_step_.add(row(
          {static_cast<std::int64_t>(position), iteration_at(position), ratio_cell(low, order.spectrum.spectral_energy),
           ratio_cell(order.entropy, order.entropy_weight), order.share(1, kFifteen), order.share(0, kFifteen)}));
    }
  }

  void add_headline(const TensorInfo* tensor, const TransformSums& sums) {
    auto row = leading_cells(tensor, "ok", "");
    row.emplace_back(static_cast<std::int64_t>(steps_.size()));
    std::string best;
    double most = -1.0;
    for (const Order o : {Order::native, Order::hwio}) {
      const OrderSums& order = sums.orders[static_cast<std::size_t>(o)];
      for (std::size_t basis = o == Order::native ? 0 : 1; basis < kBasisNames.size(); ++basis) {
        // A row for all tensors pools convolutions alone in the order HWIO: not what the other shares are of.
        const Cell share = tensor == nullptr && o == Order::hwio ? Cell{} : order.share(basis, kFifteen);
        row.push_back(share);
        if (const auto* value = std::get_if<double>(&share); value != nullptr && *value > most) {
          most = *value;
          best = fmt::format("{}/{}", kOrderNames[static_cast<std::size_t>(o)], kBasisNames[basis]);
        }
      }
    }
    row.push_back(best.empty() ? Cell{} : Cell{best});
    const OrderSums& native = sums.orders.front();
    row.push_back(ratio_cell(native.entropy, native.entropy_weight));
    table_.add(std::move(row));
  }

  std::vector<std::size_t> steps_;  ///< those that are transformed
  Table &table_, &compaction_, &spectra_, &lags_, &errors_, &by_step_;
  std::map<std::string, TransformSums> kinds_;
  TransformSums all_;
  PlansByLength plans_;
  std::shared_ptr<const RealTransform> welch_;
  std::size_t planned_ = static_cast<std::size_t>(-1);  ///< the tensor that plans_ are for
};

}  // namespace

std::unique_ptr<Analysis> make_transforms(Scope scope) {
  return std::make_unique<TransformAnalysis>(std::move(scope));
}

}  // namespace gradtool
