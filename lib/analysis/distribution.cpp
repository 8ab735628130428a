#include "lib/analysis/distribution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/math/special_functions/beta.hpp>
#include <boost/math/special_functions/digamma.hpp>
#include <boost/math/special_functions/gamma.hpp>
#include <boost/math/special_functions/trigamma.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/float_bits.hpp"
#include "kernels/small_float.hpp"
#include "lib/analysis/analysis.hpp"
#include "lib/analysis/intervals.hpp"

namespace gradtool {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeastShape = 0.1, kMostShape = 20.0;
/// Beyond it Student's t and the normal distribution differ by less than 1e-5 anywhere.
constexpr double kMostFreedom = 1e4;

/// The x in [low, high], 0 < low, at which a falling function is `wanted`, to the last digits of a double.
template <class Function>
double solve_falling(Function function, double wanted, double low, double high) {
  if (function(low) <= wanted) return low;
  if (function(high) >= wanted) return high;
  while (high > low * (1 + 1e-14)) {
    const double middle = std::sqrt(low * high);
    if (middle <= low || middle >= high) break;
    (function(middle) > wanted ? low : high) = middle;
  }
  return high;
}

/// E x^2 / (E|x|)^2 of a generalised normal distribution: pi/2 for shape 2, 2 for shape 1, larger for heavier tails.
double square_over_mean(double shape) {
  return std::exp(std::lgamma(1 / shape) + std::lgamma(3 / shape) - 2 * std::lgamma(2 / shape));
}

double median_of(std::span<const float> sorted) {
  const std::size_t half = sorted.size() / 2;
  const double upper = static_cast<double>(sorted[half]);
  return sorted.size() % 2 == 1 ? upper : 0.5 * (static_cast<double>(sorted[half - 1]) + upper);
}

double mean_of(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x);
  return sum / static_cast<double>(values.size());
}

Fitted fit_student(std::span<const float> sorted) {
  Fitted found{.location = median_of(sorted), .shape = kInfinity};
  double count = 0, mean = 0, squares = 0;
  for (const float x : sorted) {
    const double distance = std::fabs(static_cast<double>(x) - found.location);
    if (distance == 0) continue;
    const double value = std::log(distance), step = value - mean;
    ++count;
    mean += step / count;
    squares += step * (value - mean);
  }
  const double rest = 4 * squares / count - boost::math::trigamma(0.5);
  // trigamma falls like 1/x: no more than a little is left of many degrees of freedom.
  if (rest > boost::math::trigamma(kMostFreedom / 2))
    found.shape =
        2 * solve_falling([](double half) { return boost::math::trigamma(half); }, rest, 1e-3, kMostFreedom / 2);
  const double spread = std::isinf(found.shape)
                            ? boost::math::digamma(0.5) + std::numbers::ln2
                            : boost::math::digamma(0.5) - boost::math::digamma(found.shape / 2) + std::log(found.shape);
  found.scale = std::exp(mean - spread / 2);
  return found;
}

}  // namespace

double Fitted::cumulative(Fit fit, double x) const {
  const double z = (x - location) / scale;
  const auto both = [&](double tail) { return z < 0 ? tail / 2 : 1 - tail / 2; };  // tail: P(|Z| > |z|)
  switch (fit) {
    case Fit::normal:
      return both(std::erfc(std::fabs(z) / std::numbers::sqrt2));
    case Fit::laplace:
      return both(std::exp(-std::fabs(z)));
    case Fit::generalised_normal:
      return z == 0 ? 0.5 : both(boost::math::gamma_q(1 / shape, std::pow(std::fabs(z), shape)));
    case Fit::student_t:
      if (std::isinf(shape)) return both(std::erfc(std::fabs(z) / std::numbers::sqrt2));
      return both(boost::math::ibeta(shape / 2, 0.5, shape / (shape + z * z)));
  }
  return 0;
}

