#include "lib/tune/tune.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/report/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/advice/advice.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/files.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/color.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/outputs.hpp"

namespace gradtool::app {
namespace {

struct TuneArguments {
  TuneOptions tune;
  std::vector<std::string> codecs, trained;
  std::string network, granularity = "bucket:25MB", scheme = "auto", baseline_dtype = "captured", overlap, csv, json;
  std::optional<std::string> nodes, compute, layers, library, codec_speed;
  std::string seed = "1";
  const CLI::Option* limit = nullptr;  ///< --max-nmse
  bool markdown = false;
};

/// none and noop are in every bench, and have nothing to search.
std::vector<std::string> chosen_codecs(const std::vector<std::string>& lists) {
  std::vector<std::string> codecs;
  const auto add = [&codecs](const std::string& text) {
    if (text != "none" && text != "noop" && std::find(codecs.begin(), codecs.end(), text) == codecs.end())
      codecs.push_back(text);
  };
  for (const auto& list : lists) {
    for (const auto& text : expand_codec_list(list)) {
      if (text != "all") {
        add(text);
        continue;
      }
      for (const auto& spec : all_codecs()) add(spec.name());
    }
  }
  if (codecs.empty()) throw Error{Fault::usage, "--codec names nothing to search: none and noop are always there"};
  return codecs;
}

int run(TuneArguments& o) {
  BenchOptions& bench = o.tune.bench;
  if (mpi_place().size > 1) {
    throw Error{Fault::usage,
                "tune runs in one process, with threads or GPUs as ranks: leave mpirun out, then bench what it finds "
                "with --comm mpi"};
  }
  if (o.markdown && (o.csv == "-" || o.json == "-"))
    throw Error{Fault::usage, "--markdown goes to standard output, where other data is to go too; give that a file"};
  const std::vector<NamedPath> outputs{{"--csv", o.csv}, {"--json", o.json}};
  std::vector<NamedPath> inputs{{"file", bench.file}, {"--network", network_file(o.network)}};
  for (const auto& trained : o.trained) inputs.push_back({"--trained", trained});
  for (const auto& trace : trace_files(o.compute.value_or(""))) inputs.push_back({"--compute-ms", trace});
  if (o.codec_speed) inputs.push_back({"--codec-speed", codec_speed_file(*o.codec_speed)});
  expect_separate_files(inputs, outputs);
  expect_outputs_spare_sources(sources_of_view(bench.file), outputs);
  if (!(o.tune.max_error >= 0.0 && std::isfinite(o.tune.max_error)))
    throw_error(Fault::usage, "--max-nmse {} is not valid; an error is 0 or more", o.tune.max_error);
  o.tune.limit_given = o.limit->count() > 0;
  if (!(o.tune.budget_seconds >= 1.0 && o.tune.budget_seconds <= 1e6))
    throw_error(Fault::usage, "--budget {} is not valid; write seconds, 1 to 1000000", o.tune.budget_seconds);
  o.tune.codecs = chosen_codecs(o.codecs);
  o.tune.trials = parse_acceptance({}, o.trained).trials;
  bench.networks = {Network::from_option(o.network)};
  if (o.nodes) bench.nodes = parse_node_counts(*o.nodes);
  if (bench.nodes.size() > 1)
    throw_error(Fault::usage, "--nodes {}: what is best depends on it; give one number", *o.nodes);
  bench.granularities = {Granularity::parse(o.granularity)};
  bench.scheme = named<Scheme>(o.scheme).value();
  bench.baseline = parse_baseline_dtype(o.baseline_dtype);
  bench.all_codecs = true;  // a codec that does not fit the scheme is left out, not refused
  bench.comm = bench.device == "cpu" ? "threads" : "loopback";
  bench.seed = parse_seed(o.seed);
  if (o.layers && o.layers->empty()) {
    throw Error{Fault::usage, "--layers '' is not valid; write a regular expression, or leave it out for all tensors"};
  }
  bench.layers = o.layers.value_or("");
  set_iteration(o.compute, o.overlap, bench);
  set_carriers(o.library, o.codec_speed, bench);
  if (o.tune.trials) o.tune.trials->expect_same_model(bench.file, GradientReader{bench.file}.elements());
  for (const auto& path : {o.csv, o.json}) {
    if (!path.empty()) expect_writable(path);
  }
  bench.command = command_line();
  const TuneReport report = tune(o.tune);
  if (report.bench.interrupted) {  // what has not been measured in full is not recommended
    fmt::print(stderr, "interrupted: nothing written\n");
    return kInterrupted;
  }
  Outputs saved;
  saved.csv(o.csv, csv_table(report.bench.rows));
  if (!o.json.empty()) saved.text(o.json, json_text(tune_record(o.tune, report), 1) + "\n");
  const bool data_on_stdout = o.csv == "-" || o.json == "-";
  if (report.bench.averaged())
    print_warning(
        fmt::format("{}: {}", bench.file, averaged_warning(report.bench.likeness, report.bench.stated_averaged)));
  std::FILE* const people = data_on_stdout ? stderr : stdout;
  const Style style = o.markdown ? Style::markdown : color_on(people) ? Style::colored : Style::plain;
  fmt::print(people, "{}", tune_text(o.tune, report, style));
  std::fflush(stdout);
  for (const auto& path : saved.written()) fmt::print(stderr, "wrote {}\n", printable(path));
  saved.finish();
  return report.bench.failed ? static_cast<int>(Fault::check) : 0;
}

}  // namespace

Subcommand add_tune(CLI::App& root) {
  auto* app = root.add_subcommand("tune", "Search codecs' parameters for an error limit and a network");
  auto o = std::make_shared<TuneArguments>();
  BenchOptions& b = o->tune.bench;
  o->tune.max_error = kDefaultMaxNmse;
  app->add_option("file", b.file, "Gradient file, from gradtool capture or any other producer")
      ->type_name("FILE")
      ->required();
  app->add_option("--codec", o->codecs,
                  "Whose parameters to search, as bench takes them: those that are given keep their values, such as "
                  "topk:index=u32; repeatable, or several with commas; 'all' for every codec")
      ->default_val(std::vector<std::string>{"all"})
      ->take_all()
      ->expected(1)
      ->type_name("CODEC");
  o->limit = app->add_option("--max-nmse", o->tune.max_error,
                             "Largest error that is accepted; of codecs with error feedback or a memory it is the "
                             "cumulative_nmse, else the nmse")
                 ->capture_default_str();
  add_trained(*app, o->trained);
  app->add_option("--budget", o->tune.budget_seconds, "Seconds for everything, about; it often takes fewer")
      ->capture_default_str()
      ->type_name("SECONDS");
  app->add_option("--network", o->network,
                  "The network to model: wan, 1gbe, 10gbe, 25gbe, 100gbe, 200gbe, 400gbe, ndr, nvlink, "
                  "NAME:alpha=5us,beta=12.5GBps, or the file of gradtool probe; two levels: 100gbe:node=8,inner=nvlink")
      ->required()
      ->type_name("NETWORK");
  app->add_option("--nodes", o->nodes, "Machines in it [the replayed ranks]");
  add_carriers(*app, o->library, o->codec_speed);
  app->add_option(
      "--compute-ms", o->compute,
      "Judge whole iterations: milliseconds of forward, backward and update on one rank; captured: the time that the "
      "file states; trace.json: as in bench; none: gradients alone [the file's time, where it states one]");
  app->add_option("--overlap", o->overlap,
                  "In iterations: bucket (a unit is sent as soon as the backward pass has it) or none [bucket]")
      ->check(CLI::IsMember({"none", "bucket"}));
  app->add_option("--granularity", o->granularity,
                  "What is reduced in one piece: bucket:25MB (filled as PyTorch DDP does), tensor or model")
      ->capture_default_str();
  app->add_option(
         "--reduce", o->scheme,
         "Collective for the codecs: auto (of gather and alltoall the better one), sum, gather, hop or alltoall")
      ->check(CLI::IsMember({"auto", "sum", "gather", "hop", "alltoall"}))
      ->capture_default_str();
  add_baseline_dtype(*app, o->baseline_dtype);
  app->add_option("--ranks", b.ranks, "Ranks to replay [the file's workers]")->check(CLI::Range(1, 65536));
  app->add_option("-t,--threads", b.threads, "Threads of each rank [the machine's cores over its ranks]")
      ->check(CLI::Range(1, 1024));
  app->add_option("--device", b.device, "cpu, cuda or cuda:INDEX")->capture_default_str();
  app->add_option("--layers", o->layers, "Only tensors whose name matches this regular expression");
  app->add_option("--seed", o->seed, "Of the codecs' random draws, 0 to 2^64 - 1")->capture_default_str();
  app->add_option("--csv", o->csv, "Write the finalists' rows, as bench writes them; - for standard output")
      ->type_name("FILE");
  app->add_option(
         "-o,--json", o->json,
         "Write the record: that of the finalists' bench, and every trial of the search; - for standard output")
      ->type_name("FILE");
  app->add_flag("--markdown", o->markdown, "Print Markdown, for a pull request");
  set_groups(
      *app,
      {{"Search", {"--codec", "--max-nmse", "--trained", "--budget"}},
       {"Modelled network", {"--network", "--nodes", "--library", "--codec-speed", "--compute-ms", "--overlap"}},
       {"Replay",
        {"--granularity", "--reduce", "--baseline-dtype", "--ranks", "--threads", "--device", "--layers", "--seed"}},
       {"Output", {"--csv", "--json", "--markdown"}}});
  app->footer(
      "Which parameters are searched, and between which values: gradtool list CODEC.\n"
      "Examples:\n"
      "  gradtool tune capture.h5 --network 10gbe --nodes 32 --max-nmse 0.05\n"
      "  gradtool tune capture.h5 --network 1gbe --codec topk,qsgd --budget 20 -o tune.json");
  return {app, [o] { return run(*o); }};
}

}  // namespace gradtool::app
