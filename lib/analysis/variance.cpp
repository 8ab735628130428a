#include "lib/analysis/variance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

void DistributionMoments::add(std::span<const float> values) {
  if (values.empty()) return;
  format::CentralMoments part;
  part.count = static_cast<double>(values.size());
  part.min = part.max = static_cast<double>(values[0]);
  double sum = 0;
  for (const float value : values) {
    const double x = static_cast<double>(value);
    sum += x;
    part.abs_sum += std::fabs(x);
    part.square_sum += x * x;
    part.min = std::min(part.min, x);
    part.max = std::max(part.max, x);
    part.zeros += x == 0.0 ? 1 : 0;
  }
  part.mean = part.min < part.max ? sum / part.count : part.min;
  for (const float value : values) {
    const double d = static_cast<double>(value) - part.mean;
    const double d2 = d * d;
    part.m2 += d2;
    part.m3 += d2 * d;
    part.m4 += d2 * d2;
  }
  merge(part);
}

double DistributionMoments::skewness() const {
  return std::sqrt(count) * m3 / (m2 * std::sqrt(m2));
}

double DistributionMoments::excess_kurtosis() const {
  return count * m4 / (m2 * m2) - 3;
}

void RatioHistogram::spread() {
  if (!bins_.empty()) return;
  bins_.resize(format::kRatioBins);
  for (const std::uint32_t bin : few_) ++bins_[bin];
  few_ = {};
}

void RatioHistogram::add_bin(std::uint32_t bin) {
  constexpr std::size_t kFew = 1024;
  ++count_;
  if (bins_.empty() && few_.size() < kFew) {
    few_.push_back(bin);
  } else {
    spread();
    ++bins_[bin];
  }
}

void RatioHistogram::add_counts(std::span<const std::uint64_t> counts) {
  expects(counts.size() == format::kRatioBins, "counts of another number of bins");
  spread();
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    bins_[bin] += counts[bin];
    count_ += counts[bin];
  }
}

void RatioHistogram::merge(const RatioHistogram& other) {
  if (!other.bins_.empty()) return add_counts(other.bins_);
  for (const std::uint32_t bin : other.few_) add_bin(bin);
}

double RatioHistogram::quantile(double q) const {
  const auto value_of = [](std::size_t bin) {
    const std::uint32_t low = static_cast<std::uint32_t>(bin) << format::kRatioDroppedBits;
    if (low == 0) return 0.0;
    if (low == format::kRatioInfinity) return std::numeric_limits<double>::infinity();
    return static_cast<double>(std::bit_cast<float>(low | (1U << (format::kRatioDroppedBits - 1))));
  };
  const auto rank = std::max<std::uint64_t>(static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count_))), 1);
  if (bins_.empty()) {
    if (rank > few_.size()) return std::numeric_limits<double>::infinity();
    auto sorted = few_;
    const auto wanted = sorted.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(sorted.begin(), wanted, sorted.end());
    return value_of(*wanted);
  }
  std::uint64_t seen = 0;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen >= rank) return value_of(bin);
  }
  return std::numeric_limits<double>::infinity();
}

void SignalRatio::add(const format::SignalSample& sample) {
  ++samples_;
  if (!sample.consistent) {
    ++inconsistent_;
    return;
  }
  if (sample.mean_square == 0 && sample.variance == 0) {
    ++undefined_;
  } else {
    histogram_.add_bin(format::ratio_bin(sample));
  }
  for (std::size_t a = 0; a < kAlphas.size(); ++a) {
    passed_[a] += sample.mean_square > kAlphas[a] * sample.threshold ? 1 : 0;
  }
}

void SignalRatio::add_micro_batches(std::span<const float> gradient, std::span<const float> second_moment,
                                    std::int64_t micro_batches) {
  expects(micro_batches >= 2, "a variance over micro-batches needs at least two of them");
  expects(gradient.size() == second_moment.size(), "a second moment has another size than its gradient");
  const double k = static_cast<double>(micro_batches);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    add(format::sample_of_micro_batches(gradient[i], second_moment[i], k));
  }
}

void SignalRatio::add_workers(std::span<const float> values, std::size_t workers) {
  expects(workers >= 2 && values.size() % workers == 0, "a variance over workers needs at least two of them");
  const std::size_t n = values.size() / workers;
  const double w = static_cast<double>(workers);
  for (std::size_t i = 0; i < n; ++i) {
    double mean = 0, squares = 0;
    for (std::size_t r = 0; r < workers; ++r) mean += static_cast<double>(values[r * n + i]);
    mean /= w;
    for (std::size_t r = 0; r < workers; ++r) {
      const double d = static_cast<double>(values[r * n + i]) - mean;
      squares += d * d;
    }
    add(format::sample_of_workers(mean, squares, w));
  }
}

void SignalRatio::add(std::span<const std::uint64_t> bins, const Counts& counts) {
  histogram_.add_counts(bins);
  samples_ += counts.samples;
  undefined_ += counts.undefined;
  inconsistent_ += counts.inconsistent;
  for (std::size_t a = 0; a < passed_.size(); ++a) passed_[a] += counts.passed[a];
}