Fitted fit_values(Fit fit, std::span<const float> sorted) {
  Fitted found;
  if (fit == Fit::student_t) {
    found = fit_student(sorted);
  } else {
    found.location = fit == Fit::laplace ? median_of(sorted) : mean_of(sorted);
    double absolute = 0, square = 0;
    for (const float x : sorted) {
      const double distance = std::fabs(static_cast<double>(x) - found.location);
      absolute += distance;
      square += distance * distance;
    }
    absolute /= static_cast<double>(sorted.size());
    square /= static_cast<double>(sorted.size());
    if (fit == Fit::normal) found.scale = std::sqrt(square);
    if (fit == Fit::laplace) found.scale = absolute;
    if (fit == Fit::generalised_normal) {
      found.shape = solve_falling(square_over_mean, square / (absolute * absolute), kLeastShape, kMostShape);
      found.scale = absolute * std::exp(std::lgamma(1 / found.shape) - std::lgamma(2 / found.shape));
    }
  }
  constexpr std::size_t kMostRanks = 1024;
  const auto n = static_cast<double>(sorted.size());
  for (const std::size_t rank : evenly_spaced(kMostRanks, sorted.size())) {
    const double share = found.cumulative(fit, static_cast<double>(sorted[rank])), i = static_cast<double>(rank);
    found.distance = std::max({found.distance, std::fabs(share - i / n), std::fabs(share - (i + 1) / n)});
  }
  return found;
}

double hill(std::span<const float> sorted_magnitudes, std::size_t count) {
  const double threshold = static_cast<double>(sorted_magnitudes[sorted_magnitudes.size() - count - 1]);
  double sum = 0;
  for (const float x : sorted_magnitudes.last(count)) sum += std::log(static_cast<double>(x) / threshold);
  return sum / static_cast<double>(count);
}

namespace {

constexpr std::size_t kMostSteps = 16;
constexpr std::array<double, 5> kQuantiles{0.50, 0.90, 0.99, 0.999, 1.0};
constexpr double kTail = 0.01;            ///< share of the magnitudes that Hill's estimate takes
constexpr std::size_t kLeastInTail = 10;  ///< fewer say nothing

/// A type that gradients may be rounded to.
enum class Format : std::uint8_t { fp16, bf16, e4m3, e4m3_scaled, e5m2, e5m2_scaled, nvfp4, int8, int4 };
constexpr std::array kFormatNames{
    "fp16",  "bf16",        "fp8 e4m3",   "fp8 e4m3, scaled", "fp8 e5m2", "fp8 e5m2, scaled",
    "nvfp4", "int8, drawn", "int4, drawn"};
constexpr double kClip = 2.5;  ///< of ternary values, in standard deviations (Wen et al. 2017)

struct FormatSums {
  double vanished = 0, clipped = 0;  ///< values that are not 0 but become it; values beyond the largest number
  double error = 0;                  ///< sum of squares; beyond the largest number it saturates
};

struct FitSums {
  double shape = 0, inverse_shape = 0, scale = 0, distance = 0;  ///< sums of n times; scale over the root mean square
};

struct DistributionSums {
  double weight = 0, energy = 0, non_zero = 0;        ///< sums of n, of x^2, of the number of values that are not 0
  double magnitude_weight = 0;                        ///< sum of n of gradients that are not all 0
  std::array<double, kQuantiles.size()> quantiles{};  ///< sums of n times |x|'s quantile over the root mean square
  double tail = 0, tail_weight = 0;                   ///< sums of n / alpha, and of n, where it is defined
  double inverse_tail = 0, inverse_tail_squares = 0;  ///< sums of 1 / alpha and of its square over `tails` gradients
  double tails = 0;
  std::array<FitSums, kFitNames.size()> fits{};
  double fit_weight = 0;  ///< sum of n of gradients whose values are not all equal
  std::array<FormatSums, kFormatNames.size()> formats{};
  double ternary_variance = 0, ternary_bias = 0;   ///< squared error of ternary values by drawing, and by clipping
  std::array<std::array<double, 256>, 4> bytes{};  ///< how often each value of each byte of a float32 is there
  std::array<double, 256> exponents{};

