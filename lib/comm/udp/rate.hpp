#pragma once

#include <algorithm>

/// How fast one rank sends to another.
namespace gradtool::udp {

/// The receiver's findings since its last report.
struct PathReport {
  double loss = 0.0;         ///< share of the datagrams that did not arrive, 0 to 1
  double marked = 0.0;       ///< share of those that arrived with a congestion mark (ECN), 0 to 1
  double queue_delay = 0.0;  ///< seconds that the last of them took longer than the fastest ever
  double round_trip = 0.0;   ///< seconds from sending the last of them to this report
  bool paced = true;         ///< whether the rate, and not a lack of data, held the sender back
};

/// Additive increase, multiplicative decrease, on marks as DCTCP has it (Alizadeh et al. 2010) and on delay as TIMELY
/// has it (Mittal et al. 2015), on losses by what was lost, once a round trip. Both are minimal, as DLCP's and MLT's
/// are: losses are tolerable, so that a share of them up to what the message tolerates is no sign of congestion.
class RateControl {
 public:
  struct Limits {
    double first = 12.5e6;        ///< bytes a second at the start
    double least = 62.5e3;        ///< bytes a second
    double most = 12.5e9;         ///< bytes a second
    double target_delay = 5e-3;   ///< seconds in queues that are no congestion
    double tolerated_loss = 0.0;  ///< share
  };
  explicit RateControl(const Limits& limits)
      : limits_{limits}, rate_{std::clamp(limits.first, limits.least, limits.most)} {}

  /// `now` in seconds, of any clock that does not go back.
  void take(double now, const PathReport& report);

  [[nodiscard]] double rate() const { return rate_; }  ///< bytes a second
  [[nodiscard]] double round_trip() const { return round_trip_; }

 private:
  static constexpr double kMarkWeight = 1.0 / 16.0;  ///< g of DCTCP
  static constexpr double kNoticedLoss = 0.01;       ///< share beyond the tolerated one that is taken for congestion

  Limits limits_;
  double rate_;
  double marked_ = 1.0;  ///< alpha of DCTCP
  double round_trip_ = 1e-3;
  double last_change_ = -1.0;
  bool starting_ = true;  ///< doubling each round trip, until the first sign of congestion
};

}  // namespace gradtool::udp
