#pragma once

#include <optional>
#include <vector>

#include "lib/io/gradient_file.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

/// How the last backward pass of an iteration goes, as it was captured.
struct BackwardTiming {
  std::vector<double> ready;  ///< of each tensor of the file: share of the pass that is over when its gradient is there
  double share = 0.0;         ///< the pass as a share of an iteration's computation, in (0, 1]
};

/// The medians over the workers for which a value is known. A tensor of which no worker knows anything is ready when
/// the pass ends, which hides nothing of it. Nothing where no worker knows its share of the pass, or any tensor.
[[nodiscard]] std::optional<BackwardTiming> captured_timing(const Readiness& readiness);

/// `ready` of each unit (UnitCost): a unit is ready when the last of its tensors is.
[[nodiscard]] std::vector<double> ready_shares(const std::vector<Unit>& units, const BackwardTiming& timing);

}  // namespace gradtool
