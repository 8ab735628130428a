#include "lib/comm/udp/rate.hpp"

namespace gradtool::udp {

void RateControl::take(double now, const PathReport& report) {
  if (report.round_trip > 0.0) round_trip_ += 0.125 * (report.round_trip - round_trip_);
  marked_ += kMarkWeight * (report.marked - marked_);
  double keep = 1.0;
  if (report.marked > 0.0) keep = std::min(keep, 1.0 - marked_ / 2.0);
  if (report.queue_delay > limits_.target_delay)
    keep = std::min(keep, 1.0 - 0.5 * (1.0 - limits_.target_delay / report.queue_delay));
  if (report.loss > limits_.tolerated_loss + kNoticedLoss)
    keep = std::min(keep, 1.0 - (report.loss - limits_.tolerated_loss));
  const bool congested = keep < 1.0;
  if (!congested && !report.paced) return;  // nothing is known about a higher rate
  if (last_change_ >= 0.0 && now - last_change_ < round_trip_) return;
  last_change_ = now;
  if (congested) {
    starting_ = false;
    rate_ *= keep;
  } else {
    rate_ = starting_ ? 2.0 * rate_ : 1.02 * rate_ + limits_.least;
  }
  rate_ = std::clamp(rate_, limits_.least, limits_.most);
}

}  // namespace gradtool::udp
