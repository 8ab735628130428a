#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/bench/bench.hpp"
#include "lib/bench/readiness.hpp"
#include "lib/bench/received.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/rows.hpp"
#include "lib/comm/launch.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/model/cost_model.hpp"

namespace gradtool {

/// All that a bench replays, opened, checked against the options and cut into units, and this process's place in the
/// job. Made once for several benches of one capture.
struct BenchInputs {
  ReplayDevice device;
  MpiPlace place;
  std::unique_ptr<GradientSource> whole;                 ///< the file, where some of its steps are replayed
  std::vector<std::unique_ptr<GradientSource>> sources;  ///< the file, or one for each synthetic size
  std::vector<std::uint64_t> sizes;                      ///< synthetic ones
  std::vector<BenchCut> cuts;
  std::vector<std::unique_ptr<ReceivedMeans>> received;  ///< of each file of --received
  std::optional<Dtype> reduced_in;  ///< the type of all gradients that nothing compresses; empty: as captured
  bool weights = false;             ///< the capture's weights, or their differences, take the place of its values
  std::string values_remark;        ///< what is replayed, where that is not gradients
  int ranks = 1;
  std::size_t range_elements = 0;  ///< see ReplayPlan
  ComputeTime compute;
  std::unique_ptr<BackwardTiming> backward;  ///< when the file's gradients are ready, where it says so
  BenchReport known;                         ///< what every report begins with
};

/// Gradients are added: what is replayed is a training's backward pass, not its weights or activations.
[[nodiscard]] bool sums_gradients(const BenchOptions& options);

/// Throws Fault::usage for options that do not fit the file or the job, Fault::data for the file, Fault::backend where
/// it cannot fit into memory. Every process of a job calls it. `options` have been checked.
[[nodiscard]] BenchInputs open_inputs(const BenchOptions& options);

}  // namespace gradtool
