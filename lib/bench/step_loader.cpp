#include "lib/bench/step_loader.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/error.hpp"

namespace gradtool {

std::shared_ptr<float> plain_floats(std::size_t elements) {
  return {new float[elements], std::default_delete<float[]>{}};
}

StepLoader::StepLoader(const GradientReader& reader, int ranks, std::size_t largest_unit, Extras extras,
                       TakeFloats take)
    : reader_{reader},
      extras_{extras},
      take_{std::move(take)},
      largest_{largest_unit},
      gradients_(static_cast<std::size_t>(ranks)),
      second_moments_(static_cast<std::size_t>(ranks)) {
  expects(ranks >= 1 && static_cast<std::size_t>(ranks) <= reader.workers(), "ranks must be 1 to the file's workers");
}

std::span<float> StepLoader::make_room(Room& room, bool wanted) {
  room.used = wanted ? elements_ : 0;
  if (wanted && room.memory == nullptr) room.memory = take_(largest_);
  return {room.memory.get(), room.used};
}

void StepLoader::load(const Unit& unit, std::size_t step, int only) {
  expects(unit.elements <= largest_, "a unit is larger than the loader was made for");
  elements_ = unit.elements;
  const auto all_have = [&](bool TensorInfo::*what) {
    return std::all_of(unit.pieces.begin(), unit.pieces.end(),
                       [&](const Unit::Piece& piece) { return reader_.tensors()[piece.tensor].*what; });
  };
  const auto weight = make_room(weight_, extras_.weight && all_have(&TensorInfo::has_weight));
  const bool moments = extras_.second_moment && all_have(&TensorInfo::has_second_moment);
  for (const auto& piece : unit.pieces) {
    if (!weight.empty()) reader_.read_weight(piece.tensor, step, weight.subspan(piece.first, piece.elements));
  }
  for (std::size_t rank = 0; rank < gradients_.size(); ++rank) {
    if (only >= 0 && rank != static_cast<std::size_t>(only)) continue;
    const auto gradient = make_room(gradients_[rank]);
    const auto moment = make_room(second_moments_[rank], moments);
    for (const auto& piece : unit.pieces) {
      reader_.read_gradient(piece.tensor, step, rank, gradient.subspan(piece.first, piece.elements));
      if (!moments) continue;
      reader_.read_second_moment(piece.tensor, step, rank, moment.subspan(piece.first, piece.elements));
    }
  }
}

std::span<const float> StepLoader::gradient(int rank) const {
  return gradients_.at(static_cast<std::size_t>(rank)).span();
}

std::span<const float> StepLoader::second_moment(int rank) const {
  return second_moments_.at(static_cast<std::size_t>(rank)).span();
}

std::span<const double> StepLoader::mean() {
  mean_.assign(elements_, 0.0);
  for (const auto& room : gradients_) {
    const auto gradient = room.span();
    for (std::size_t i = 0; i < elements_; ++i) mean_[i] += static_cast<double>(gradient[i]);
  }
  for (auto& value : mean_) value /= static_cast<double>(gradients_.size());
  return mean_;
}

}  // namespace gradtool
