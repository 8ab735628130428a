#include "lib/io/weighted_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

void multiply(std::span<float> values, double factor) {
  if (factor == 1.0) return;
  if (factor == 0.0) return std::fill(values.begin(), values.end(), 0.0F);  // an empty batch, whose mean may be NaN
  for (float& value : values) value = static_cast<float>(factor * static_cast<double>(value));
}

}  // namespace

WeightedGradients::WeightedGradients(std::unique_ptr<GradientSource> source, std::size_t workers)
    : ChangedSource{std::move(source)}, workers_{workers} {
  expects(workers >= 1 && workers <= this->source().workers(), "so many workers cannot be weighted");
  factors_.assign(steps().size() * workers, 1.0);
  for (std::size_t s = 0; s < steps().size(); ++s) {
    const auto& weights = steps()[s].batch_weight;
    if (weights.empty()) continue;
    const double sum = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(workers), 0.0);
    if (sum <= 0.0 || !std::isfinite(sum))
      throw_error(Fault::data,
                  "{}: /steps/batch_weight: the {} workers that are replayed count {} "
                  "together in iteration {}; must be finite and above 0",
                  path(), workers, sum, steps()[s].iteration);
    for (std::size_t r = 0; r < workers; ++r)
      factors_[s * workers + r] = weights[r] * static_cast<double>(workers) / sum;
  }
}

bool WeightedGradients::needed(const GradientSource& source) {
  return std::any_of(source.steps().begin(), source.steps().end(),
                     [](const StepInfo& step) { return !step.batch_weight.empty(); });
}

void WeightedGradients::read(const ArrayPart& part, std::span<float> out) const {
  source().read(part, out);
  const double weight = factor(part.step, part.worker);
  if (part.of == ArrayPart::Of::gradient) multiply(out, weight);
  if (part.of == ArrayPart::Of::second_moment) multiply(out, weight * weight);
}

}  // namespace gradtool