  DistributionSums& operator+=(const DistributionSums& other) {
    weight += other.weight, energy += other.energy, non_zero += other.non_zero;
    magnitude_weight += other.magnitude_weight;
    for (std::size_t i = 0; i < quantiles.size(); ++i) quantiles[i] += other.quantiles[i];
    inverse_tail += other.inverse_tail, inverse_tail_squares += other.inverse_tail_squares, tails += other.tails;
    tail += other.tail, tail_weight += other.tail_weight, fit_weight += other.fit_weight;
    for (std::size_t i = 0; i < fits.size(); ++i) {
      fits[i].shape += other.fits[i].shape, fits[i].inverse_shape += other.fits[i].inverse_shape;
      fits[i].scale += other.fits[i].scale, fits[i].distance += other.fits[i].distance;
    }
    for (std::size_t i = 0; i < formats.size(); ++i) {
      formats[i].vanished += other.formats[i].vanished, formats[i].clipped += other.formats[i].clipped;
      formats[i].error += other.formats[i].error;
    }
    ternary_variance += other.ternary_variance, ternary_bias += other.ternary_bias;
    for (std::size_t b = 0; b < 4; ++b) {
      for (std::size_t i = 0; i < 256; ++i) bytes[b][i] += other.bytes[b][i];
    }
    for (std::size_t i = 0; i < 256; ++i) exponents[i] += other.exponents[i];
    return *this;
  }
};

/// In bits.
double entropy_of(std::span<const double> counts) {
  double total = 0, sum = 0;
  for (const double count : counts) total += count;
  for (const double count : counts) {
    if (count > 0) sum -= count / total * std::log2(count / total);
  }
  return sum;
}

/// Adds values that are rounded after multiplication by `factor`; `rounded` saturates at `largest`.
template <class Round>
void add_format(FormatSums& sums, std::span<const float> values, double factor, double largest, Round rounded) {
  if (!(factor > 0) || !std::isfinite(factor)) return;
  for (const float x : values) {
    const auto scaled = static_cast<float>(static_cast<double>(x) * factor);
    const double back = static_cast<double>(rounded(scaled)) / factor;
    const double error = back - static_cast<double>(x);
    sums.error += error * error;
    sums.vanished += x != 0.0F && back == 0 ? 1 : 0;
    sums.clipped += std::fabs(static_cast<double>(scaled)) > largest ? 1 : 0;
  }
}

float nearest(const format::SmallFloat& type, float x) {
  return type.value(type.nearest(x));
}

double largest_of(std::span<const float> values) {
  double largest = 0;
  for (const float x : values) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  return largest;
}

/// NVFP4 as Transformer Engine has it: E2M1 in blocks of 16 elements with a scale in E4M3 each, and one float32 for the
/// tensor that puts the largest scale at 448.
void add_nvfp4(FormatSums& sums, std::span<const float> values, double largest) {
  constexpr std::size_t kBlock = 16;
  constexpr double kE2M1Most = 6, kE4M3Most = 448;
  if (!(largest > 0)) return;
  const double tensor = kE4M3Most * kE2M1Most / largest;
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = values.subspan(first, std::min(kBlock, values.size() - first));
    const auto wanted = static_cast<float>(largest_of(block) / kE2M1Most * tensor);
    const auto scale = static_cast<double>(nearest(format::kE4M3, wanted));
    if (scale > 0) {
      add_format(sums, block, tensor / scale, kE2M1Most, [](float x) { return nearest(format::kE2M1, x); });
      continue;
    }
    for (const float x : block) {
      sums.error += static_cast<double>(x) * static_cast<double>(x);
      sums.vanished += x != 0.0F ? 1 : 0;
    }
  }
}

