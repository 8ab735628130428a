// The meaning of a bench's options for one codec, and which of them exclude each other.
#include "lib/bench/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/bench/result.hpp"
#include "lib/codecs/pipelined.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

std::vector<Way> BenchOptions::other_ways(const CodecSpec& spec, int replayed) const {
  const bool chooses = scheme == Scheme::automatic && !networks.empty() && op == Collective::all_reduce && node == 1 &&
                       payloads.empty() && reconstruction.empty();
  if (!chooses || spec.name() == "none" || spec.name() == "noop") return {};
  std::vector<Way> ways;
  const auto add = [&](Scheme wanted, int machine) {
    try {
      const Scheme way = machine > 1 ? resolve_levels(spec, parse_codec("none"), wanted) : resolve(wanted, spec, op);
      ways.push_back({way, machine});
      return way;
    } catch (const Error&) {
      return Scheme::automatic;  // its payloads are those of whole vectors
    }
  };
  const bool open = spec.way == Scheme::automatic;  // else the specification says the way
  if (open && resolved(spec) == Scheme::gather) add(Scheme::alltoall, 1);
  const int machine = node_for(replayed);
  if (machine > 1 && add(Scheme::automatic, machine) == Scheme::gather && open) add(Scheme::alltoall, machine);
  return ways;
}

int BenchOptions::node_for(int replayed) const {
  int most = 1;
  for (const Network& network : networks) {
    if (network.node == 1) continue;
    for (int machine = 2; machine <= replayed / 2; ++machine) {
      if (replayed % machine == 0 && (machine <= network.node || most == 1)) most = std::max(most, machine);
    }
    break;
  }
  return most;
}

Scheme BenchOptions::scheme_for(const CodecSpec& spec) const {
  // The baselines stay what they are, whatever scheme the others are put on.
  return spec.descriptor->name == "none" || spec.descriptor->name == "noop" ? Scheme::automatic : scheme;
}

bool BenchOptions::levelled(const CodecSpec& spec) const {
  return node > 1 && spec.descriptor->name != "none" && spec.descriptor->name != "noop";
}

Scheme BenchOptions::resolved(const CodecSpec& spec) const {
  return levelled(spec) ? resolve_levels(spec, inside(), scheme_for(spec)) : resolve(scheme_for(spec), spec, op);
}

std::string_view BenchOptions::all_reduce_for(const CodecSpec& spec) const {
  if (op == Collective::all_gather || op == Collective::all_to_all) return "none";
  const Scheme way = spec.way == Scheme::automatic ? scheme_for(spec) : spec.way;
  const bool nothing_added = spec.descriptor->aggregation == Aggregation::sum && op == Collective::all_reduce &&
                             (way == Scheme::gather || way == Scheme::hop || way == Scheme::alltoall);
  if (nothing_added) return "none";
  if (comm == "nccl") return "library";
  const bool on_ring =
      spec.descriptor->aggregation == Aggregation::sum && (way == Scheme::automatic || way == Scheme::sum);
  if (op == Collective::reduce_scatter) return on_ring ? name_of(AllReduce::ring) : "none";
  if (spec.descriptor->name != "none") return name_of(all_reduce);
  if (comm == "udp") return name_of(all_reduce);
  return comm == "mpi" ? "library" : name_of(AllReduce::ring);  // threads and loopback have no other
}

int BenchOptions::pipeline_for(const CodecSpec& spec, Timing timing) const {
  return timing == Timing::concurrent && can_be_pipelined(spec) ? pipeline : 1;
}

namespace {

/// Refuses the options that a collective other than an all-reduce does not have.
void check_collective(const BenchOptions& options) {
  const auto refuse = [&](bool given, std::string_view option, std::string_view why) {
    if (!given) return;
    throw Error{Fault::usage, fmt::format("{} {}: leave it out with --op {}", option, why, name_of(options.op))};
  };
  refuse(options.node > 1, "--levels", "divides an all-reduce");
  refuse(options.pipeline > 1, "--pipeline", "overlaps chunks of an all-reduce");
  refuse(options.all_reduce != AllReduce::ring, "--all-reduce", "is how an all-reduce adds");
  const bool computes = options.computation == Computation::captured || options.computation == Computation::given;
  refuse(options.op != Collective::reduce_scatter && computes, "--compute-ms",
         "models gradients on their way beside the backward pass");
  refuse(options.op == Collective::all_to_all && !options.reconstruction.empty(), "--reconstruction",
         "writes the one result of all ranks");
}

}  // namespace

