#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtool {

/// Which training iterations are captured: first, first + every, first + 2 every and so on, below `end`. Or, with
/// `windows`, so many runs of `window_steps` iterations that follow each other: one begins at `first`, one ends at
/// `end`, and the others lie evenly between them. Iterations count from 0.
struct CaptureSchedule {
  std::int64_t first = 0;
  std::int64_t end = 0;  ///< the first iteration that is not captured
  std::int64_t every = 1;
  std::int64_t windows = 0;  ///< 0, or at least 2, with a gap between each and the next
  std::int64_t window_steps = 0;

  /// The first iteration of a window, which count from 0.
  [[nodiscard]] constexpr std::int64_t window_begin(std::int64_t window) const {
    return first + window * (end - first - window_steps) / (windows - 1);
  }
  [[nodiscard]] constexpr bool captures(std::int64_t iteration) const {
    for (std::int64_t w = 0; w < windows; ++w) {
      if (iteration >= window_begin(w) && iteration < window_begin(w) + window_steps) return true;
    }
    return windows == 0 && iteration >= first && iteration < end && (iteration - first) % every == 0;
  }
  [[nodiscard]] constexpr std::int64_t count() const {
    if (windows > 0) return windows * window_steps;
    return end <= first ? 0 : (end - first - 1) / every + 1;
  }
};

/// Learning rates are below this.
inline constexpr double kHighestRate = 1e6;

/// The learning rate of every iteration.
///
/// constant                             the base rate
/// step:ITERATIONS:FACTOR               base x FACTOR^floor(iteration / ITERATIONS)
/// milestones:ITERATION,...:FACTOR      base x FACTOR^(milestones that are not above the iteration)
/// cosine                               base x (1 + cos(pi iteration / total)) / 2   (Loshchilov and Hutter 2017, one
///                                      period)
/// warmup:ITERATIONS:SCHEDULE           one of the above times min(1, (iteration + 1) / ITERATIONS); a cosine begins
///                                      after the warm-up (Goyal et al. 2017, section 2.2)
class LearningRate {
 public:
  /// `total` is the number of training iterations. Throws Fault::usage for a schedule that has none of these forms, and
  /// for one that reaches kHighestRate.
  LearningRate(double base, const std::string& schedule, std::int64_t total);

  [[nodiscard]] double at(std::int64_t iteration) const;

 private:
  enum class Kind : std::uint8_t { constant, step, milestones, cosine };

  /// Whether `text` is a schedule without warm-up; sets kind_ and what belongs to it.
  bool parse(std::string_view text);

  double base_;
  Kind kind_ = Kind::constant;
  double factor_ = 1.0;
  std::int64_t warmup_ = 0, total_;
  std::vector<std::int64_t> iterations_;  ///< the period of the steps, or the milestones
};

}  // namespace gradtool
