#include "lib/advice/reproduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/advice/advice.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/bench/modelled.hpp"
#include "lib/comm/launch.hpp"
#include "lib/model/library.hpp"
#include "lib/model/units.hpp"

namespace gradtool {
namespace {

/// A number as the command line takes it, with all of its digits.
std::string exact(double value) {
  return fmt::format("{}", value);
}

/// How iterations are modelled. The time that the file states is taken without a word, where it was.
std::string iteration_options(const BenchOptions& options) {
  std::string text;
  if (options.computation == Computation::given) {
    // Twelve digits leave out what the conversion from milliseconds and back has rounded.
    text += " --compute-ms " +
            (options.trace ? shell_word(options.trace->given) : fmt::format("{:.12g}", options.compute_seconds * 1e3));
  } else if (options.computation != Computation::if_captured) {
    text += fmt::format(" --compute-ms {}", options.computation == Computation::none ? "none" : "captured");
  }
  return text + (options.overlap == Overlap::none ? " --overlap none" : "");
}

/// Between whom collectives are carried out: errors depend on how many ranks there are, and over udp on what is lost.
std::string place_options(const BenchOptions& options) {
  std::string text;
  if (options.comm != (options.device == "cpu" ? "threads" : "loopback")) {
    const bool told = options.comm == "udp" && !options.udp.text.empty();
    text += " --comm " + (told ? shell_word("udp:" + options.udp.text) : options.comm);
  }
  if (options.ranks > 0) text += fmt::format(" --ranks {}", options.ranks);
  if (options.threads > 0) text += fmt::format(" --threads {}", options.threads);
  if (options.device != "cpu") text += fmt::format(" --device {}", options.device);
  return text;
}

/// How the codec is timed, so far as that was chosen.
std::string timing_options(const BenchOptions& options) {
  const BenchOptions usual;
  std::string text;
  std::size_t rounds = usual.rounds;
  if (options.iterations > 0) {
    text += fmt::format(" --iters {}", options.iterations);
    rounds = std::min(rounds, options.iterations);
  } else {
    const StopRule& stop = options.stop;
    if (stop.min_samples != usual.stop.min_samples) text += fmt::format(" --min-samples {}", stop.min_samples);
    if (stop.max_noise != usual.stop.max_noise) text += " --max-noise " + exact(stop.max_noise);
    if (stop.timeout_seconds > 0.0) text += " --timeout " + exact(stop.timeout_seconds);
  }
  if (options.rounds != rounds) text += fmt::format(" --rounds {}", options.rounds);
  if (options.warmup_steps != usual.warmup_steps) text += fmt::format(" --warmup-iters {}", options.warmup_steps);
  return text + (options.hot ? " --hot" : "");
}

/// The program that starts the ranks where they are processes; empty where they are threads.
std::string launcher(const BenchOptions& options, const ResultRow& row) {
  const bool processes = options.comm == "mpi" || options.comm == "udp" || mpi_place().size > 1;
  return processes ? fmt::format("mpirun -n {} ", row.measured_ranks) : "";
}

/// A sentence where DDP's buckets are not those of the row; empty, or with a space behind.
std::string bucket_remark(const ResultRow& row) {
  const Granularity cut = Granularity::parse(row.granularity), usual;
  if (cut.kind == Granularity::Kind::bucket && cut.bucket_bytes != usual.bucket_bytes) {
    return fmt::format("Buckets of this size: DistributedDataParallel(..., bucket_cap_mb={:g}). ",
                       static_cast<double>(cut.bucket_bytes) / 0x1p20);
  }
  if (cut.kind == Granularity::Kind::tensor ||
      (cut.kind == Granularity::Kind::model && row.raw_bytes() > static_cast<double>(usual.bucket_bytes))) {
    return fmt::format("DistributedDataParallel reduces buckets of 25 MB and not by {}: --granularity {} models that. ",
                       row.granularity, usual.text());
  }
  return "";
}

/// A sentence where the row gains much less, or more, in DDP than on the modelled library, or the answers differ;
/// empty, or with a space behind.
std::string gain_remark(const ResultRow& row, const NetworkAdvice& advice) {
  const auto& none = *advice.none_in_ddp->in_ddp;
  const double modelled = judged_seconds(*advice.none) / judged_seconds(row);
  const double there = none.time.median / row.in_ddp->time.median;
  constexpr double kMuchLess = 0.95;
  const bool alike = there >= kMuchLess * modelled && kMuchLess * there <= modelled;
  if (alike && advice.in_ddp == advice.taken) return "";
  const bool rings = row.in_ddp->hook.starts_with("ddp_hook");
  const std::string gain = fmt::format("{:.2f} times", there), expected = fmt::format("{:.2f} times", modelled);
  return fmt::format("{} {}, where {} is {} as fast as uncompressed{}. ",
                     rings ? "ddp_hook sends by rings over" : "PyTorch leaves the sum to", none.hook, short_name(row),
                     gain, gain == expected ? "" : ", and not " + expected);
}

}  // namespace

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return word + "'";
}

