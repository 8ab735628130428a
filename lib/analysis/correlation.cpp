#include "lib/analysis/correlation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/analysis/principal.hpp"
#include "lib/analysis/slices.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// Subtracts the mean from every value and returns the mean. Equal values become exactly 0.
double centre(std::span<double> values) {
  double low = values[0], high = values[0], sum = 0;
  for (const double x : values) {
    low = std::min(low, x);
    high = std::max(high, x);
    sum += x;
  }
  const double mean = low < high ? sum / static_cast<double>(values.size()) : low;
  for (double& x : values) x -= mean;
  return mean;
}

/// Pearson's coefficient from the co-moment of two rows and their own second moments; nothing when a row is constant.
std::optional<double> pearson(double product, double a, double b) {
  if (!(a > 0 && b > 0)) return {};
  return std::clamp(product / (std::sqrt(a) * std::sqrt(b)), -1.0, 1.0);
}

/// The average of those values that exist.
class Average {
 public:
  void add(std::optional<double> value) {
    if (!value) return;
    sum_ += *value;
    ++count_;
  }
  [[nodiscard]] std::optional<double> value() const {
    return count_ > 0 ? std::optional{sum_ / static_cast<double>(count_)} : std::nullopt;
  }

 private:
  double sum_ = 0;
  std::size_t count_ = 0;
};

}  // namespace

ComparedWorkers ComparedWorkers::choose(std::size_t workers, std::size_t steps) {
  constexpr std::size_t kMost = 128;
  constexpr std::size_t kMostSums = (std::size_t{64} << 20) / sizeof(double);
  const auto affordable =
      static_cast<std::size_t>(std::sqrt(static_cast<double>(kMostSums) / static_cast<double>(steps)));
  return {workers, std::min(workers, std::clamp<std::size_t>(affordable, 2, kMost))};
}

PearsonSums::PearsonSums(std::size_t compared_workers, std::size_t steps) : rows_{compared_workers + 1}, steps_(steps) {
  for (auto& step : steps_) {
    step.mean.resize(rows_);
    step.within.resize(rows_ * rows_);
    step.lag.resize(rows_);
  }
}

void PearsonSums::add_step(std::vector<double>& rows) {
  expects(next_ < steps_.size() && !rows.empty() && rows.size() % rows_ == 0, "a step too many, or of a wrong size");
  const std::size_t n = rows.size() / rows_;
  Step& step = steps_[next_];
  for (std::size_t r = 0; r < rows_; ++r) step.mean[r] = centre(std::span{rows}.subspan(r * n, n));
  add_gram({rows.data(), rows_, n, n}, step.within);
  for (std::size_t r = 0; next_ > 0 && r < rows_; ++r) step.lag[r] = dot(&rows[r * n], &previous_[r * n], n);
  count_ = static_cast<double>(n);
  ++next_;
  previous_.resize(rows.size());
  std::swap(previous_, rows);
}

void PearsonSums::add_sums(double count, std::span<const double> means, std::span<const double> within,
                           std::span<const double> lag) {
  expects(next_ < steps_.size() && means.size() == rows_ && within.size() == rows_ * rows_ && lag.size() == rows_,
          "a step too many, or sums of other rows");
  Step& step = steps_[next_];
  step.mean.assign(means.begin(), means.end());
  step.within.assign(within.begin(), within.end());
  if (next_ > 0) step.lag.assign(lag.begin(), lag.end());
  count_ = count;
  ++next_;
}

void PearsonSums::close() {
  previous_ = {};
}

void PearsonSums::merge(const PearsonSums& other) {
  if (other.count_ == 0) return;
  if (count_ == 0) {
    count_ = other.count_;
    steps_ = other.steps_;
    return;
  }
  const double n = count_ + other.count_;
  const double factor = count_ * other.count_ / n;
  std::vector<double> delta(rows_), delta_before(rows_);
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    Step& mine = steps_[s];
    const Step& theirs = other.steps_[s];
    for (std::size_t r = 0; r < rows_; ++r) delta[r] = theirs.mean[r] - mine.mean[r];
    for (std::size_t a = 0; a < rows_; ++a) {
      for (std::size_t b = 0; b < rows_; ++b) {
        mine.within[a * rows_ + b] += theirs.within[a * rows_ + b] + delta[a] * delta[b] * factor;
      }
      if (s > 0) mine.lag[a] += theirs.lag[a] + delta[a] * delta_before[a] * factor;
      mine.mean[a] += delta[a] * other.count_ / n;
    }
    std::swap(delta, delta_before);
  }
  count_ = n;
}

std::optional<double> PearsonSums::within_step(const Step& step, std::size_t a, std::size_t b) const {
  return pearson(step.within[a * rows_ + b], step.within[a * rows_ + a], step.within[b * rows_ + b]);
}

