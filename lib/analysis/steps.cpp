#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "lib/analysis/analysis.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kLags = 16;
/// A gradient whose variance over its elements is a smaller share of its mean square counts as constant: of its
/// correlation rounding would leave no digit.
constexpr double kConstant = 1e-10;

/// Sums over elements of the mean gradients over the workers, by step, of which Pearson's coefficients are made.
struct LagSums {
  double count = 0;                                ///< elements
  std::vector<double> sum, square;                 ///< [steps]
  std::vector<std::array<double, kLags>> product;  ///< [steps]: with the gradients 1 .. kLags steps before

  LagSums& operator+=(const LagSums& other) {
    sum.resize(std::max(sum.size(), other.sum.size()));
    square.resize(sum.size()), product.resize(sum.size());
    count += other.count;
    for (std::size_t s = 0; s < other.sum.size(); ++s) {
      sum[s] += other.sum[s];
      square[s] += other.square[s];
      for (std::size_t lag = 0; lag < kLags; ++lag) product[s][lag] += other.product[s][lag];
    }
    return *this;
  }

  /// Mean over the pairs of steps of a window so far apart of which neither is constant, and how many there are.
  [[nodiscard]] std::pair<std::optional<double>, std::int64_t> at(std::size_t lag,
                                                                  const std::vector<std::size_t>& windows) const {
    double total = 0;
    std::int64_t pairs = 0;
    for (std::size_t s = lag; s < sum.size(); ++s) {
      const std::size_t before = s - lag;
      if (windows[s] != windows[before]) continue;
      const double mine = variance(s), theirs = variance(before);
      if (!(mine > 0 && theirs > 0)) continue;
      const double covariance = product[s][lag - 1] - sum[s] * sum[before] / count;
      total += std::clamp(covariance / std::sqrt(mine) / std::sqrt(theirs), -1.0, 1.0);
      ++pairs;
    }
    if (pairs == 0) return {};
    return {total / static_cast<double>(pairs), pairs};
  }

 private:
  /// Times the number of elements; 0 of what counts as constant.
  [[nodiscard]] double variance(std::size_t s) const {
    const double found = square[s] - sum[s] * sum[s] / count;
    return found > kConstant * square[s] ? found : 0;
  }
};

class StepAccumulator final : public Summing<LagSums> {
 public:
  StepAccumulator(std::size_t workers, const Part& part)
      : workers_{workers}, mean_(part.count), before_(kLags, std::vector<float>(part.count)) {
    sums_.count = static_cast<double>(part.count);
    sums_.sum.resize(part.steps), sums_.square.resize(part.steps), sums_.product.resize(part.steps);
  }

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient)) return;
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      const double value = static_cast<double>(slice.gradient[i]);
      mean_[i] = slice.worker == 0 ? value : mean_[i] + value;
    }
    if (slice.worker + 1 < workers_) return;
    std::vector<float>& mine = before_[slice.step % kLags];
    std::array<double, kLags> products{};
    // The oldest step of the ring is overwritten last: it is lag 16.
    for (std::size_t lag = 1; lag <= std::min(kLags, slice.step); ++lag) {
      const std::vector<float>& theirs = before_[(slice.step - lag) % kLags];
      double product = 0;
      for (std::size_t i = 0; i < mean_.size(); ++i) product += mean_[i] * static_cast<double>(theirs[i]);
      products[lag - 1] = product / static_cast<double>(workers_);
    }
    double sum = 0, square = 0;
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      const double value = mean_[i] / static_cast<double>(workers_);
      sum += value;
      square += value * value;
      mine[i] = static_cast<float>(value);
    }
    sums_.sum[slice.step] = sum;
    sums_.square[slice.step] = square;
    sums_.product[slice.step] = products;
  }
  void close() override { mean_ = {}, before_ = {}; }

 private:
  std::size_t workers_;
  std::vector<double> mean_;                ///< sum over the workers so far
  std::vector<std::vector<float>> before_;  ///< mean gradients of the last steps: that of step s at s % kLags
};

constexpr std::array<std::size_t, 5> kShownLags{1, 2, 4, 8, 16};

std::vector<Column> step_columns(std::vector<Column> columns) {
  for (const std::size_t lag : kShownLags) {
    columns.push_back({fmt::format("step_lag_{}", lag),
                       fmt::format("Pearson correlation of the mean gradient over the workers with that {} captured "
                                   "step{} before, averaged over steps; empty with too few steps",
                                   lag, lag == 1 ? "" : "s")});
  }
  return columns;
}

class StepAnalysis final : public SummingAnalysis<LagSums> {
 public:
  explicit StepAnalysis(Scope studied)
      : SummingAnalysis{std::move(studied), Unit::elements},
        table_{make_table("steps", step_columns(leading_columns()))},
        lags_{make_long_table("step_lags",
                              {{"lag", "captured steps between the two gradients, 1 to 16"},
                               {"pearson", "correlation of the mean gradients over the workers, averaged over pairs"},
                               {"pairs", "pairs of steps so far apart of which neither gradient is constant"}})} {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return sizeof(double) + kLags * sizeof(float); }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<StepAccumulator>(scope().workers, part);
  }

 private:
  void add_rows(const TensorInfo* tensor, const LagSums& sums) override {
    auto row = leading_cells(tensor, "ok", "");
    for (const std::size_t lag : kShownLags) {
      row.push_back(optional_cell(sums.at(lag, windows_).first));
    }
    table_.add(std::move(row));
    for (std::size_t lag = 1; lag <= kLags; ++lag) {
      const auto [pearson, pairs] = sums.at(lag, windows_);
      if (!pearson) continue;
      auto cells = long_cells(tensor);
      append(cells, static_cast<std::int64_t>(lag), *pearson, pairs);
      lags_.add(std::move(cells));
    }
  }

  std::vector<std::size_t> windows_{scope().windows()};
  Table &table_, &lags_;
};

}  // namespace

std::unique_ptr<Analysis> make_steps(Scope scope) {
  return std::make_unique<StepAnalysis>(std::move(scope));
}

}  // namespace gradtool
