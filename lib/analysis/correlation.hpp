#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/slices.hpp"

namespace gradtool {

/// The workers whose gradients are compared with each other. The work and the memory for pairs grow with the square of
/// their number, so beside thousands of workers, or over thousands of steps, some stand for all: evenly spaced ones,
/// because neighbours may share a machine, and always the same, so that results can be repeated.
struct ComparedWorkers {
  std::size_t workers;  ///< W, of the file
  std::size_t count;    ///< 1 to W

  /// At most 128, and so few that the sums over pairs take 64 MiB at most, but never fewer than 2 of several.
  [[nodiscard]] static ComparedWorkers choose(std::size_t workers, std::size_t steps);
  /// Compared worker `i`, ascending from worker 0.
  [[nodiscard]] std::size_t operator[](std::size_t i) const { return i * workers / count; }
};

/// Pearson correlations between the workers' gradients of one step, and between consecutive steps. They are computed
/// from co-moments, which can be added over the parts of a tensor and over tensors without reading anything twice.
///
/// It keeps R^2 + 2 R doubles for every step, where R is the number of rows: the compared workers and the mean of all.
/// While a part is open it also keeps R doubles for each of its elements.
class PearsonSums {
 public:
  PearsonSums(std::size_t compared_workers, std::size_t steps);

  /// Adds the next step. `rows` has the R rows, one after another, all of the same length. Takes its contents and
  /// leaves memory in it into which the next step can be written.
  void add_step(std::vector<double>& rows);
  /// Adds the next step from sums that were computed elsewhere over `count` elements: the means of the rows, the
  /// products of their deviations within the step [R][R], and those with the step before [R]. `lag` is ignored in the
  /// first step.
  void add_sums(double count, std::span<const double> means, std::span<const double> within,
                std::span<const double> lag);
  /// Releases the memory that only an open part needs.
  void close();
  /// Adds the sums over other elements, by Chan's formula for co-moments. Both have the same workers and steps.
  void merge(const PearsonSums& other);

  // Correlations averaged over steps. A pair of which one row is constant has no correlation and is left out, and so is
  // a pair of steps of different `windows` (Scope::windows()); the result is empty when no pair is left.
  [[nodiscard]] std::optional<double> between_workers_mean() const;  ///< mean over pairs of workers
  [[nodiscard]] std::optional<double> between_workers_min() const;   ///< least over pairs of workers
  /// The mean gradient with that of the step before.
  [[nodiscard]] std::optional<double> between_steps_of_mean(const std::vector<std::size_t>& windows) const;
  /// Each worker's gradient with its last one, averaged.
  [[nodiscard]] std::optional<double> between_steps_of_workers(const std::vector<std::size_t>& windows) const;

 private:
  struct Step {
    std::vector<double> mean;    ///< [R]
    std::vector<double> within;  ///< [R][R]: sums of products of the rows' deviations from their means
    std::vector<double> lag;     ///< [R]: the same with the deviations of the step before; 0 at the first step
  };
  /// The correlation of rows a and b of one step, and that of a row with the same row of the step before.
  [[nodiscard]] std::optional<double> within_step(const Step& step, std::size_t a, std::size_t b) const;
  [[nodiscard]] std::optional<double> between_steps(std::size_t step, std::size_t row) const;

  std::size_t rows_;
  double count_ = 0;
  std::size_t next_ = 0;
  std::vector<Step> steps_;
  std::vector<double> previous_;
};

/// The sums of the correlation analysis, on the CPU or on a GPU.
class CorrelationAccumulator : public Accumulator {
 public:
  void merge(const Accumulator& other) override;
  [[nodiscard]] const PearsonSums& pearson() const { return pearson_; }
  [[nodiscard]] const SliceGrams& grams() const { return grams_; }

 protected:
  CorrelationAccumulator(PearsonSums pearson, SliceGrams grams)
      : pearson_{std::move(pearson)}, grams_{std::move(grams)} {}
  PearsonSums pearson_;
  SliceGrams grams_;
};

}  // namespace gradtool
