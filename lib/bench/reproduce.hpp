#pragma once

#include <optional>
#include <string>

#include "lib/bench/options.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {

/// As a shell takes it for one word.
[[nodiscard]] std::string shell_word(const std::string& text);

/// The command line that measures a modelled row again, alone beside the baselines, and says what is advised on its
/// network. `max_nmse`: the limit that was given. For rows of a bench of `options`.
[[nodiscard]] std::string reproducing_command(const BenchOptions& options, const ResultRow& row,
                                              std::optional<double> max_nmse);

/// How a training averages its gradients so in PyTorch: `gradtool.ddp_hook("int8", scheme="alltoall")`. Empty for other
/// collectives than an all-reduce, and for one in two levels, which the hook does not have.
[[nodiscard]] std::string hook_call(const ResultRow& row);

/// Differences between that and the modelled row: buckets of another size, and the hook's own rings, where they gain
/// much less on `none` than the library that is modelled. Empty where there are none.
[[nodiscard]] std::string hook_remarks(const ResultRow& row, const ResultRow& none);

}  // namespace gradtool
