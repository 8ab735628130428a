// What the options of a bench mean for one codec, and which of them exclude each other.
#include "lib/bench/options.hpp"

#include <algorithm>
#include <cmath>

#include "lib/codecs/pipelined.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

std::size_t BenchOptions::steps_of(std::size_t captured) const {
  return steps > 0 ? std::min(steps, captured) : captured;
}

Scheme BenchOptions::scheme_for(const CodecSpec& spec) const {
  // The baselines stay what they are, whatever scheme the others are put on.
  return spec.descriptor->name == "none" || spec.descriptor->name == "noop" ? Scheme::automatic : scheme;
}

std::string_view BenchOptions::all_reduce_for(const CodecSpec& spec) const {
  if (comm == "nccl") return "library";
  if (spec.descriptor->name != "none") return name_of(all_reduce);
  if (comm == "udp") return name_of(all_reduce);
  return comm == "mpi" ? "library" : name_of(AllReduce::ring);  // threads and loopback have no other
}

int BenchOptions::pipeline_for(const CodecSpec& spec, Timing timing) const {
  return timing == Timing::concurrent && can_be_pipelined(spec) ? pipeline : 1;
}

void check_options(const BenchOptions& options) {
  expect_valid(!options.codecs.empty(), "bench: no codec given");
  expect_valid(options.rounds >= 1, "--rounds must be 1 at least");
  expect_valid(options.stop.max_noise > 0.0 && std::isfinite(options.stop.max_noise),
               "--max-noise must be a finite number above 0");
  expect_valid(options.comm_timeout >= 0.1 && options.comm_timeout <= 1e6,
               "--comm-timeout must be 0.1 to 1000000 seconds");
  expect_valid(options.stop.timeout_seconds >= 0.0, "--timeout must be a number of seconds above 0");
  expect_valid(options.file.empty() != options.sizes.empty(), "bench: give a gradient file or --synthetic sizes");
  if (!options.sizes.empty() && !(options.layers.empty() && options.reconstruction.empty() && !options.per_tensor &&
                                  !options.compute_captured && options.compute_seconds == 0.0)) {
    throw Error{Fault::usage,
                "--layers, --per-tensor, --reconstruction and --compute-ms are about a captured model: leave them out "
                "with --synthetic"};
  }
  if (!options.reconstruction.empty() && options.codecs.size() != 1) {
    throw Error{Fault::usage, "--reconstruction writes one result: give exactly one --codec"};
  }
  if (options.granularities.size() != 1 && !(options.reconstruction.empty() && options.payloads.empty())) {
    throw Error{Fault::usage, "--reconstruction and --payloads write what one --granularity makes: give exactly one"};
  }
  if (!options.networks.empty() && !options.isolated) {
    throw Error{Fault::usage, "--network models from isolated times: leave --timing at both or isolated"};
  }
  if (!options.payloads.empty() && options.codecs.size() != 1) {
    throw Error{Fault::usage, "--payloads writes one codec's messages: give exactly one --codec"};
  }
  if (options.comm == "nccl" && options.all_reduce != AllReduce::ring) {
    throw Error{Fault::usage, "--all-reduce is for threads, mpi, udp and loopback: NCCL chooses by itself how it adds"};
  }
  if (options.comm == "udp" && options.udp.loss_sums > 0.0 && options.check) {
    throw Error{Fault::usage,
                "--comm udp:sums=... may lose parts of the result on some ranks, and --check compares the ranks: add "
                "--check 0"};
  }
  if (options.pipeline > 1) {
    if (options.device != "cpu") {
      throw Error{
          Fault::unavailable,
          "--pipeline overlaps chunks by threads of the CPU: leave it off with --device cuda, where streams would "
          "have to"};
    }
    if (!options.concurrent) {
      throw Error{Fault::usage,
                  "--pipeline overlaps what isolated timing takes apart: give --timing concurrent, or both"};
    }
    if (!options.payloads.empty()) {
      throw Error{Fault::usage, "--payloads writes the messages of whole units: leave --pipeline off"};
    }
  }
}

}  // namespace gradtool
