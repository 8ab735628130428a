#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lib/model/network.hpp"

namespace gradtool {

/// Speeds of links for which a page models everything: 24 a decade from 0.1 to 1000 Gbit/s.
inline constexpr std::size_t kSweepSpeeds = 97;
[[nodiscard]] double sweep_speed(std::size_t i);

/// The latency of a message on links of every speed. It follows links that are known: the Ethernet profiles, or, where
/// one of `networks` is none of them, those of `networks`, of which the first one of each speed counts.
class LatencyCurve {
 public:
  explicit LatencyCurve(std::span<const Network> networks);

  /// Seconds. At the speed of a known link its latency, between two of them along a straight line in logarithms, and
  /// beyond them that of the last: so charts agree with what is said about each of these networks.
  [[nodiscard]] double at(double gbit_s) const;

  /// "the networks of this record: 7 us at 10 Gbit/s".
  [[nodiscard]] std::string words() const;

 private:
  bool own_ = false;
  std::vector<Link> known_;  ///< the slowest first
};

/// The unit in which all times of a page's section are written.
struct TimeUnit {
  std::string name = "ms";
  std::string words = "milliseconds";
  double per_second = 1e3;
  double per_us = 1e-3;
};
/// Microseconds, milliseconds or seconds: the one in which so many seconds are a number from 1 to 1000.
[[nodiscard]] TimeUnit time_unit_for(double seconds);

}  // namespace gradtool
