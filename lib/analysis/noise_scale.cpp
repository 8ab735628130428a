#include "lib/analysis/noise_scale.hpp"

#include <fmt/format.h>

#include <cmath>

#include "lib/analysis/intervals.hpp"

namespace gradtool {
namespace {

/// The two norms of each step of one tensor.
class NoiseSums final : public Accumulator {
 public:
  NoiseSums(const Scope& scope, const Part& part)
      : workers_{scope.workers}, of_worker_(scope.steps()), of_mean_(scope.steps()), sum_(part.count) {}

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient)) return;
    double squares = 0.0;
    for (std::size_t i = 0; i < slice.gradient.size(); ++i) {
      const double value = slice.gradient[i];
      squares += value * value;
      sum_[i] = slice.worker == 0 ? value : sum_[i] + value;
    }
    const double workers = static_cast<double>(workers_);
    of_worker_[slice.step] += squares / workers;
    if (slice.worker + 1 < workers_) return;
    double mean_squares = 0.0;
    for (const double value : sum_) mean_squares += value * value;
    of_mean_[slice.step] += mean_squares / (workers * workers);
  }
  void close() override { sum_ = {}; }
  void merge(const Accumulator& other) override {
    const auto& more = dynamic_cast<const NoiseSums&>(other);
    non_finite_ += more.non_finite();
    for (std::size_t step = 0; step < of_mean_.size(); ++step) {
      of_worker_[step] += more.of_worker_[step];
      of_mean_[step] += more.of_mean_[step];
    }
  }

  [[nodiscard]] NoiseScale at(std::size_t step) const {
    return noise_scale(of_worker_[step], of_mean_[step], workers_);
  }

 private:
  std::size_t workers_;
  std::vector<double> of_worker_, of_mean_;  ///< |g|^2 of a worker, mean over workers, and of the workers' mean
  std::vector<double> sum_;                  ///< of the workers so far at the current step
};

const std::vector<Column> scale_columns{
    {"signal", "|G|^2: squared norm of the gradient without noise, estimated; below 0 where noise hides it"},
    {"noise", "tr(Sigma): the variance of one worker's gradient, added over its elements, estimated"},
    {"noise_scale",
     "noise / signal: by so many workers' gradients must be averaged for as much signal as noise; empty where the "
     "signal is not above 0"},
    {"noise_scale_samples",
     "the same in training samples: times the batch of a worker; empty where the file does not state it"}};

std::vector<Column> with_scale(std::vector<Column> columns) {
  columns.insert(columns.end(), scale_columns.begin(), scale_columns.end());
  return columns;
}

std::vector<Column> with_interval(std::vector<Column> columns) {
  columns.push_back({"noise_scale_low",
                     "95 % interval of noise_scale by Fieller's theorem, over the captured steps, which are taken for "
                     "independent; empty of fewer than 3"});
  columns.push_back({"noise_scale_high", "its upper end; empty where the signal cannot be told from 0"});
  return columns;
}

class NoiseAnalysis final : public Analysis {
 public:
  explicit NoiseAnalysis(Scope studied)
      : Analysis{std::move(studied), Unit::elements},
        table_{make_table("noise", with_interval(with_scale(leading_columns())))},
        by_step_{make_table("noise_steps", with_scale({{"schema_version", "version of this table's columns"},
                                                       {"file", "the gradient file as named on the command line"},
                                                       {"tensor", "name of the parameter tensor, or `all`"},
                                                       {"step", "position of the captured step, from 0"},
                                                       {"iteration", "training iteration of that step"}}))},
        all_(scope().steps()) {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return sizeof(double); }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<NoiseSums>(scope(), part);
  }

  void add(std::size_t tensor, const Accumulator& whole) override {
    const auto& seen = dynamic_cast<const NoiseSums&>(whole);
    const TensorInfo& info = scope().tensors.at(tensor);
    std::vector<NoiseScale> steps(scope().steps());
    for (std::size_t step = 0; step < steps.size(); ++step) {
      steps[step] = seen.at(step);
      all_[step] += steps[step];
    }
    add_rows(&info, steps);
  }

  void add_all() override { add_rows(nullptr, all_); }

 private:
  /// One row for all steps, whose signal and noise are added before they are divided, and one for each.
  void add_rows(const TensorInfo* tensor, const std::vector<NoiseScale>& steps) {
    const bool known = scope().workers >= 2;
    NoiseScale mean;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      mean += steps[step];
      if (!known) continue;
      const std::size_t position = scope().first_step + step;
      std::vector<Cell> row{std::int64_t{1}, scope().file, tensor == nullptr ? "all" : tensor->name,
                            static_cast<std::int64_t>(position), iteration_at(position)};
      add_cells(row, steps[step]);
      by_step_.add(std::move(row));
    }
    mean.signal /= static_cast<double>(steps.size());
    mean.noise /= static_cast<double>(steps.size());
    auto row = leading_cells(tensor, "ok", known ? "" : "one worker: nothing to tell its noise by");
    if (known) {
      add_cells(row, mean);
      add_interval(row, steps);
    }
    row.resize(table_.columns().size());
    table_.add(std::move(row));
  }

  void add_cells(std::vector<Cell>& row, const NoiseScale& scale) const {
    append(row, scale.signal, scale.noise);
    const Cell ratio = scale.signal > 0.0 ? ratio_cell(scale.noise, scale.signal) : Cell{};
    row.push_back(ratio);
    const bool in_samples = scale.signal > 0.0 && scope().batch_size > 0;
    row.push_back(in_samples ? ratio_cell(scale.noise * static_cast<double>(scope().batch_size), scale.signal)
                             : Cell{});
  }

  static void add_interval(std::vector<Cell>& row, const std::vector<NoiseScale>& steps) {
    std::vector<double> signal, noise;
    for (const NoiseScale& step : steps) {
      signal.push_back(step.signal);
      noise.push_back(step.noise);
    }
    const Interval interval = interval_of_ratio(noise, signal);
    for (const double end : {interval.low, interval.high}) row.push_back(std::isfinite(end) ? Cell{end} : Cell{});
  }

  Table &table_, &by_step_;
  std::vector<NoiseScale> all_;  ///< of each step, added over tensors
};

}  // namespace

NoiseScale noise_scale(double of_worker, double of_mean, std::size_t workers) {
  if (workers < 2) return {};
  const double w = static_cast<double>(workers);
  return {.signal = (w * of_mean - of_worker) / (w - 1.0), .noise = w * (of_worker - of_mean) / (w - 1.0)};
}

std::unique_ptr<Analysis> make_noise(Scope scope) {
  return std::make_unique<NoiseAnalysis>(std::move(scope));
}

}  // namespace gradtool
