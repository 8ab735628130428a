#include "lib/advice/trained_arms.hpp"

#include <algorithm>
#include <limits>

namespace gradtool {
namespace {

constexpr TrainedArms::Arm kArms[] = {
#include "lib/advice/trained_arms.inc"
};

}  // namespace

TrainedArms trained_arms_up_to(double nmse) {
  TrainedArms found;
  for (const TrainedArms::Arm& arm : kArms) {
    if (!(arm.nmse <= nmse)) continue;
    ++found.arms;
    found.lost += arm.lost > kPointsThatCount ? 1 : 0;
    found.surely += arm.low > kPointsThatCount ? 1 : 0;
    if (found.worst == nullptr || arm.lost > found.worst->lost) found.worst = &arm;
  }
  return found;
}

double harmless_nmse() {
  // Every row of a table asks for it, and it takes the square of the arms.
  static const double found = [] {
    double largest = 0.0;
    for (const TrainedArms::Arm& arm : kArms) {
      const TrainedArms below = trained_arms_up_to(arm.nmse);
      if (arm.nmse > largest && kOneIn * below.lost <= below.arms && below.worst->lost <= kMostPoints)
        largest = arm.nmse;
    }
    return largest;
  }();
  return found;
}

double first_loss() {
  double smallest = std::numeric_limits<double>::infinity();
  for (const TrainedArms::Arm& arm : kArms) {
    if (arm.lost > kPointsThatCount) smallest = std::min(smallest, arm.nmse);
  }
  return smallest;
}

double least_trained_nmse(std::string_view codec) {
  double smallest = std::numeric_limits<double>::infinity();
  for (const TrainedArms::Arm& arm : kArms) {
    if (arm.codec.substr(0, arm.codec.find(':')) == codec) smallest = std::min(smallest, arm.nmse);
  }
  return smallest;
}

}  // namespace gradtool
