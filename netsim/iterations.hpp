#pragma once

#include <vector>

#include "netsim/results.hpp"
#include "netsim/workload.hpp"

namespace gradtool::netsim {

/// Who sends what to whom in an iteration.
enum class Pattern : std::uint8_t {
  server,  ///< workers push each unit to a parameter server, which sends it back to all once it has them all
  ring,    ///< each unit is all-reduced on a ring of all workers
};
[[nodiscard]] constexpr std::string_view name_of(Pattern pattern) {
  return pattern == Pattern::server ? "ps" : "ring";
}

struct IterationOptions {
  Pattern pattern = Pattern::server;
  int workers = 0, servers = 1;  ///< servers are for Pattern::server, on hosts of their own
  int iterations = 3;
  double compute = 0.0;      ///< seconds of forward and backward pass
  double bound = 0.1;        ///< share of a unit's contribution of one worker that may be lost
  double pull_bound = 0.05;  ///< the same of what a server sends
};

/// Bound of one hop of a ring of `workers`, so that what passes all 2 (workers - 1) of them keeps 1 - bound.
[[nodiscard]] double hop_bound(double bound, int workers);

struct IterationResult {
  std::vector<double> seconds;   ///< of each iteration, from the end of the one before
  double least_seconds = 0.0;    ///< in which the busiest link can carry the least that must arrive
  double least_delivered = 1.0;  ///< smallest delivered share of a message
  Fabric::Counts counts;
};

/// Simulates iterations. A worker's backward pass makes units ready from the last to the first; its forward pass goes
/// through them from the first on and waits for each to have come back. Worker w has the gradients of captured worker
/// w modulo their number. Appends the rows of its completion times to `table`, behind `before`. Throws Fault::check
/// when an iteration does not end within 100 simulated seconds.
[[nodiscard]] IterationResult run_iterations(const Setting& setting, const Workload& work,
                                             const IterationOptions& options, Table& table,
                                             const std::vector<Cell>& before);

}  // namespace gradtool::netsim
