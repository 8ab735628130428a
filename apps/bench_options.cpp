#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/model/library.hpp"

namespace gradtool::app {

std::uint64_t parse_seed(const std::string& text) {
  if (const auto seed = number_of<std::uint64_t>(text)) return *seed;
  throw_error(Fault::usage, "--seed '{}' is not valid; write a whole number from 0 to 2^64 - 1", text);
}

IterationRange parse_iterations(const std::string& text) {
  const auto parts = split(text, ':');
  using Iteration = decltype(IterationRange::first);
  const auto first = number_of<Iteration>(parts.empty() ? "" : parts.front());
  const auto last = number_of<Iteration>(parts.empty() ? "" : parts.back());
  if (parts.size() == 2 && first && last && *first <= *last) return {.first = *first, .last = *last};
  throw_error(Fault::usage,
              "--steps '{}' is not valid; write the first and the last training iteration, both included, as 10:60",
              text);
}

std::vector<std::uint64_t> parse_seeds(const std::string& text) {
  std::vector<std::uint64_t> seeds;
  bool valid = !text.empty();
  for (const std::string_view one : split(text, ',')) {
    const auto seed = number_of<std::uint64_t>(one);
    valid = valid && seed && std::find(seeds.begin(), seeds.end(), *seed) == seeds.end();
    if (valid) seeds.push_back(*seed);
  }
  if (valid) return seeds;
  throw_error(Fault::usage, "--seeds '{}' is not valid; write whole numbers from 0 to 2^64 - 1, each once, as 1,2,3",
              text);
}

void expect_outputs_spare_sources(const std::vector<std::string>& sources, const std::vector<NamedPath>& outputs) {
  std::vector<NamedPath> inputs;
  inputs.reserve(sources.size());
  for (const auto& source : sources) inputs.push_back({"a file of the merged view", source});
  if (!inputs.empty()) expect_separate_files(inputs, outputs);
}

void add_baseline_dtype(CLI::App& app, std::string& dtype) {
  app.add_option("--baseline-dtype", dtype,
                 "Type in which the job reduces gradients that nothing compresses: captured (the job's, where the file "
                 "says it, else that of the file, tensor by tensor), fp32, bf16 or fp16; codecs are compared with that")
      ->check(CLI::IsMember({"captured", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

std::optional<Dtype> parse_baseline_dtype(const std::string& text) {
  if (text == "captured") return std::nullopt;
  return text == "bf16" ? Dtype::bf16 : text == "fp16" ? Dtype::f16 : Dtype::f32;  // CLI11 has checked the word
}

void add_reduce_options(CLI::App& app, std::string& scheme, std::string& all_reduce) {
  app.add_option("--reduce", scheme,
                 "Way that the codecs take: auto (in bench with --network, of gather and alltoall the faster one), "
                 "sum, gather, hop (encode again at every hop), or alltoall (the owner of a shard adds in float32)")
      ->check(CLI::IsMember({"auto", "sum", "gather", "hop", "alltoall"}))
      ->capture_default_str();
  app.add_option("--all-reduce", all_reduce,
                 "How sums of payloads are added: ring, doubling (fewer messages, for small units), auto, by size, "
                 "server (all to rank 0, which sends the sum) or transpose (each segment to its rank); none rides the "
                 "library's own, but over udp")
      ->check(CLI::IsMember({"ring", "doubling", "auto", "server", "transpose"}))
      ->capture_default_str();
}

CLI::Validator one_of_comms(const std::vector<std::string>& names) {
  const std::string list = fmt::format("{{{}}}", joined(names, ","));
  return {[names, list](std::string& text) {
            const std::string name = text.substr(0, text.find(':'));
            const bool known = std::find(names.begin(), names.end(), name) != names.end();
            return known && (name == text || name == "udp") ? std::string{} : fmt::format("{} not in {}", text, list);
          },
          list};
}

ProcessComm parse_comm(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return {text, {}};
  return {text.substr(0, colon), parse_udp_options(std::string_view{text}.substr(colon + 1))};
}

std::vector<CodecSpec> parse_codecs(const std::vector<std::string>& lists, bool& all) {
  std::vector<CodecSpec> specs;
  for (const auto& list : lists) {
    for (const auto& text : expand_codec_list(list)) {
      if (text == "all") {
        all = true;
        for (auto& spec : all_codecs()) specs.push_back(std::move(spec));
      } else {
        specs.push_back(parse_codec(text));
      }
    }
  }
  return specs;
}

std::vector<Network> parse_networks(const std::vector<std::string>& texts) {
  std::vector<Network> networks;
  for (const auto& text : texts) {
    // A network file is the first rank's business, as all that is modelled: other machines need not have it. How many
    // ranks share a machine decides which ways are replayed, and all ranks must know it.
    const std::string file = network_file(text);
    const bool elsewhere = mpi_place().rank != 0 && !file.empty();
    Network network = elsewhere ? Network::parse(fmt::format("file{}:alpha=0us,beta=1Gbps{}", networks.size(),
                                                             file == text ? "" : "," + text.substr(file.size() + 1)))
                                : Network::from_option(text);
    const auto same = [&](const Network& other) { return other.name == network.name; };
    if (std::none_of(networks.begin(), networks.end(), same)) networks.push_back(std::move(network));
  }
  return networks;
}

void add_trained(CLI::App& app, std::vector<std::string>& files) {
  app.add_option("--trained", files,
                 "Record of gradtool.trial with your own training (docs/trial.md) or of gradtool train (train.json, or "
                 "its folder): about the codecs that it has tried the advice goes by its verdict; repeatable")
      ->take_all()
      ->expected(1)
      ->type_name("FILE");
}

Acceptance parse_acceptance(std::optional<double> max_nmse, const std::vector<std::string>& trained) {
  Acceptance acceptance = max_nmse ? Acceptance{*max_nmse} : Acceptance{};
  if (trained.empty()) return acceptance;
  OwnTrials own;
  for (const auto& path : trained) own.trials.push_back(read_own_trial(path));
  acceptance.trials = std::make_shared<const OwnTrials>(std::move(own));
  return acceptance;
}

void set_iteration(const std::optional<std::string>& compute, const std::string& overlap, BenchOptions& bench) {
  if (!overlap.empty()) bench.overlap = overlap == "none" ? Overlap::none : Overlap::bucket;
  if (!compute) return;
  if (*compute == "captured" || *compute == "none") {
    bench.computation = *compute == "none" ? Computation::none : Computation::captured;
    if (bench.overlap && bench.computation == Computation::none)
      throw Error{Fault::usage, "--overlap is about modelled iterations: leave --compute-ms none out"};
    return;
  }
  if (names_traces(*compute)) {
    // The first rank models iterations; other machines need not have the files.
    bench.computation = Computation::given;
    if (mpi_place().rank == 0) bench.trace = std::make_shared<const JobTrace>(read_job_traces(*compute));
    bench.compute_seconds = bench.trace ? bench.trace->compute_seconds : 1.0;
    return;
  }
  const double milliseconds = number_of<double>(*compute).value_or(0.0);
  if (!(milliseconds > 0.0 && milliseconds <= 1e9)) {
    throw_error(Fault::usage,
                "--compute-ms '{}' is not valid; write milliseconds above 0, such as 120, "
                "traces of torch.profiler (trace.json, trace.json.gz), captured or none",
                *compute);
  }
  bench.computation = Computation::given;
  bench.compute_seconds = milliseconds * 1e-3;
}

void add_carriers(CLI::App& app, std::optional<std::string>& library, std::optional<std::string>& codec_speed) {
  app.add_option("--library", library,
                 "What carries the collectives in the modelled network: nccl, gloo, mpi, hook (as ddp_hook sends) or "
                 "best (the best known algorithms) [what the capture's job used, where the file says, else best]")
      ->check(CLI::IsMember({"best", "nccl", "gloo", "mpi", "hook"}));
  app.add_option("--codec-speed", codec_speed,
                 "Model with codec times other than those measured here: the JSON record of a bench on another "
                 "machine, such as a GPU's, or floor:3000, the least that codecs can take beside a memory of 3000 GB/s "
                 "(floor:3000,cache=50MB: and a cache of 50 MB, else 256 MB)")
      ->type_name("FILE|floor:GB/S");
}

void set_carriers(const std::optional<std::string>& library, const std::optional<std::string>& codec_speed,
                  BenchOptions& bench) {
  // A network file and a record are the first rank's business: other machines need not have them.
  if (codec_speed && mpi_place().rank == 0)
    bench.codec_speed = std::make_shared<const CodecSpeed>(CodecSpeed::parse(*codec_speed));
  if (library) bench.library = named<Library>(*library);  // CLI11 has checked the word
}

}  // namespace gradtool::app