std::optional<double> PearsonSums::between_steps(std::size_t step, std::size_t row) const {
  const std::size_t diagonal = row * rows_ + row;
  return pearson(steps_[step].lag[row], steps_[step].within[diagonal], steps_[step - 1].within[diagonal]);
}

std::optional<double> PearsonSums::between_workers_mean() const {
  Average over_steps;
  for (const auto& step : steps_) {
    Average over_pairs;
    for (std::size_t a = 0; a + 1 < rows_; ++a) {
      for (std::size_t b = 0; b < a; ++b) over_pairs.add(within_step(step, a, b));
    }
    over_steps.add(over_pairs.value());
  }
  return over_steps.value();
}

std::optional<double> PearsonSums::between_workers_min() const {
  Average over_steps;
  for (const auto& step : steps_) {
    std::optional<double> least;
    for (std::size_t a = 0; a + 1 < rows_; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (const auto pair = within_step(step, a, b)) least = std::min(least.value_or(*pair), *pair);
      }
    }
    over_steps.add(least);
  }
  return over_steps.value();
}

std::optional<double> PearsonSums::between_steps_of_mean(const std::vector<std::size_t>& windows) const {
  Average over_steps;
  for (std::size_t s = 1; s < steps_.size(); ++s) {
    if (windows[s] == windows[s - 1]) over_steps.add(between_steps(s, rows_ - 1));
  }
  return over_steps.value();
}

std::optional<double> PearsonSums::between_steps_of_workers(const std::vector<std::size_t>& windows) const {
  Average over_steps;
  for (std::size_t s = 1; s < steps_.size(); ++s) {
    if (windows[s] != windows[s - 1]) continue;
    Average over_workers;
    for (std::size_t r = 0; r + 1 < rows_; ++r) over_workers.add(between_steps(s, r));
    over_steps.add(over_workers.value());
  }
  return over_steps.value();
}

namespace {

/// Numbers of principal components whose share of the variance is reported.
constexpr std::array<std::size_t, 6> kExplained{1, 2, 4, 8, 16, 32};
/// GradiVeQ's 1 - lambda: the share of the variance that the components which are kept must hold.
constexpr double kGradiveqShare = 0.99;

/// Sums over the slices of one tensor or of many.
struct SliceTotals {
  std::size_t slices = 0;
  std::uint64_t elements = 0;                         ///< sum of K
  std::uint64_t components = 0;                       ///< sum of d
  std::uint64_t limit = 0;                            ///< sum of min(K, M - 1), which d cannot exceed
  double effective_rank = 0;                          ///< sum over the `varying` slices
  std::size_t varying = 0;                            ///< number of slices whose samples differ
  double variance = 0;                                ///< sum of the slices' variances
  std::array<double, kExplained.size()> explained{};  ///< sum of the variances in the first k components
  Holdout holdout;

  void add(std::uint64_t slice_elements, const PrincipalComponents& principal, const Holdout& rest);
  SliceTotals& operator+=(const SliceTotals& other);
};

void SliceTotals::add(std::uint64_t slice_elements, const PrincipalComponents& principal, const Holdout& rest) {
  ++slices;
  elements += slice_elements;
  limit += principal.eigenvalues.size();
  holdout.residual += rest.residual;
  holdout.energy += rest.energy;
  if (!(principal.total > 0)) return;
  ++varying;
  components += principal.components_for(kGradiveqShare);
  effective_rank += principal.effective_rank();
  variance += principal.total;
  for (std::size_t i = 0; i < kExplained.size(); ++i) {
    explained[i] += principal.explained(kExplained[i]) * principal.total;
  }
}

SliceTotals& SliceTotals::operator+=(const SliceTotals& other) {
  slices += other.slices;
  elements += other.elements;
  components += other.components;
  limit += other.limit;
  effective_rank += other.effective_rank;
  varying += other.varying;
  variance += other.variance;
  for (std::size_t i = 0; i < explained.size(); ++i) explained[i] += other.explained[i];
  holdout.residual += other.holdout.residual;
  holdout.energy += other.holdout.energy;
  return *this;
}

class HostCorrelation final : public CorrelationAccumulator {
 public:
  HostCorrelation(const ComparedWorkers& compared, const Part& part, const Slicing& slicing, std::size_t samples)
      : CorrelationAccumulator{{compared.count, part.steps},
                               {slicing, samples, part.first, static_cast<std::size_t>(part.count)}},
        compared_{compared} {}

