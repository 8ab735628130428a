#include "lib/analysis/pearson.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "lib/analysis/gram.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// Takes its mean from every value and returns it. Equal values become exactly 0.
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

std::optional<double> pearson(double product, double a, double b) {
  if (!(a > 0 && b > 0)) return {};
  return std::clamp(product / (std::sqrt(a) * std::sqrt(b)), -1.0, 1.0);
}

/// The average of what is there.
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

PearsonSums::PearsonSums(std::size_t workers, std::size_t steps) : rows_{workers + 1}, steps_(steps) {
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

std::optional<double> PearsonSums::between_steps_of_mean() const {
  Average over_steps;
  for (std::size_t s = 1; s < steps_.size(); ++s) over_steps.add(between_steps(s, rows_ - 1));
  return over_steps.value();
}

std::optional<double> PearsonSums::between_steps_of_workers() const {
  Average over_steps;
  for (std::size_t s = 1; s < steps_.size(); ++s) {
    Average over_workers;
    for (std::size_t r = 0; r + 1 < rows_; ++r) over_workers.add(between_steps(s, r));
    over_steps.add(over_workers.value());
  }
  return over_steps.value();
}

}  // namespace gradtool
