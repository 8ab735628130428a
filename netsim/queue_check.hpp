#pragma once

#include <cstdint>

#include "netsim/fabric.hpp"

namespace gradtool::netsim {

/// Packets of one size arrive at one link by a Poisson process: the queue M/D/1.
struct QueueCheck {
  double load = 0.5;
  std::uint64_t packets = 0;  ///< that were counted
  double wait = 0.0;          ///< seconds between a packet's arrival and the beginning of its transmission, mean
  double half_width = 0.0;    ///< of the mean's 95 % interval, from 30 batches
  double theory = 0.0;        ///< load / (2 (1 - load)) times the transmission of a packet (Pollaczek and Khinchine)
};

/// Simulates a host's link with its port, over the same nodes, protocols and queues as all else. `load` is above 0 and
/// below 1. The first tenth of the packets is not counted.
[[nodiscard]] QueueCheck check_queue(const FabricOptions& fabric, double load, std::uint64_t packets,
                                     std::uint64_t seed);

}  // namespace gradtool::netsim
