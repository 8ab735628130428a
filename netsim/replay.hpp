#pragma once

#include <optional>

#include "netsim/payload_log.hpp"
#include "netsim/results.hpp"

namespace gradtool::netsim {

struct ReplayOptions {
  double scale = 1.0;     ///< times more bytes than were recorded
  std::size_t steps = 0;  ///< recorded steps to replay; 0: all
};

struct ReplayResult {
  std::vector<double> seconds;   ///< of each step, until the last rank is done
  std::vector<double> modelled;  ///< of the same steps, by the alpha-beta model
  double wire_bytes = 0.0;       ///< of data that one rank sends in a step, mean
  Fabric::Counts counts;
};

/// Replays a log's collectives on the fabric, beside background traffic; a step begins when the last rank has ended the
/// one before. `network` is what the model is told. Throws Fault::usage when the fabric has too few hosts.
[[nodiscard]] ReplayResult replay(const Setting& setting, const PayloadLog& log, const ReplayOptions& options,
                                  const Network& network);

/// alpha and beta between two hosts of different leaves of the idle fabric, from messages of 1 kB and 4 MB over a
/// connection that has sent before: what gradtool probe would find there.
[[nodiscard]] Network probe_fabric(const Setting& setting);

}  // namespace gradtool::netsim
