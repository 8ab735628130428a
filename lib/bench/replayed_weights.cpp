#include "lib/bench/replayed_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/core/error.hpp"

namespace gradtool {

bool ReplayedWeights::has_all(const GradientSource& source) {
  const auto& tensors = source.tensors();
  return std::all_of(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) { return tensor.has_weight; });
}

ReplayedWeights::ReplayedWeights(std::unique_ptr<GradientSource> source, bool differences)
    : ChangedSource{std::move(source)},
      differences_{differences},
      info_{this->source().info()},
      tensors_{this->source().tensors()},
      steps_{this->source().steps()} {
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.has_weight) continue;
    throw Error{
        Fault::usage,
        fmt::format("--values {}: {} has no weights of tensor {}; capture them (gradtool capture --with weight)",
                    differences ? "weight-difference" : "weight", path(), tensor.name)};
  }
  if (differences_ && steps_.size() < 2) {
    throw Error{Fault::usage,
                fmt::format("--values weight-difference: {} has one captured step; differences need two", path())};
  }
  if (differences_) steps_.erase(steps_.begin());
  info_.quantity = differences_ ? "weight_delta" : "weight";
  info_.inner_steps.reset();
  for (TensorInfo& tensor : tensors_) {
    tensor.has_weight = tensor.has_second_moment = false;
    tensor.dtype = Dtype::f32;  // as weights are stored
  }
}

void ReplayedWeights::read(const ArrayPart& part, std::span<float> out) const {
  expects(part.of == ArrayPart::Of::gradient, "weights have no second moments, and no weights beside them");
  if (!differences_) return source().read_weight_part(part.tensor, part.step, part.first, out);
  std::vector<float> before(out.size());
  source().read_weight_part(part.tensor, part.step, part.first, before);
  source().read_weight_part(part.tensor, part.step + 1, part.first, out);
  std::transform(out.begin(), out.end(), before.begin(), out.begin(), [](float now, float then) { return now - then; });
}

}  // namespace gradtool
