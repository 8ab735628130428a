#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lib/io/changed_source.hpp"

namespace gradtool {

/// Another source whose workers count by their batches (/steps/batch_weight): worker r's gradient is multiplied by
/// w_r W / sum(w), so that the plain mean over the W workers that are replayed is the weighted mean
/// sum(w_r g_r) / sum(w). So every codec and every reducer gets what a job would give it that weights its ranks'
/// losses. Second moments are multiplied by the square of that. Steps without weights stay as they are.
class WeightedGradients final : public ChangedSource {
 public:
  /// `workers`: the first workers of the source, which alone are replayed. Throws Fault::data where they count 0
  /// together in a step.
  WeightedGradients(std::unique_ptr<GradientSource> source, std::size_t workers);

  /// Whether any step has weights.
  [[nodiscard]] static bool needed(const GradientSource& source);

  void read(const ArrayPart& part, std::span<float> out) const override;

 private:
  [[nodiscard]] double factor(std::size_t step, std::size_t worker) const {
    return worker < workers_ ? factors_[step * workers_ + worker] : 1.0;
  }

  std::size_t workers_;
  std::vector<double> factors_;  ///< [S, workers]
};

}  // namespace gradtool
