#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace gradtool {

/// Pearson correlations between the workers' gradients of one step, and between consecutive steps, from additive
/// co-moments: parts of a tensor, and whole tensors, join without anything being read twice.
///
/// It keeps R^2 + 2 R doubles for every step, R = W + 1 rows: the W workers and their mean. While a part is open it
/// also keeps R doubles for each of its elements.
class PearsonSums {
 public:
  PearsonSums(std::size_t workers, std::size_t steps);

  /// The next step's gradients, R rows of equal length one after another. Takes the contents of `rows` and leaves
  /// memory in it that the next step's gradients may be written to.
  void add_step(std::vector<double>& rows);
  /// The same, summed up elsewhere over `count` elements: the rows' means, their products within the step [R][R], and
  /// with the step before [R]; of the first step `lag` counts for nothing.
  void add_sums(double count, std::span<const double> means, std::span<const double> within,
                std::span<const double> lag);
  /// Releases what only an open part needs.
  void close();
  /// Joins the sums over other elements (Chan's formula for co-moments). Both have the same workers and steps.
  void merge(const PearsonSums& other);

  /// Correlations averaged over steps. A pair with a constant member has none and is left out; empty when none is left.
  [[nodiscard]] std::optional<double> between_workers_mean() const;      ///< mean over pairs of workers
  [[nodiscard]] std::optional<double> between_workers_min() const;       ///< least over pairs of workers
  [[nodiscard]] std::optional<double> between_steps_of_mean() const;     ///< mean over workers, with the step before
  [[nodiscard]] std::optional<double> between_steps_of_workers() const;  ///< each worker's own, averaged over workers

 private:
  struct Step {
    std::vector<double> mean;    ///< [R]
    std::vector<double> within;  ///< [R][R]: sums of products of the rows' deviations from their means
    std::vector<double> lag;     ///< [R]: the same with the deviations of the step before; 0 at the first step
  };
  /// Of row a with row b, or of row a with itself a step before.
  [[nodiscard]] std::optional<double> within_step(const Step& step, std::size_t a, std::size_t b) const;
  [[nodiscard]] std::optional<double> between_steps(std::size_t step, std::size_t row) const;

  std::size_t rows_;
  double count_ = 0;
  std::size_t next_ = 0;
  std::vector<Step> steps_;
  std::vector<double> previous_;
};

}  // namespace gradtool
