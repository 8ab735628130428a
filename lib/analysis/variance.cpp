#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/gpu.hpp"

namespace gradtool {
namespace {

class HostVariance final : public VarianceAccumulator {
 public:
  HostVariance(const Scope& scope, std::size_t tensor)
      : VarianceAccumulator{source_of(scope, scope.tensors.at(tensor))},
        workers_{scope.workers},
        micro_batches_{scope.micro_batches} {}

  void observe(const Slice& slice) override {
    const auto values = slice.gradient;
    const auto bad = std::count_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
    non_finite_ += static_cast<std::uint64_t>(bad);
    if (non_finite_ > 0) return;
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
constexpr std::array<Quantile, 5> kQuantiles{{{"05", 0.05}, {"25", 0.25}, {"50", 0.50}, {"75", 0.75}, {"95", 0.95}}};
constexpr std::array<const char*, kAlphas.size()> kAlphaSuffixes{"1", "1_5", "2"};

std::vector<Column> variance_columns(std::vector<Column> columns) {
  columns.push_back(
      {"source",
       "what the variance was taken over: `second_moment` (K micro-batches of each worker), `workers` (the W "
       "gradients of a step), `none` (one worker and no second moments), `mixed` (in the row `all`)"});
  columns.push_back({"micro_batches", "K as the file states it"});
  for (const auto& quantile : kQuantiles) {
    columns.push_back({fmt::format("ratio_q{}", quantile.suffix),
                       fmt::format("{:.0f} % quantile, over elements, steps and (`second_moment`) workers, of mean^2 / "
                                   "variance of that mean; resolved to 0.02 %",
                                   100 * quantile.q)});
  }
  for (std::size_t a = 0; a < kAlphas.size(); ++a) {
    columns.push_back(
        {fmt::format("pass_share_{}", kAlphaSuffixes[a]),
         fmt::format("share of elements that pass at alpha = {}: `second_moment` G^2 > alpha v, `workers` mean^2 "
                     "> alpha x variance of the mean",
                     kAlphas[a])});
  }
  columns.push_back(
      {"noise_pass_share_1", "pass_share_1 that normal noise alone would give with as many micro-batches or workers"});
  columns.push_back({"undefined_share",
                     "share of elements whose mean and variance are both 0; they pass nothing and have no "
                     "ratio"});
  columns.push_back(
      {"inconsistent_share",
       "share of elements whose stored second moment is not finite or less than G^2 / K, which is arithmetically "
       "impossible (half-precision underflow); left out of the ratios and shares above"});
  columns.insert(columns.end(),
                 {{"values", "gradient values seen: elements x steps x workers"},
                  {"mean", "mean of the values"},
                  {"std", "their standard deviation (divisor: their number)"},
                  {"skewness", "third standardised moment; empty when all values are equal"},
                  {"excess_kurtosis",
                   "fourth standardised moment less 3: 0 for a normal distribution, 3 for a "
                   "Laplace one; empty when all values are equal"},
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
      : Analysis{std::move(studied)}, gpu_{std::move(gpu)}, table_{"variance", variance_columns(leading_columns())} {}

  [[nodiscard]] std::string_view name() const override { return "variance"; }
  [[nodiscard]] Unit unit() const override { return Unit::elements; }
  [[nodiscard]] std::size_t bytes_per_element() const override { return sizeof(float) * (scope().workers + 1); }
  [[nodiscard]] bool needs_second_moment(std::size_t tensor) const override {
    return source_of(scope(), scope().tensors.at(tensor)) == VarianceSource::second_moment;
  }

  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    if (gpu_) return start_gpu_variance(gpu_, scope(), part);
    return std::make_unique<HostVariance>(scope(), part.tensor);
  }

  void finish(std::size_t tensor, const Accumulator& whole) override {
    if (whole.non_finite() > 0) {
      add_skipped(table_, tensor, whole.non_finite());
      table_.set(table_.rows().size() - 1, "non_finite_count", static_cast<std::int64_t>(whole.non_finite()));
      total_non_finite_ += whole.non_finite();
      return;
    }
    const auto& seen = dynamic_cast<const VarianceAccumulator&>(whole);
    const std::string source{name_of(seen.source())};
    add_row(&scope().tensors.at(tensor), source, seen.moments(), seen.ratio(), 0);
    total_source_ = total_source_.empty() || total_source_ == source ? source : "mixed";
    total_moments_.merge(seen.moments());
    total_ratio_.merge(seen.ratio());
  }

  [[nodiscard]] std::vector<Table> tables() override {
    add_row(nullptr, total_source_.empty() ? "none" : total_source_, total_moments_, total_ratio_, total_non_finite_);
    return {std::move(table_)};
  }

 private:
  void add_row(const TensorInfo* tensor, const std::string& source, const Moments& moments, const SignalRatio& ratio,
               std::uint64_t non_finite) {
    auto row = leading_cells(tensor, "ok", "");
    const auto number = [](std::uint64_t x) { return static_cast<double>(x); };
    const auto if_any = [](bool any, double x) { return any ? Cell{x} : Cell{}; };
    row.emplace_back(source);
    row.emplace_back(scope().micro_batches);
    for (const auto& quantile : kQuantiles) {
      const bool any = ratio.histogram().count() > 0;
      row.push_back(if_any(any, any ? ratio.histogram().quantile(quantile.q) : 0));
    }
    const double consistent = number(ratio.samples() - ratio.inconsistent());
    for (std::size_t a = 0; a < kAlphas.size(); ++a) row.push_back(ratio_cell(number(ratio.passed(a)), consistent));
    const std::int64_t samples = source == "second_moment" ? scope().micro_batches
                                 : source == "workers"     ? static_cast<std::int64_t>(scope().workers)
                                                           : 0;
    row.push_back(if_any(samples >= 2, samples >= 2 ? noise_pass_share(samples) : 0));
    row.push_back(ratio_cell(number(ratio.undefined()), number(ratio.samples())));
    row.push_back(ratio_cell(number(ratio.inconsistent()), number(ratio.samples())));

    const bool any = moments.count > 0;
    const double gradients = static_cast<double>(scope().steps() * scope().workers);
    row.emplace_back(static_cast<std::int64_t>(moments.count));
    row.push_back(if_any(any, moments.mean));
    row.push_back(if_any(any, any ? std::sqrt(moments.variance()) : 0));
    row.push_back(if_any(moments.spread(), moments.spread() ? moments.skewness() : 0));
    row.push_back(if_any(moments.spread(), moments.spread() ? moments.excess_kurtosis() : 0));
    row.push_back(if_any(any, moments.min));
    row.push_back(if_any(any, moments.max));
    row.push_back(if_any(any, moments.abs_sum / gradients));
    row.push_back(if_any(any, std::sqrt(moments.square_sum / gradients)));
    row.push_back(ratio_cell(number(moments.zeros), moments.count));
    row.emplace_back(static_cast<std::int64_t>(non_finite));
    table_.add(std::move(row));
  }

  std::shared_ptr<AnalysisGpu> gpu_;
  Table table_;
  std::string total_source_;
  Moments total_moments_;
  SignalRatio total_ratio_;
  std::uint64_t total_non_finite_ = 0;
};

}  // namespace

std::unique_ptr<Analysis> make_variance(Scope scope, std::shared_ptr<AnalysisGpu> gpu) {
  return std::make_unique<Variance>(std::move(scope), std::move(gpu));
}

}  // namespace gradtool