  void observe(const Slice& slice) override {
    const auto values = slice.gradient;
    if (!check_finite(values)) return;
    const std::size_t n = values.size();
    if (slice.worker == 0) next_row_ = 0;
    rows_.resize((compared_.count + 1) * n);
    double* const mean = rows_.data() + compared_.count * n;
    if (next_row_ < compared_.count && compared_[next_row_] == slice.worker) {
      std::copy(values.begin(), values.end(), rows_.begin() + static_cast<std::ptrdiff_t>(next_row_ * n));
      ++next_row_;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(values[i]);
      mean[i] = slice.worker == 0 ? x : mean[i] + x;
    }
    if (slice.worker + 1 < compared_.workers) return;
    for (std::size_t i = 0; i < n; ++i) mean[i] /= static_cast<double>(compared_.workers);
    grams_.add_sample({mean, n});
    pearson_.add_step(rows_);
  }

  void close() override {
    rows_ = {};
    pearson_.close();
    if (non_finite_ == 0) grams_.close();
  }

 private:
  ComparedWorkers compared_;
  std::size_t next_row_ = 0;
  std::vector<double> rows_;  ///< the current step: the compared gradients and the mean of all, of this part
};

std::vector<Column> correlation_columns(std::vector<Column> columns) {
  columns.insert(
      columns.end(),
      {{"worker_pearson_mean",
        "Pearson correlation of two workers' gradients of one step, mean over the pairs, averaged over steps; empty "
        "with one worker"},
       {"worker_pearson_min", "the least over the pairs, averaged over steps"},
       {"step_pearson_mean_gradient",
        "Pearson correlation of the mean gradient over the workers with that of the captured step before, averaged "
        "over steps; empty with one step"},
       {"step_pearson_per_worker", "the same of each worker's own gradient, averaged over workers and steps"},
       {"slice_order",
        "order of the elements before slicing: `HWIO` (convolutions: taps, input, output channels) or `contiguous`"},
       {"slice_elements", "K: elements of a slice"},
       {"slices", "number of slices; the last one of a tensor may be short"},
       {"samples", "M: captured steps whose mean gradient over the workers entered the eigenvalues"}});
  for (const std::size_t k : kExplained) {
    columns.push_back(
        {fmt::format("explained_{}", k),
         fmt::format("share of the slices' variance over the samples in their first {} principal component{}", k,
                     k == 1 ? "" : "s")});
  }
  columns.insert(
      columns.end(),
      {{"effective_rank",
        "exp of the entropy of the eigenvalues' shares, mean over slices: how many equally strong components would be "
        "as spread out"},
       {"components_99", "d: components that hold 99 % of the variance (GradiVeQ, lambda = 0.01), mean over slices"},
       {"components_limit", "min(K, M - 1), mean over slices: d cannot be larger, whatever the data"},
       {"gradiveq_ratio",
        "sum of K over sum of d: the compression that GradiVeQ would claim on these samples; large whenever M is "
        "small, so read it with holdout_nmse"},
       {"holdout_nmse",
        "the loss on steps the basis has not seen: components that hold 99 % of the first half's variance, applied to "
        "the second half, squared error over squared norm; empty with fewer than 4 samples"},
       {"compared_workers",
        "workers that the two worker_pearson columns and step_pearson_per_worker are about: all, or evenly spaced ones "
        "where there are more than 128 or thousands of steps"}});
  return columns;
}

std::vector<Column> eigenvalue_columns() {
  return {{"schema_version", "version of this table's columns"},
          {"file", "the gradient file as named on the command line"},
          {"tensor", "name of the parameter tensor; tensors that were skipped have no rows"},
          {"slice", "number of the slice, from 0"},
          {"component", "number of the eigenvalue, from 1, in descending order"},
          {"eigenvalue", "of the covariance over the samples (divisor M - 1): the variance along the component"},
          {"share", "of the slice's variance; empty when it has none"},
          {"cumulative_share", "of this and all larger ones"}};
}

class Correlation final : public Analysis {
 public:
  Correlation(Scope studied, std::size_t samples, std::size_t taps, std::shared_ptr<AnalysisGpu> gpu)
      : Analysis{std::move(studied), Unit::elements},
        gpu_{std::move(gpu)},
        eigensolver_{gpu_ ? gpu_eigensolver(gpu_) : host::lapack_eigenvalues},
        samples_{std::min(samples, scope().steps())},
        taps_{taps},
        compared_{ComparedWorkers::choose(scope().workers, scope().steps())},
        table_{make_table("correlation", correlation_columns(leading_columns()))},
        eigenvalues_{make_table("eigenvalues", eigenvalue_columns())},
        total_pearson_{compared_.count, scope().steps()} {}

  // Samples, the columns they go to and their mean; this step's rows and those of the step before. A GPU holds the
  // gradients of all workers, too.
  [[nodiscard]] std::size_t bytes_per_element() const override {
    const std::size_t others = gpu_ ? scope().workers - compared_.count : 0;
    return sizeof(double) * (samples_ + 1 + 2 * (compared_.count + 1)) + sizeof(std::uint32_t) + sizeof(float) * others;
  }

  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    const Slicing slicing{scope().tensors.at(part.tensor), taps_};
    if (gpu_) return start_gpu_correlation(gpu_, compared_, part, slicing, samples_);
    return std::make_unique<HostCorrelation>(compared_, part, slicing, samples_);
  }

