#pragma once

#include <string_view>

namespace gradtool {

/// Points of accuracy that a codec may cost an arm before it counts as one that lost.
constexpr double kPointsThatCount = 1.0;

/// What the trainings of reports/verdicts came to, in which codecs took part: arms, each a codec in a training, whose
/// error of a step, replayed on a capture of that training without codecs, is at most a given one.
struct TrainedArms {
  struct Arm {
    std::string_view training, codec;
    double nmse;  ///< of a step, the smaller one of its captures early and in the middle
    double lost;  ///< points of accuracy, mean over seeds; below 0 where it gained
    double low;   ///< the low end of its 95 % interval
  };
  int arms = 0;
  int lost = 0;                ///< that lost more than kPointsThatCount in the mean
  int surely = 0;              ///< the same with all of the interval
  const Arm* worst = nullptr;  ///< the one that lost most; null where there is no arm
};
[[nodiscard]] TrainedArms trained_arms_up_to(double nmse);

/// The largest error of a step up to which no arm lost more than kPointsThatCount in the mean: one that is not sure to
/// have lost as much bounds it, too.
[[nodiscard]] double harmless_nmse();

}  // namespace gradtool