/// Integers of -levels .. levels in blocks of 512 that their largest magnitude scales (QSGD, Alistarh et al. 2017, with
/// the largest magnitude as norm): one of the two levels around a value is drawn so that the mean is the value, which
/// has the variance f (1 - f) of a level, f the place between them.
void add_drawn(FormatSums& sums, std::span<const float> values, double levels) {
  constexpr std::size_t kBlock = 512;
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = values.subspan(first, std::min(kBlock, values.size() - first));
    const double level = largest_of(block) / levels;
    if (!(level > 0)) continue;
    for (const float x : block) {
      const double at = std::fabs(static_cast<double>(x)) / level, place = at - std::floor(at);
      sums.error += place * (1 - place) * level * level;
      sums.vanished += x != 0.0F ? std::max(0.0, 1 - at) : 0;  // how likely a 0 is drawn
    }
  }
}

class DistributionOfGradient final : public Summing<DistributionSums> {
 public:
  explicit DistributionOfGradient(bool studied) : studied_{studied} {}

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient) || !studied_) return;
    const double largest = largest_of(slice.gradient);
    for (const auto& [first, count] : studied_pieces(slice.gradient.size()))
      study(slice.gradient.subspan(first, count), largest);
  }
  void close() override { sorted_ = {}, magnitudes_ = {}; }

 private:
  void study(std::span<const float> values, double largest) {
    const auto n = static_cast<double>(values.size());
    double energy = 0;
    for (const float x : values) {
      energy += static_cast<double>(x) * static_cast<double>(x);
      sums_.non_zero += x != 0.0F ? 1 : 0;
      const auto bits = std::bit_cast<std::uint32_t>(x);
      for (unsigned b = 0; b < 4; ++b) ++sums_.bytes[b][bits >> (8 * b) & 0xffU];
      ++sums_.exponents[bits >> 23 & 0xffU];
    }
    sums_.weight += n;
    sums_.energy += energy;
    add_formats(values, largest);
    if (!(energy > 0)) return;
    const double rms = std::sqrt(energy / n);
    sums_.magnitude_weight += n;

    sorted_.assign(values.begin(), values.end());
    std::sort(sorted_.begin(), sorted_.end());
    // The magnitudes in ascending order: those of the negative values backwards, merged with the others.
    const auto zero = std::lower_bound(sorted_.begin(), sorted_.end(), 0.0F);
    magnitudes_.resize(sorted_.size());
    std::merge(std::make_reverse_iterator(zero), sorted_.rend(), zero, sorted_.end(), magnitudes_.begin(),
               [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    for (float& x : magnitudes_) x = std::fabs(x);
    for (std::size_t q = 0; q < kQuantiles.size(); ++q) {
      const auto rank = static_cast<std::size_t>(std::max(1.0, std::ceil(kQuantiles[q] * n)));
      sums_.quantiles[q] += static_cast<double>(magnitudes_[rank - 1]) / rms * n;
    }
    const auto tail = static_cast<std::size_t>(kTail * n);
    if (tail >= kLeastInTail && magnitudes_[magnitudes_.size() - tail - 1] > 0) {
      const double inverse = hill(magnitudes_, tail);
      sums_.tail += inverse * n;
      sums_.tail_weight += n;
      sums_.inverse_tail += inverse, sums_.inverse_tail_squares += inverse * inverse, sums_.tails += 1;
    }
    if (!(sorted_.front() < sorted_.back())) return;
    sums_.fit_weight += n;
    for (std::size_t f = 0; f < kFitNames.size(); ++f) {
      const Fitted found = fit_values(static_cast<Fit>(f), sorted_);
      FitSums& sums = sums_.fits[f];
      sums.shape += found.shape * n;
      sums.inverse_shape += found.shape > 0 ? n / found.shape : 0;
      sums.scale += found.scale / rms * n;
      sums.distance += found.distance * n;
    }
  }

  void add_formats(std::span<const float> values, double largest) {
    const auto at = [&](Format format) -> FormatSums& { return sums_.formats[static_cast<std::size_t>(format)]; };
    constexpr double kHalfMost = 65504, kBfloatMost = 0x1.fep127, kE4M3Most = 448, kE5M2Most = 57344;
    add_format(at(Format::fp16), values, 1, kHalfMost,
               [](float x) { return format::f32_from_f16(format::f16_from_f32(std::clamp(x, -65504.0F, 65504.0F))); });
    add_format(at(Format::bf16), values, 1, kBfloatMost, [](float x) {
      return format::f32_from_bf16(format::bf16_from_f32(std::clamp(x, -0x1.fep127F, 0x1.fep127F)));
    });
    const auto e4m3 = [](float x) { return nearest(format::kE4M3, x); };
    const auto e5m2 = [](float x) { return nearest(format::kE5M2, x); };
    add_format(at(Format::e4m3), values, 1, kE4M3Most, e4m3);
    add_format(at(Format::e5m2), values, 1, kE5M2Most, e5m2);
    add_format(at(Format::e4m3_scaled), values, kE4M3Most / largest, kE4M3Most * (1 + 1e-6), e4m3);
    add_format(at(Format::e5m2_scaled), values, kE5M2Most / largest, kE5M2Most * (1 + 1e-6), e5m2);
    add_nvfp4(at(Format::nvfp4), values, largest);
    add_drawn(at(Format::int8), values, 127);
    add_drawn(at(Format::int4), values, 7);
    add_ternary(values);
  }

  /// TernGrad: a magnitude, clipped, is the largest one with the probability that its mean asks for, else 0.
  void add_ternary(std::span<const float> values) {
    const auto n = static_cast<double>(values.size());
    const double mean = mean_of(values);
    double squares = 0;
    for (const float x : values) squares += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean);
    const double clip = squares > 0 ? kClip * std::sqrt(squares / n) : kInfinity;
    const double most = std::min(largest_of(values), clip);
    for (const float x : values) {
      const double magnitude = std::fabs(static_cast<double>(x)), kept = std::min(magnitude, most);
      sums_.ternary_variance += kept * (most - kept);
      sums_.ternary_bias += (magnitude - kept) * (magnitude - kept);
    }
  }

  bool studied_;
  std::vector<float> sorted_, magnitudes_;
};

