#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/model/units.hpp"

namespace gradtool::netsim {

/// The message of one unit of a captured model, and the time at which it is sent.
struct WorkUnit {
  std::uint64_t bytes = 0;  ///< of the gradient in float32, scaled
  int layer = 0;            ///< class of its first layer, 0 to kLayerClasses - 1 from the input side on
  double depth = 0.0;       ///< share of the model's elements before it
  double ready = 1.0;       ///< share of the backward pass after which it is there
  double share = 0.0;       ///< of the model's elements
  /// For each captured worker: which of its packets are important, that is their mean |g| reaches the median of their
  /// tensor's packets, or their layer lies in the last third.
  std::vector<std::vector<std::uint8_t>> important;
};

struct Workload {
  std::string model;
  std::vector<WorkUnit> units;  ///< in forward order
  std::uint64_t bytes = 0;      ///< of all units
};

struct WorkloadOptions {
  Granularity granularity;
  double scale = 1.0;    ///< times more bytes than captured
  std::size_t step = 0;  ///< captured step whose gradients decide what is important
  int payload = 1436;    ///< bytes of data in a packet
};

/// A captured step as work for a network. A tensor that is scaled keeps its gradient's course: each of its packets
/// takes the importance of its share of the captured elements. Throws Fault::usage for a step that is not there.
[[nodiscard]] Workload read_workload(const GradientSource& source, const WorkloadOptions& options);

}  // namespace gradtool::netsim