std::string reproducing_command(const BenchOptions& options, const ResultRow& row, std::optional<double> max_nmse) {
  std::string command =
      fmt::format("{}gradtool bench {} --codec {} --granularity {} --timing isolated --network {} --nodes {}",
                  launcher(options, row), shell_word(options.file), shell_word(spec_of(row)), row.granularity,
                  shell_word(row.network->name), row.ranks / row.network->node);
  command += iteration_options(options);
  if (options.library) command += fmt::format(" --library {}", name_of(*options.library));
  if (options.codec_speed) command += " --codec-speed " + shell_word(options.codec_speed->text());
  if (options.op != Collective::all_reduce) command += fmt::format(" --op {}", name_of(options.op));
  if (options.values != ReplayedValues::automatic) command += fmt::format(" --values {}", name_of(options.values));
  if (!takes_own_scheme(row) || options.scheme != Scheme::automatic)
    command += fmt::format(" --reduce {}", name_of(row.scheme));
  if (row.inner) command += fmt::format(" --levels node={}", row.measured_node);
  if (const auto& inner = options.inner)
    command += " --codec-inner " + shell_word(inner->name() + (inner->given.empty() ? "" : ":" + inner->given));
  if (options.baseline) command += fmt::format(" --baseline-dtype {}", type_words(row.baseline_dtype));
  if (options.all_reduce != AllReduce::ring) command += fmt::format(" --all-reduce {}", name_of(options.all_reduce));
  command += place_options(options);
  if (options.seed != 1) command += fmt::format(" --seed {}", options.seed);
  if (const auto& steps = options.only_iterations) command += fmt::format(" --steps {}:{}", steps->first, steps->last);
  if (!options.layers.empty()) command += fmt::format(" --layers {}", shell_word(options.layers));
  command += timing_options(options);
  if (!options.check) command += " --check 0";
  return command + " --advise" + (max_nmse ? " --max-nmse " + exact(*max_nmse) : "");
}

InPyTorch in_pytorch(const NetworkAdvice& advice) {
  const bool inner = advice.taken->inner.has_value();
  const ResultRow& flat = advice.in_one_level != nullptr ? *advice.in_one_level : *advice.taken;
  InPyTorch out;
  out.where = inner ? "In PyTorch with DDP" : "In PyTorch";
  if (inner) {
    out.levels =
        "In PyTorch: HSDP reduces in two levels, and there this is the all-reduce between machines; ddp_hook has one "
        "level.";
  }
  if (flat.op != Collective::all_reduce || flat.level_node > 1) return out;
  const bool modelled = advice.none_in_ddp != nullptr;  // else in a record of before, or --library is the hook
  const bool pays = !modelled || advice.in_ddp != nullptr;
  const ResultRow& row = modelled && pays ? *advice.in_ddp : flat;
  if (pays) out.remarks = bucket_remark(row);
  if (modelled) out.remarks += gain_remark(flat, advice);
  if (&row != &flat) out.remarks += gain_remark(row, advice);
  out.remarks.erase(out.remarks.find_last_not_of(' ') + 1);
  if (!pays) return out;
  if (modelled && row.in_ddp->hook.ends_with("_compress_hook")) {
    out.call = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks." + row.in_ddp->hook;
    return out;
  }
  out.call = fmt::format("gradtool.ddp_hook(\"{}\"", spec_of(row));
  if (!takes_own_scheme(row)) out.call += fmt::format(", scheme=\"{}\"", name_of(row.scheme));
  const auto gate = modelled ? row.in_ddp->gate_bytes : row.gate_applied ? row.gate_bytes : std::nullopt;
  if (gate) out.call += fmt::format(", gate_bytes={:.0f}", std::round(*gate));
  out.call += ")";
  return out;
}

}  // namespace gradtool
