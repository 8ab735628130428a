#pragma once

#include <string_view>

namespace gradtool {

/// Points of accuracy that a codec may cost an arm before it counts as one that lost.
constexpr double kPointsThatCount = 1.0;
/// At most one in so many of the arms whose errors are taken for harmless may have lost that much, and none this much.
constexpr int kOneIn = 20;
constexpr double kMostPoints = 3.0;

/// How the errors of consecutive steps add up. Those of an unbiased codec that keeps nothing back are independent, and
/// cancel; others may come again in each step, as those of rounding to the nearest do, or wait in a memory.
enum class ErrorKind { unbiased, other };

/// The outcome of the trainings of reports/verdicts in which codecs took part: arms, each a codec in a training, whose
/// lasting error (confidence.hpp), replayed on a capture of that training without codecs, is at most a given one.
struct TrainedArms {
  struct Arm {
    std::string_view training, codec;
    ErrorKind kind;
    double nmse;  ///< lasting: of captures early and midway the larger one with a memory, else the smaller
    double lost;  ///< points of accuracy, mean over seeds; below 0 where it gained
    double low;   ///< the low end of its 95 % interval
  };
  int arms = 0;
  int lost = 0;                ///< that lost more than kPointsThatCount in the mean
  int surely = 0;              ///< the same with all of the interval
  const Arm* worst = nullptr;  ///< the one that lost most; null where there is no arm
};
/// Arms of codecs whose errors are of that kind.
[[nodiscard]] TrainedArms trained_arms_up_to(double nmse, ErrorKind kind);

/// The largest lasting error up to which at most one arm in kOneIn lost more than kPointsThatCount in the mean, and
/// none more than kMostPoints, of those up to kDefaultMaxNmse. Runs of one arm scatter by about a point, so an arm that
/// lost a little need not be at fault.
[[nodiscard]] double harmless_nmse(ErrorKind kind);
/// The smallest lasting error with which an arm lost more than kPointsThatCount in the mean.
[[nodiscard]] double first_loss(ErrorKind kind);
/// The smallest lasting error with which an arm of the codec of that name was trained; infinite where none was.
[[nodiscard]] double least_trained_nmse(std::string_view codec);

}  // namespace gradtool