void SignalRatio::merge(const SignalRatio& other) {
  histogram_.merge(other.histogram_);
  samples_ += other.samples_;
  undefined_ += other.undefined_;
  inconsistent_ += other.inconsistent_;
  for (std::size_t a = 0; a < passed_.size(); ++a) passed_[a] += other.passed_[a];
}

double noise_pass_share(std::int64_t samples, double ratio) {
  expects(samples >= 2, "a variance needs at least two samples");
  // The finite series for integer degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4), at t^2 = ratio.
  const std::int64_t freedom = std::min<std::int64_t>(samples - 1, 1000);
  const double theta = std::atan(std::sqrt(ratio / static_cast<double>(freedom)));
  const double sine = std::sin(theta), cosine = std::cos(theta), square = cosine * cosine;
  const bool odd = freedom % 2 == 1;
  double term = odd ? cosine : 1.0, sum = odd && freedom == 1 ? 0.0 : term;
  for (std::int64_t i = odd ? 3 : 2; i < freedom; i += 2) {
    term *= square * static_cast<double>(i - 1) / static_cast<double>(i);
    sum += term;
  }
  const double inside = odd ? 2 / std::acos(-1.0) * (theta + sine * sum) : sine * sum;
  return 1 - inside;
}

double noise_ratio_quantile(std::int64_t samples, double share) {
  double low = 1e-12, high = 1e12;
  while (high > low * (1 + 1e-12)) {
    const double middle = std::sqrt(low * high);
    (1 - noise_pass_share(samples, middle) < share ? low : high) = middle;
  }
  return high;
}

namespace {

class HostVariance final : public VarianceAccumulator {
 public:
  HostVariance(const Scope& scope, std::size_t tensor)
      : VarianceAccumulator{source_of(scope, scope.tensors.at(tensor))},
        workers_{scope.workers},
        micro_batches_{scope.micro_batches} {}

  void observe(const Slice& slice) override {
    const auto values = slice.gradient;
    if (!check_finite(values)) return;
    moments_.add(values);
    if (source_ == VarianceSource::second_moment) {
      ratio_.add_micro_batches(values, slice.second_moment, micro_batches_);
    } else if (source_ == VarianceSource::workers) {
      step_.resize(workers_ * values.size());
      std::copy(values.begin(), values.end(),
                step_.begin() + static_cast<std::ptrdiff_t>(slice.worker * values.size()));
      if (slice.worker + 1 == workers_) ratio_.add_workers(step_, workers_);
    }
  }

  void close() override { step_ = {}; }

 private:
  std::size_t workers_;
  std::int64_t micro_batches_;
  std::vector<float> step_;  ///< the current step's gradients, worker after worker
};

struct Quantile {
  const char* suffix;
  double q;
};
constexpr std::array<Quantile, 5> kRatioQuantiles{
    {{"05", 0.05}, {"25", 0.25}, {"50", 0.50}, {"75", 0.75}, {"95", 0.95}}};
constexpr std::array<const char*, kAlphas.size()> kAlphaSuffixes{"1", "1_5", "2"};

std::vector<Column> variance_columns(std::vector<Column> columns) {
  columns.push_back(
      {"source",
       "what the variance was taken over: `second_moment` (K micro-batches of each worker), `workers` (the W gradients "
       "of a step), `none` (one worker and no second moments), `mixed` (in the row `all`)"});
  columns.push_back({"micro_batches", "K as the file states it"});
  for (const auto& quantile : kRatioQuantiles) {
    columns.push_back({fmt::format("ratio_q{}", quantile.suffix),
                       fmt::format("{:.0f} % quantile, over elements, steps and (`second_moment`) workers, of mean^2 / "
                                   "variance of that mean; resolved to 0.02 %",
                                   100 * quantile.q)});
  }
  for (std::size_t a = 0; a < kAlphas.size(); ++a) {
    columns.push_back({fmt::format("pass_share_{}", kAlphaSuffixes[a]),
                       fmt::format("share of elements that pass at alpha = {}: `second_moment` G^2 > alpha v, "
                                   "`workers` mean^2 > alpha x variance of the mean",
                                   kAlphas[a])});
  }
  columns.push_back(
      {"noise_pass_share_1", "pass_share_1 that normal noise alone would give with as many micro-batches or workers"});
  columns.push_back(
      {"undefined_share", "share of elements whose mean and variance are both 0; they pass nothing and have no ratio"});
  columns.push_back(
      {"inconsistent_share",
       "share of elements whose stored second moment is not finite or more than 1/64 below G^2 / K, which is "
       "arithmetically impossible (half-precision underflow); left out of the ratios and shares above"});
  columns.insert(columns.end(),
                 {{"values", "gradient values seen: elements x steps x workers"},
                  {"mean", "mean of the values"},
                  {"std", "their standard deviation (divisor: their number)"},
                  {"skewness", "third standardised moment; empty when all values are equal"},
                  {"excess_kurtosis",
                   "fourth standardised moment less 3: 0 for a normal distribution, 3 for a Laplace one; empty when "
                   "all values are equal"},
                  {"min", "smallest value"},
                  {"max", "largest value"},
                  {"l1_norm_mean", "L1 norm of one worker's gradient of one step, averaged over steps and workers"},
                  {"l2_norm_rms", "L2 norm of the same, root mean square over steps and workers"},
                  {"zero_fraction", "share of the values that are exactly 0"},
                  {"non_finite_count", "values that are NaN or infinite; above 0 the row is skipped"}});
  return columns;
}

class Variance final : public Analysis {
 public:
  Variance(Scope studied, std::shared_ptr<AnalysisGpu> gpu)
      : Analysis{std::move(studied), Unit::elements},
        gpu_{std::move(gpu)},
        table_{make_table("variance", variance_columns(leading_columns()))} {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return sizeof(float) * (scope().workers + 1); }
  [[nodiscard]] bool needs_second_moment(std::size_t tensor) const override {
    return source_of(scope(), scope().tensors.at(tensor)) == VarianceSource::second_moment;
  }

  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    if (gpu_) return start_gpu_variance(gpu_, scope(), part);
    return std::make_unique<HostVariance>(scope(), part.tensor);
  }

