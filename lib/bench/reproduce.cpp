#include "lib/bench/reproduce.hpp"

#include <fmt/format.h>

#include <cmath>

#include "lib/bench/advice.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/job_trace.hpp"

namespace gradtool {
namespace {}  // namespace

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return word + "'";
}

std::string reproducing_command(const BenchOptions& options, const ResultRow& row, std::optional<double> max_nmse) {
  std::string command =
      fmt::format("gradtool bench {} --codec {} --granularity {} --timing isolated --network {} --nodes {}",
                  shell_word(options.file), shell_word(spec_of(row)), row.granularity, shell_word(row.network->name),
                  row.ranks / row.network->node);
  if (row.iteration) {
    command += " --compute-ms " + (options.trace ? shell_word(options.trace->given)
                                                 : fmt::format("{:g}", row.iteration->compute_seconds * 1e3));
    if (options.overlap == Overlap::none) command += " --overlap none";
  } else if (options.computation == Computation::none) {
    command += " --compute-ms none";
  }
  if (options.library) command += fmt::format(" --library {}", name_of(*options.library));
  if (options.codec_speed) command += " --codec-speed " + shell_word(options.codec_speed->text());
  if (options.op != Collective::all_reduce) command += fmt::format(" --op {}", name_of(options.op));
  if (!takes_own_scheme(row) || options.scheme != Scheme::automatic)
    command += fmt::format(" --reduce {}", name_of(row.scheme));
  if (row.inner) command += fmt::format(" --levels node={}", row.measured_node);
  if (const auto& inner = options.inner)
    command += " --codec-inner " + shell_word(inner->name() + (inner->given.empty() ? "" : ":" + inner->given));
  if (options.baseline) command += fmt::format(" --baseline-dtype {}", type_words(row.baseline_dtype));
  if (options.all_reduce != AllReduce::ring) command += fmt::format(" --all-reduce {}", name_of(options.all_reduce));
  if (options.ranks > 0) command += fmt::format(" --ranks {}", options.ranks);
  if (options.threads > 0) command += fmt::format(" --threads {}", options.threads);
  if (options.device != "cpu") command += fmt::format(" --device {}", options.device);
  if (options.seed != 1) command += fmt::format(" --seed {}", options.seed);
  if (!options.layers.empty()) command += fmt::format(" --layers {}", shell_word(options.layers));
  return command + " --advise" + (max_nmse ? fmt::format(" --max-nmse {:g}", *max_nmse) : "");
}

std::string hook_call(const ResultRow& row) {
  if (row.op != Collective::all_reduce || row.level_node > 1) return "";
  std::string call = fmt::format("gradtool.ddp_hook(\"{}\"", spec_of(row));
  if (!takes_own_scheme(row)) call += fmt::format(", scheme=\"{}\"", name_of(row.scheme));
  if (row.gated_share > 0.0) call += fmt::format(", gate_bytes={:.0f}", std::round(*row.gate_bytes));
  return call + ")";
}

}  // namespace gradtool