std::vector<Column> distribution_columns(std::vector<Column> columns) {
  columns.push_back({"studied_steps", "captured steps that were looked at: all, or 16 evenly spaced ones"});
  for (const char* q : {"50", "90", "99", "99_9", "100"}) {
    columns.push_back(
        {fmt::format("magnitude_q{}", q),
         fmt::format("quantile of a gradient's magnitudes over its root mean square, mean over gradients{}",
                     q == std::string{"100"} ? ": the largest one" : "")});
  }
  columns.insert(
      columns.end(),
      {{"tail_index",
        "alpha of Hill's estimate from the largest 1 % of the magnitudes (1 over the mean of 1/alpha): P(|x| > t) "
        "falls as t^-alpha; empty where that is fewer than 10 values"},
       {"tail_index_low",
        "95 % interval of tail_index from the spread of 1/alpha over workers and steps (Student); empty of `all` and "
        "of a single gradient"},
       {"tail_index_high", "its upper end; empty where 1/alpha cannot be told from 0"},
       {"ternary_variance",
        "expected squared error of ternary values, magnitudes clipped at 2.5 standard deviations, that comes from "
        "drawing, over squared norm: independent between workers"},
       {"ternary_bias", "the same that comes from clipping"},
       {"best_fit", "the distribution of fits.csv with the least distance"},
       {"exponent_entropy", "entropy of the 8 exponent bits of the float32 values, in bits"},
       {"byte_entropy", "entropy of the bytes of the float32 values, mean over the four places, in bits of 8"},
       {"lossless_ratio_limit",
        "8 / byte_entropy: no coder that codes each byte by itself, place by place, compresses more"},
       {"exponent_coding_limit",
        "32 / (24 + exponent_entropy): the same for sign and mantissa as they are and coded exponents"}});
  return columns;
}

