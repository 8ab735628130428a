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
  double largest = 0.0;
  for (const TrainedArms::Arm& arm : kArms) {
    const TrainedArms found = trained_arms_up_to(arm.nmse);
    if (arm.nmse > largest && kOneIn * found.lost <= found.arms && found.worst->lost <= kMostPoints) largest = arm.nmse;
  }
  return largest;
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
