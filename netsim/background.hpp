#pragma once

#include <ns3/random-variable-stream.h>

#include <functional>
#include <vector>

#include "netsim/transport.hpp"

namespace gradtool::netsim {

/// Other people's traffic: every host starts flows to random others, by a Poisson process. Sizes are those of the web
/// search cluster that DCTCP's authors measured (Alizadeh et al. 2010, figure 4; the points that later simulations
/// use).
class Background {
 public:
  /// `load`: bytes that flows bring on average, headers included, as a share of the hosts' links; below 1.
  /// `delivered` is called for every flow that has ended.
  Background(const Fabric& fabric, Transport& transport, double load,
             std::function<void(const Message&, const Delivery&)> delivered);
  /// Begins at the simulation's current time and goes on until it ends.
  void start();

  [[nodiscard]] static double mean_bytes();

 private:
  void schedule(int host);
  [[nodiscard]] std::uint64_t draw_size();

  const Fabric& fabric_;
  Transport& transport_;
  std::function<void(const Message&, const Delivery&)> delivered_;
  double mean_gap_ = 0.0;  ///< seconds between two flows of a host
  ns3::Ptr<ns3::UniformRandomVariable> random_;
};

}  // namespace gradtool::netsim