class DistributionAnalysis final : public SummingAnalysis<DistributionSums> {
 public:
  explicit DistributionAnalysis(Scope studied)
      : SummingAnalysis{std::move(studied), Unit::slices},
        steps_{evenly_spaced(kMostSteps, scope().steps())},
        table_{make_table("distribution", distribution_columns(leading_columns()))},
        fits_{make_long_table(
            "fits",
            {{"fit", "normal, laplace, generalised normal or student t"},
             {"shape",
              "exponent of the generalised normal (2 normal, 1 Laplace), degrees of freedom of "
              "Student's t (1 over the mean of 1 / nu); empty for the others"},
             {"scale_over_rms", "scale of the distribution over the gradient's root mean square, mean over gradients"},
             {"distance",
              "Kolmogorov's: the largest difference between the cumulative shares of the values and of "
              "the distribution, over at most 1024 evenly spaced ranks; mean over gradients"}})},
        formats_{make_long_table(
            "formats",
            {{"format",
              "type that values are rounded to, to nearest; scaled: so that a gradient's largest magnitude is "
              "the largest number; nvfp4: blocks of 16 with a scale in e4m3; drawn: blocks of 512, at random "
              "to one of the two neighbours, as qsgd does, of which the expected values are given"},
             {"vanish_share", "share of the values that are not 0 but become it"},
             {"clip_share", "share of the values beyond the largest number"},
             {"nmse", "squared error of rounding over squared norm"}})} {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return 8; }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<DistributionOfGradient>(std::binary_search(steps_.begin(), steps_.end(), part.first_step));
  }

 private:
  void add_rows(const TensorInfo* tensor, const DistributionSums& sums) override {
    const auto begin = long_cells(tensor);
    std::string best;
    double least = kInfinity;
    for (std::size_t f = 0; sums.fit_weight > 0 && f < kFitNames.size(); ++f) {
      const FitSums& fit = sums.fits[f];
      const double distance = fit.distance / sums.fit_weight;
      if (distance < least) least = distance, best = kFitNames[f];
      auto row = begin;
      row.emplace_back(kFitNames[f]);
      const auto kind = static_cast<Fit>(f);
      append(row,
             kind == Fit::generalised_normal ? Cell{fit.shape / sums.fit_weight}
             : kind == Fit::student_t        ? Cell{sums.fit_weight / fit.inverse_shape}
                                             : Cell{},
             fit.scale / sums.fit_weight, distance);
      fits_.add(std::move(row));
    }
    for (std::size_t f = 0; f < kFormatNames.size(); ++f) {
      auto row = begin;
      append(row, kFormatNames[f], ratio_cell(sums.formats[f].vanished, sums.non_zero),
             ratio_cell(sums.formats[f].clipped, sums.weight), ratio_cell(sums.formats[f].error, sums.energy));
      formats_.add(std::move(row));
    }
    auto row = leading_cells(tensor, "ok", "");
    row.emplace_back(static_cast<std::int64_t>(steps_.size()));
    for (const double quantile : sums.quantiles) row.push_back(ratio_cell(quantile, sums.magnitude_weight));
    row.push_back(ratio_cell(sums.tail_weight, sums.tail));
    const Interval inverse = tensor == nullptr
                                 ? interval_of_mean(0, 0, 0)
                                 : interval_of_mean(sums.inverse_tail, sums.inverse_tail_squares, sums.tails);
    append(row, inverse.high > 0 ? Cell{1 / inverse.high} : Cell{}, inverse.low > 0 ? Cell{1 / inverse.low} : Cell{},
           ratio_cell(sums.ternary_variance, sums.energy), ratio_cell(sums.ternary_bias, sums.energy), Cell{});
    if (!best.empty()) row.back() = best;
    const double exponents = entropy_of(sums.exponents);
    double bytes = 0;
    for (const auto& place : sums.bytes) bytes += entropy_of(place) / 4;
    append(row, exponents, bytes, ratio_cell(8, bytes), 32 / (24 + exponents));
    table_.add(std::move(row));
  }

  std::vector<std::size_t> steps_;  ///< those that are looked at
  Table &table_, &fits_, &formats_;
};

}  // namespace

std::unique_ptr<Analysis> make_distribution(Scope scope) {
  return std::make_unique<DistributionAnalysis>(std::move(scope));
}

}  // namespace gradtool
