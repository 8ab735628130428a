#include "lib/bench/step_loader.hpp"

#include <algorithm>

#include "lib/core/error.hpp"

namespace gradtool {

StepLoader::StepLoader(const GradientReader& reader, int ranks, std::size_t largest_unit, Extras extras)
    : reader_{reader},
      extras_{extras},
      gradients_(static_cast<std::size_t>(ranks)),
      second_moments_(static_cast<std::size_t>(ranks)) {
  expects(ranks >= 1 && static_cast<std::size_t>(ranks) <= reader.workers(), "ranks must be 1 to the file's workers");
  for (auto& gradient : gradients_) gradient.reserve(largest_unit);
}

void StepLoader::load(const Unit& unit, std::size_t step, int only) {
  elements_ = unit.elements;
  const auto all_have = [&](bool TensorInfo::*what) {
    return std::all_of(unit.pieces.begin(), unit.pieces.end(),
                       [&](const Unit::Piece& piece) { return reader_.tensors()[piece.tensor].*what; });
  };
  const bool weights = extras_.weight && all_have(&TensorInfo::has_weight);
  const bool moments = extras_.second_moment && all_have(&TensorInfo::has_second_moment);
  weight_.resize(weights ? unit.elements : 0);
  for (const auto& piece : unit.pieces) {
    if (weights) reader_.read_weight(piece.tensor, step, {weight_.data() + piece.first, piece.elements});
  }
  for (std::size_t rank = 0; rank < gradients_.size(); ++rank) {
    if (only >= 0 && rank != static_cast<std::size_t>(only)) continue;
    gradients_[rank].resize(unit.elements);
    for (const auto& piece : unit.pieces) {
      reader_.read_gradient(piece.tensor, step, rank, {gradients_[rank].data() + piece.first, piece.elements});
    }
    second_moments_[rank].resize(moments ? unit.elements : 0);
    for (const auto& piece : unit.pieces) {
      if (!moments) break;
      reader_.read_second_moment(piece.tensor, step, rank,
                                 {second_moments_[rank].data() + piece.first, piece.elements});
    }
  }
}

std::span<const float> StepLoader::gradient(int rank) const {
  return gradients_.at(static_cast<std::size_t>(rank));
}

std::span<const float> StepLoader::second_moment(int rank) const {
  return second_moments_.at(static_cast<std::size_t>(rank));
}

std::span<const double> StepLoader::mean() {
  mean_.assign(elements_, 0.0);
  for (const auto& gradient : gradients_) {
    for (std::size_t i = 0; i < elements_; ++i) mean_[i] += static_cast<double>(gradient[i]);
  }
  for (auto& value : mean_) value /= static_cast<double>(gradients_.size());
  return mean_;
}

}  // namespace gradtool