  void add(std::size_t tensor, const Accumulator& whole) override {
    const auto& seen = dynamic_cast<const CorrelationAccumulator&>(whole);
    const auto& info = scope().tensors.at(tensor);
    const Slicing slicing{info, taps_};
    SliceTotals totals;
    for (const auto& [number, slice] : seen.grams().slices()) {
      const auto coordinates = static_cast<std::size_t>(slicing.elements_of(number));
      const auto components = principal_components(slice.gram, slice.square_norms, coordinates, eigensolver_);
      totals.add(coordinates, components, holdout(slice.gram, slice.square_norms, kGradiveqShare, eigensolver_));
      add_eigenvalues(info.name, number, components);
    }
    add_row(&info, &slicing, seen.pearson(), totals);
    total_pearson_.merge(seen.pearson());
    total_slices_ += totals;
  }

  void add_all() override { add_row(nullptr, nullptr, total_pearson_, total_slices_); }

 private:
  void add_row(const TensorInfo* tensor, const Slicing* slicing, const PearsonSums& pearson,
               const SliceTotals& totals) {
    const auto number = [](auto x) { return static_cast<double>(x); };
    auto row = leading_cells(tensor, "ok", message());
    append(row, optional_cell(pearson.between_workers_mean()), optional_cell(pearson.between_workers_min()),
           optional_cell(pearson.between_steps_of_mean(windows_)),
           optional_cell(pearson.between_steps_of_workers(windows_)),
           slicing != nullptr ? Cell{std::string{slicing->transposed() ? "HWIO" : "contiguous"}} : Cell{},
           slicing != nullptr ? Cell{static_cast<std::int64_t>(slicing->slice_elements())} : Cell{},
           static_cast<std::int64_t>(totals.slices), static_cast<std::int64_t>(samples_));
    for (const double explained : totals.explained) row.push_back(ratio_cell(explained, totals.variance));
    row.push_back(ratio_cell(totals.effective_rank, number(totals.varying)));
    const bool several = samples_ >= 2;
    append(row, several ? ratio_cell(number(totals.components), number(totals.slices)) : Cell{},
           several ? ratio_cell(number(totals.limit), number(totals.slices)) : Cell{},
           ratio_cell(number(totals.elements), number(totals.components)),
           ratio_cell(totals.holdout.residual, totals.holdout.energy), static_cast<std::int64_t>(compared_.count));
    table_.add(std::move(row));
  }

  /// The remarks on a row.
  [[nodiscard]] std::string message() const {
    std::string text = scope().steps() < 2 ? "one captured step: nothing between steps" : "";
    if (compared_.count < compared_.workers) {
      text += fmt::format("{}workers compared: {} of {}, evenly spaced, {} pairs", text.empty() ? "" : "; ",
                          compared_.count, compared_.workers, compared_.count * (compared_.count - 1) / 2);
    }
    return text;
  }

  void add_eigenvalues(const std::string& tensor, std::size_t slice, const PrincipalComponents& components) {
    double sum = 0;
    for (std::size_t k = 0; k < components.eigenvalues.size(); ++k) {
      const double value = components.eigenvalues[k];
      sum += value;
      eigenvalues_.add({std::int64_t{1}, scope().file, tensor, static_cast<std::int64_t>(slice),
                        static_cast<std::int64_t>(k + 1), value, ratio_cell(value, components.total),
                        ratio_cell(sum, components.total)});
    }
  }

  std::shared_ptr<AnalysisGpu> gpu_;
  Eigensolver eigensolver_;
  std::size_t samples_, taps_;
  ComparedWorkers compared_;
  std::vector<std::size_t> windows_{scope().windows()};
  Table &table_, &eigenvalues_;
  PearsonSums total_pearson_;
  SliceTotals total_slices_;
};

}  // namespace

void CorrelationAccumulator::merge(const Accumulator& other) {
  const auto& theirs = dynamic_cast<const CorrelationAccumulator&>(other);
  non_finite_ += theirs.non_finite_;
  if (non_finite_ > 0) return;
  pearson_.merge(theirs.pearson_);
  grams_.merge(theirs.grams_);
}

std::unique_ptr<Analysis> make_correlation(Scope scope, std::size_t samples, std::size_t taps,
                                           std::shared_ptr<AnalysisGpu> gpu) {
  return std::make_unique<Correlation>(std::move(scope), samples, taps, std::move(gpu));
}

}  // namespace gradtool
