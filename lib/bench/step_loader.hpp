#pragma once

#include <span>
#include <vector>

#include "lib/bench/units.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Holds one unit of one step for every rank: memory is ranks x largest unit, whatever the file's size.
class StepLoader {
 public:
  /// What is read beside the gradients, where the file has it for every tensor of a unit.
  struct Extras {
    bool weight = false;
    bool second_moment = false;
  };
  /// `ranks` <= workers of the file: rank r replays worker r. The reader must outlive the loader.
  StepLoader(const GradientReader& reader, int ranks, std::size_t largest_unit, Extras extras);

  /// Reads the unit at step position `step`, for all ranks, or for `only` when it is not negative.
  void load(const Unit& unit, std::size_t step, int only = -1);

  /// What load() read; valid until the next load.
  [[nodiscard]] std::span<const float> gradient(int rank) const;
  /// Empty where not asked for, or where the file lacks it for a tensor of the unit.
  [[nodiscard]] std::span<const float> weight() const { return weight_; }
  [[nodiscard]] std::span<const float> second_moment(int rank) const;
  /// The exact mean over ranks in float64, added in rank order. Needs load() for all ranks. Valid until the next call.
  [[nodiscard]] std::span<const double> mean();

 private:
  const GradientReader& reader_;
  Extras extras_;
  std::size_t elements_ = 0;
  std::vector<std::vector<float>> gradients_;
  std::vector<float> weight_;
  std::vector<std::vector<float>> second_moments_;
  std::vector<double> mean_;
};

}  // namespace gradtool
