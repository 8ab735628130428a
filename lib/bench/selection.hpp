#pragma once

#include <string>
#include <vector>

#include "lib/bench/bench.hpp"
#include "lib/bench/launch_replay.hpp"
#include "lib/comm/launch.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The tensors that are replayed, and those that are not because their values are not finite.
struct Selection {
  std::vector<std::size_t> tensors;
  std::vector<NonFinite> skipped;
};

/// Those whose name matches `layers`; all when it is empty. Fault::usage when none does.
[[nodiscard]] Selection choose_tensors(const GradientReader& reader, const std::string& layers);

/// --ranks, else the processes of the job, else the file's workers. Fault::usage where they contradict each other.
[[nodiscard]] int choose_ranks(const BenchOptions& options, const ReplayDevice& device, const GradientReader& reader,
                               const MpiPlace& place);

/// none and noop first, then what was asked for, each once.
[[nodiscard]] std::vector<CodecSpec> with_baselines(const std::vector<CodecSpec>& wanted);

}  // namespace gradtool
