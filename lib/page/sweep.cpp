#include "lib/page/sweep.hpp"
#include "lib/core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gradtool {

double sweep_speed(std::size_t i) {
  return std::pow(10.0, -1.0 + static_cast<double>(i) / 24.0);
}

LatencyCurve::LatencyCurve(std::span<const Network> networks) {
  for (const char* name : {"1gbe", "10gbe", "25gbe", "100gbe"}) known_.push_back(Network::parse(name).link);
  std::vector<Link> asked;
  asked.reserve(networks.size());
  for (const Network& network : networks) {
    const Link& link = network.link;
    asked.push_back(link);
    own_ = own_ || std::none_of(known_.begin(), known_.end(), [&](const Link& known) {
             return known.alpha == link.alpha && known.beta == link.beta;
           });
  }
  if (own_) known_ = asked;
  std::stable_sort(known_.begin(), known_.end(), [](const Link& a, const Link& b) { return a.beta < b.beta; });
  const auto same = [](const Link& a, const Link& b) { return a.beta == b.beta; };
  known_.erase(std::unique(known_.begin(), known_.end(), same), known_.end());
}

double LatencyCurve::at(double gbit_s) const {
  const double beta = gbit_s * 1e9 / 8.0;
  if (beta <= known_.front().beta) return known_.front().alpha;
  for (std::size_t i = 1; i < known_.size(); ++i) {
    const Link &below = known_[i - 1], &above = known_[i];
    if (beta > above.beta) continue;
    const double part = std::log(beta / below.beta) / std::log(above.beta / below.beta);
    // A latency of 0 has no logarithm.
    if (!(below.alpha > 0.0 && above.alpha > 0.0)) return below.alpha + part * (above.alpha - below.alpha);
    return below.alpha * std::pow(above.alpha / below.alpha, part);
  }
  return known_.back().alpha;
}

std::string LatencyCurve::words() const {
  std::vector<std::string> each;
  each.reserve(known_.size());
  for (const Link& link : known_)
    each.push_back(fmt::format("{:.3g} us at {:.3g} Gbit/s", link.alpha * 1e6, link.beta * 8e-9));
  return fmt::format("{}: {}", own_ ? "the networks of this record" : "the Ethernet that gradtool knows",
                     joined(each, ", "));
}

TimeUnit time_unit_for(double seconds) {
  if (seconds < 1e-3) return {.name = "us", .words = "microseconds", .per_second = 1e6, .per_us = 1.0};
  if (seconds < 1.0) return {};
  return {.name = "s", .words = "seconds", .per_second = 1.0, .per_us = 1e-6};
}

}  // namespace gradtool
