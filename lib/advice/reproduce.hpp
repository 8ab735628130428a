#pragma once

#include <optional>
#include <string>

#include "lib/advice/advice.hpp"
#include "lib/bench/options.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {

/// The text as a shell takes it for one word.
[[nodiscard]] std::string shell_word(const std::string& text);

/// The command line that measures a modelled row again, alone beside the baselines, and says what is advised on its
/// network. `max_nmse`: the limit that was given. For rows of a bench of `options`.
[[nodiscard]] std::string reproducing_command(const BenchOptions& options, const ResultRow& row,
                                              std::optional<double> max_nmse);

/// How a training in PyTorch sends what is advised. The terminal and the page of `gradtool report` both print this.
struct InPyTorch {
  std::string levels;   ///< a sentence on two levels, which the hook does not have; empty: one level is advised
  std::string where;    ///< "In PyTorch"
  std::string call;     ///< `gradtool.ddp_hook("int8", scheme="alltoall")`; empty: no codec gains there
  std::string remarks;  ///< buckets of another size, and what is gained there, where that is less than the answer says
};
/// The advice takes a codec.
[[nodiscard]] InPyTorch in_pytorch(const NetworkAdvice& advice);

}  // namespace gradtool