void check_options(const BenchOptions& options) {
  expect_valid(!options.codecs.empty(), "bench: no codec given");
  for (const CodecSpec& codec : options.codecs) {
    const bool baseline = codec.descriptor->name == "none" || codec.descriptor->name == "noop";
    if (!baseline || codec.given.empty()) continue;
    throw Error{Fault::usage, fmt::format("--codec {}:{}: the other codecs are compared with plain {}, which takes no "
                                          "parameters in a bench",
                                          codec.name(), codec.given, codec.name())};
  }
  expect_valid(options.rounds >= 1, "--rounds must be 1 at least");
  expect_valid(options.stop.max_noise > 0.0 && std::isfinite(options.stop.max_noise),
               "--max-noise must be a finite number above 0");
  expect_valid(options.comm_timeout >= 0.1 && options.comm_timeout <= 1e6,
               "--comm-timeout must be 0.1 to 1000000 seconds");
  expect_valid(options.stop.timeout_seconds >= 0.0, "--timeout must be a number of seconds above 0");
  expect_valid(options.file.empty() != options.sizes.empty(), "bench: give a gradient file or --synthetic sizes");
  if (!options.sizes.empty() && options.values > ReplayedValues::own)
    throw Error{Fault::usage, "--values is about a captured model: leave it out with --synthetic"};
  if (!options.sizes.empty() && options.only_iterations)
    throw Error{Fault::usage, "--steps is about captured steps: leave it out with --synthetic"};
  if (!options.sizes.empty() &&
      !(options.layers.empty() && options.reconstruction.empty() && !options.per_tensor && !options.overlap &&
        options.computation != Computation::captured && options.computation != Computation::given)) {
    throw Error{Fault::usage,
                "--layers, --per-tensor, --reconstruction, --compute-ms and --overlap are about a captured model: "
                "leave them out with --synthetic"};
  }
  const bool averages = options.op == Collective::all_reduce || options.op == Collective::reduce_scatter;
  if (!options.received.empty() && !(averages && options.sizes.empty())) {
    throw Error{Fault::usage,
                "--received holds means over the ranks of a capture: leave it out with --synthetic, --op all-gather "
                "and --op all-to-all"};
  }
  for (auto file = options.received.begin(); file != options.received.end(); ++file) {
    const auto same = [&](const ReceivedFile& other) {
      return received_spec(other.path).given == received_spec(file->path).given;
    };
    if (std::none_of(options.received.begin(), file, same)) continue;
    throw Error{Fault::usage,
                fmt::format("--received {} has the name of another one, by which rows are told apart: rename a file",
                            file->path)};
  }
  if (!options.reconstruction.empty() && options.codecs.size() != 1) {
    throw Error{Fault::usage, "--reconstruction writes one result: give exactly one --codec"};
  }
  if (options.granularities.size() != 1 && !(options.reconstruction.empty() && options.payloads.empty())) {
    throw Error{Fault::usage, "--reconstruction and --payloads write what one --granularity makes: give exactly one"};
  }
  if (!options.more_seeds.empty() && !(options.reconstruction.empty() && options.payloads.empty())) {
    throw Error{Fault::usage, "--reconstruction and --payloads write what one seed makes: give exactly one"};
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
  if (options.op != Collective::all_reduce) check_collective(options);
  if (options.inner && options.node == 1)
    throw Error{Fault::usage, "--codec-inner works inside machines: say how many ranks one has, with --levels node=8"};
  if (options.inner && options.inner->gate > 0)
    throw Error{Fault::usage, "gate= is for what travels between machines: leave it out of --codec-inner"};
  if (options.node > 1 && options.pipeline > 1)
    throw Error{Fault::usage, "--pipeline overlaps chunks of an all-reduce in one level: leave it off with --levels"};
  if (options.node > 1 && std::none_of(options.codecs.begin(), options.codecs.end(),
                                       [&](const CodecSpec& spec) { return options.levelled(spec); })) {
    throw Error{Fault::usage, "--levels is for codecs, and none and noop stay in one level: give --codec another one"};
  }
  for (const Network& network : options.networks) {
    for (const int machines : options.nodes) {
      const int ranks = machines * network.node;
      const int node = network.node > 1 && options.node > 1 ? network.node : options.node;
      if (node == 1 || (ranks % node == 0 && ranks > node)) continue;
      throw Error{Fault::usage, fmt::format("--nodes {} on {} are {} ranks, and two levels need whole machines of {} "
                                            "ranks (--levels), two machines at least",
                                            machines, network.name, ranks, node)};
    }
    // An uncompressed inside is scaled to the network's machines.
    const bool same = options.node == 1 || network.node == 1 || network.node == options.node;
    if (same || options.inside().name() == "none") continue;
    throw Error{
        Fault::usage,
        fmt::format(
            "--network {} has {} ranks on a machine and --levels {}: give both the same, or leave --codec-inner out",
            network.name, network.node, options.node)};
  }
  if (options.pipeline > 1) {
    if (options.device != "cpu") {
      throw Error{Fault::unavailable,
                  "--pipeline overlaps chunks by threads of the CPU: leave it off with --device cuda, where streams "
                  "would have to"};
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