  void add(std::size_t tensor, const Accumulator& whole) override {
    const auto& seen = dynamic_cast<const VarianceAccumulator&>(whole);
    const std::string source{name_of(seen.source())};
    add_row(&scope().tensors.at(tensor), source, seen.moments(), seen.ratio(), 0);
    total_source_ = total_source_.empty() || total_source_ == source ? source : "mixed";
    total_moments_.merge(seen.moments());
    total_ratio_.merge(seen.ratio());
  }

  void add_all() override {
    add_row(nullptr, total_source_.empty() ? "none" : total_source_, total_moments_, total_ratio_, total_non_finite_);
  }
  void skip(std::size_t tensor, std::uint64_t non_finite) override {
    Analysis::skip(tensor, non_finite);
    table_.set(table_.rows().size() - 1, "non_finite_count", static_cast<std::int64_t>(non_finite));
    total_non_finite_ += non_finite;
  }

 private:
  void add_row(const TensorInfo* tensor, const std::string& source, const DistributionMoments& moments,
               const SignalRatio& ratio, std::uint64_t non_finite) {
    auto row = leading_cells(tensor, "ok", "");
    const auto number = [](std::uint64_t x) { return static_cast<double>(x); };
    const auto if_any = [](bool any, double x) { return any ? Cell{x} : Cell{}; };
    append(row, source, scope().micro_batches);
    for (const auto& quantile : kRatioQuantiles) {
      const bool any = ratio.histogram().count() > 0;
      row.push_back(if_any(any, any ? ratio.histogram().quantile(quantile.q) : 0));
    }
    const double consistent = number(ratio.samples() - ratio.inconsistent());
    for (std::size_t a = 0; a < kAlphas.size(); ++a) row.push_back(ratio_cell(number(ratio.passed(a)), consistent));
    const std::int64_t samples = source == "second_moment" ? scope().micro_batches
                                 : source == "workers"     ? static_cast<std::int64_t>(scope().workers)
                                                           : 0;
    append(row, if_any(samples >= 2, samples >= 2 ? noise_pass_share(samples) : 0),
           ratio_cell(number(ratio.undefined()), number(ratio.samples())),
           ratio_cell(number(ratio.inconsistent()), number(ratio.samples())));

    const bool any = moments.count > 0;
    const double gradients = static_cast<double>(scope().steps() * scope().workers);
    append(row, static_cast<std::int64_t>(moments.count), if_any(any, moments.mean),
           if_any(any, any ? std::sqrt(moments.variance()) : 0),
           if_any(moments.spread(), moments.spread() ? moments.skewness() : 0),
           if_any(moments.spread(), moments.spread() ? moments.excess_kurtosis() : 0), if_any(any, moments.min),
           if_any(any, moments.max), if_any(any, moments.abs_sum / gradients),
           if_any(any, std::sqrt(moments.square_sum / gradients)), ratio_cell(number(moments.zeros), moments.count),
           static_cast<std::int64_t>(non_finite));
    table_.add(std::move(row));
  }

  std::shared_ptr<AnalysisGpu> gpu_;
  Table& table_;
  std::string total_source_;
  DistributionMoments total_moments_;
  SignalRatio total_ratio_;
  std::uint64_t total_non_finite_ = 0;
};

}  // namespace

VarianceSource source_of(const Scope& scope, const TensorInfo& tensor) {
  if (tensor.has_second_moment && scope.micro_batches >= 2) return VarianceSource::second_moment;
  return scope.workers >= 2 ? VarianceSource::workers : VarianceSource::none;
}

void VarianceAccumulator::merge(const Accumulator& other) {
  const auto& theirs = dynamic_cast<const VarianceAccumulator&>(other);
  non_finite_ += theirs.non_finite_;
  moments_.merge(theirs.moments_);
  ratio_.merge(theirs.ratio_);
}

std::unique_ptr<Analysis> make_variance(Scope scope, std::shared_ptr<AnalysisGpu> gpu) {
  return std::make_unique<Variance>(std::move(scope), std::move(gpu));
}

}  // namespace gradtool
