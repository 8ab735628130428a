#include "lib/bench/throttle.hpp"

#include <fmt/format.h>

namespace gradtool {

std::array<double, kThrottleReasons.size()> ThrottleWatch::take() {
  std::array<double, kThrottleReasons.size()> seen{};
  for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = (seen_ & kThrottleReasons[i].bit) != 0 ? 1.0 : 0.0;
  seen_ = 0;
  return seen;
}

bool DiscardedSamples::count(std::span<const double> seen) {
  bool any = false;
  for (std::size_t i = 0; i < why_.size(); ++i) {
    const bool held_down = seen[i] > 0.0;
    why_[i] = why_[i] || held_down;
    any = any || held_down;
  }
  samples_ += any ? 1 : 0;
  return any;
}

std::string DiscardedSamples::note() const {
  if (samples_ == 0) return {};
  std::string reasons;
  for (std::size_t i = 0; i < why_.size(); ++i) {
    if (why_[i]) reasons += fmt::format("{}{}", reasons.empty() ? "" : ", ", kThrottleReasons[i].name);
  }
  return fmt::format("{} sample{} discarded: the GPU's clock was held down ({})", samples_, samples_ == 1 ? "" : "s",
                     reasons);
}

}  // namespace gradtool
