#include "lib/advice/trained_arms.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "lib/advice/acceptance.hpp"

namespace gradtool {
namespace {

using enum ErrorKind;
constexpr TrainedArms::Arm kArms[] = {
#include "lib/advice/trained_arms.inc"
};

}  // namespace

TrainedArms trained_arms_up_to(double nmse, ErrorKind kind) {
  TrainedArms found;
  for (const TrainedArms::Arm& arm : kArms) {
    if (arm.kind != kind || !(arm.nmse <= nmse)) continue;
    ++found.arms;
    found.lost += arm.lost > kPointsThatCount ? 1 : 0;
    found.surely += arm.low > kPointsThatCount ? 1 : 0;
    if (found.worst == nullptr || arm.lost > found.worst->lost) found.worst = &arm;
  }
  return found;
}

double harmless_nmse(ErrorKind kind) {
  const auto largest_of = [](ErrorKind of) {
    double largest = 0.0;
    for (const TrainedArms::Arm& arm : kArms) {
      if (arm.kind != of || arm.nmse <= largest || arm.nmse > kDefaultMaxNmse) continue;
      const TrainedArms below = trained_arms_up_to(arm.nmse, of);
      if (kOneIn * below.lost <= below.arms && below.worst->lost <= kMostPoints) largest = arm.nmse;
    }
    return largest;
  };
  // Every row of a table asks for it, and it takes the square of the arms.
  static const std::array found{largest_of(unbiased), largest_of(other)};
  return found[kind == unbiased ? 0 : 1];
}

double first_loss(ErrorKind kind) {
  double smallest = std::numeric_limits<double>::infinity();
  for (const TrainedArms::Arm& arm : kArms) {
    if (arm.kind == kind && arm.lost > kPointsThatCount) smallest = std::min(smallest, arm.nmse);
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
