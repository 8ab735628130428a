// The three subcommands of gradtool_netsim.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/core/files.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/csv.hpp"
#include "netsim/command_line.hpp"
#include "netsim/iterations.hpp"
#include "netsim/queue_check.hpp"
#include "netsim/replay.hpp"

namespace gradtool::netsim {
namespace {

void group(CLI::App& app, const char* heading, const std::vector<const char*>& names) {
  for (const char* name : names) app.get_option(name)->group(heading);
}

std::vector<Column> setting_columns() {
  return {{"transport", "dlcp, dctcp, tcp, pfabric"},
          {"routing", "ecmp, spray"},
          {"hosts", "of the fabric"},
          {"background", "load of other traffic"},
          {"seed", "of paths and other traffic"}};
}

std::vector<Cell> setting_cells(const Setting& setting) {
  return {std::string{name_of(setting.protocol)}, std::string{name_of(setting.routing)},
          std::int64_t{setting.fabric.leaves} * setting.fabric.hosts_per_leaf, setting.background,
          std::to_string(setting.seed)};
}

std::vector<Column> count_columns() {
  return {
      {"port_packets", "packets that came to a port"}, {"dropped", "of them dropped"}, {"marked", "of them marked"}};
}

void append_counts(std::vector<Cell>& row, const Fabric::Counts& counts) {
  for (const std::uint64_t count : {counts.packets, counts.dropped, counts.marked})
    row.emplace_back(static_cast<std::int64_t>(count));
}

void progress(const std::string& line) {
  fmt::print(stderr, "{}\n", line);
}

struct Iterating {
  SettingOptions setting;
  std::string capture, granularity = "tensor", csv, iterations_csv;
  std::vector<std::string> patterns{"ps", "ring"};
  double scale = 1.0, compute_us = 0.0;
  std::size_t step = 0;
  int workers = 0;
  IterationOptions options;
};

Pattern parse_pattern(const std::string& text) {
  for (const Pattern pattern : {Pattern::server, Pattern::ring}) {
    if (text == name_of(pattern)) return pattern;
  }
  throw_error(Fault::usage, "--pattern '{}' is not valid; there are ps and ring", text);
}

/// Throws Fault::usage unless the fabric has hosts for all.
IterationOptions checked_iteration(const Iterating& o, Pattern pattern, const FabricOptions& fabric) {
  const int hosts = fabric.leaves * fabric.hosts_per_leaf;
  IterationOptions options = o.options;
  options.pattern = pattern;
  options.compute = o.compute_us / kMicro;
  const int servers = pattern == Pattern::server ? options.servers : 0;
  options.workers = o.workers > 0 ? o.workers : hosts - servers;
  if (options.workers + servers > hosts || options.workers < (pattern == Pattern::server ? 1 : 2)) {
    throw_error(Fault::usage, "{} workers and {} servers do not fit on {} hosts; {} needs at least {} workers",
                options.workers, servers, hosts, name_of(pattern), pattern == Pattern::server ? 1 : 2);
  }
  return options;
}

int run_iterating(const Iterating& o) {
  const std::vector<Setting> settings = checked_settings(o.setting);
  const auto share = [](double value, const char* option) {
    if (!(value >= 0.0 && value <= 1.0))
      throw_error(Fault::usage, "{} {} is not valid; write a share from 0 to 1", option, value);
  };
  share(o.options.bound, "--bound");
  share(o.options.pull_bound, "--pull-bound");
  if (!(o.scale > 0.0 && o.scale <= 1e6))
    throw_error(Fault::usage, "--scale {} is not valid; write a factor above 0, 1e6 at most", o.scale);
  if (!(o.compute_us >= 0.0 && o.compute_us <= 1e7))
    throw_error(Fault::usage, "--compute-us {} is not valid; write 0 to 1e7", o.compute_us);
  std::vector<IterationOptions> patterns;
  patterns.reserve(o.patterns.size());
  for (const auto& name : o.patterns)
    patterns.push_back(checked_iteration(o, parse_pattern(name), settings.front().fabric));
  const Granularity granularity = Granularity::parse(o.granularity);
  expect_separate_files(std::vector<NamedPath>{{"CAPTURE", o.capture}},
                        std::vector<NamedPath>{{"--csv", o.csv}, {"--iterations-csv", o.iterations_csv}});
  for (const auto& path : {o.csv, o.iterations_csv}) {
    if (!path.empty()) expect_writable(path);
  }
  const GradientReader reader{o.capture};
  const Workload work = read_workload(
      reader,
      {.granularity = granularity, .scale = o.scale, .step = o.step, .payload = settings.front().fabric.payload});

  std::vector<Column> columns{{"pattern", "ps: parameter server; ring: all-reduce"}};
  for (const auto& column : setting_columns()) columns.push_back(column);
  std::vector<Column> iteration_columns = columns;
  for (const auto& column : Completions::columns()) columns.push_back(column);
  Table completions{"completions", columns};
  const std::vector<Column> own{{"workers", "that compute"},
                                {"model_bytes", "of a worker's gradient"},
                                {"bound", "share of a unit's contribution that may stay lost, of the asked ones"},
                                {"compute_us", "forward and backward pass"},
                                {"iterations", "simulated"},
                                {"iteration_us_mean", "from the end of one iteration to that of the next, mean"},
                                {"iteration_us_min", "shortest"},
                                {"iteration_us_max", "longest"},
                                {"least_us", "that the busiest link needs for what must arrive"},
                                {"delivered_min", "smallest delivered share of a message"}};
  iteration_columns.insert(iteration_columns.end(), own.begin(), own.end());
  for (const auto& column : count_columns()) iteration_columns.push_back(column);
  Table iterations{"iterations", iteration_columns};

  for (const auto& options : patterns) {
    for (const auto& setting : settings) {
      stop_if_interrupted();
      std::vector<Cell> before{std::string{name_of(options.pattern)}};
      for (auto& cell : setting_cells(setting)) before.push_back(std::move(cell));
      progress(fmt::format("{} over {}, {} workers, {} bytes each, background {}", name_of(options.pattern),
                           name_of(setting.protocol), options.workers, work.bytes, setting.background));
      const IterationResult result = run_iterations(setting, work, options, completions, before);
      const auto [least, most] = std::minmax_element(result.seconds.begin(), result.seconds.end());
      std::vector<Cell> row = before;
      row.insert(row.end(), {std::int64_t{options.workers}, static_cast<std::int64_t>(work.bytes),
                             setting.protocol == Protocol::dlcp ? options.bound : 0.0, o.compute_us,
                             std::int64_t{options.iterations}, kMicro * mean(result.seconds), kMicro * *least,
                             kMicro * *most, kMicro * result.least_seconds, result.least_delivered});
      append_counts(row, result.counts);
      iterations.add(std::move(row));
    }
  }
  write_table(o.csv, completions,
              {"pattern", "transport", "direction", "class", "messages", "mean_us", "p50_us", "p99_us", "delivered"});
  write_table(o.iterations_csv, iterations,
              {"pattern", "transport", "workers", "iteration_us_mean", "least_us", "delivered_min", "dropped"});
  return 0;
}

struct Replaying {
  SettingOptions setting;
  std::vector<std::string> folders;
  ReplayOptions options;
  std::string csv;
  std::optional<std::string> network;
};

int run_replaying(const Replaying& o) {
  const std::vector<Setting> settings = checked_settings(o.setting);
  if (!(o.options.scale > 0.0 && o.options.scale <= 1e6))
    throw_error(Fault::usage, "--scale {} is not valid; write a factor above 0, 1e6 at most", o.options.scale);
  std::optional<Network> given;
  if (o.network) given = Network::from_option(*o.network);
  if (given && given->node > 1)
    throw_error(Fault::usage, "--network '{}': hosts of the fabric have one rank each; leave node out", *o.network);
  if (!o.csv.empty()) expect_writable(o.csv);
  std::vector<PayloadLog> logs;
  logs.reserve(o.folders.size());
  for (const auto& folder : o.folders) logs.push_back(read_payload_log(folder));

  std::vector<Column> columns{{"codec", "as the log names it"}, {"params", "its parameters"}, {"ranks", "of the log"}};
  for (const auto& column : setting_columns()) columns.push_back(column);
  const std::vector<Column> own{{"scale", "times more bytes than were recorded"},
                                {"steps", "replayed"},
                                {"wire_bytes", "that one rank sends in a step, mean"},
                                {"step_us_mean", "simulated time of a step's collectives: mean"},
                                {"step_us_p50", "median"},
                                {"step_us_p99", "99th percentile, nearest rank"},
                                {"step_us_max", "longest"},
                                {"model_us", "the same by the alpha-beta model, mean"},
                                {"ratio", "simulated mean over modelled"},
                                {"alpha_us", "that the model was told"},
                                {"beta_gbit_s", "that the model was told"}};
  columns.insert(columns.end(), own.begin(), own.end());
  for (const auto& column : count_columns()) columns.push_back(column);
  Table table{"contention", columns};
  for (const auto& setting : settings) {
    const Network network = given ? *given : probe_fabric(setting);
    for (const auto& log : logs) {
      stop_if_interrupted();
      progress(fmt::format("{} over {}, {} ranks, background {}", log.codec, name_of(setting.protocol), log.ranks,
                           setting.background));
      const ReplayResult result = replay(setting, log, o.options, network);
      std::vector<double> sorted = result.seconds;
      std::sort(sorted.begin(), sorted.end());
      const double modelled = mean(result.modelled);
      std::vector<Cell> row{log.codec, log.params, std::int64_t{log.ranks}};
      for (auto& cell : setting_cells(setting)) row.push_back(std::move(cell));
      row.insert(row.end(),
                 {o.options.scale, static_cast<std::int64_t>(sorted.size()), result.wire_bytes, kMicro * mean(sorted),
                  kMicro * percentile(sorted, 0.5), kMicro * percentile(sorted, 0.99), kMicro * sorted.back(),
                  kMicro * modelled, modelled > 0.0 ? Cell{mean(sorted) / modelled} : Cell{},
                  kMicro * network.link.alpha, 8e-9 * network.link.beta});
      append_counts(row, result.counts);
      table.add(std::move(row));
    }
  }
  write_table(o.csv, table,
              {"codec", "transport", "background", "wire_bytes", "step_us_mean", "step_us_p99", "model_us", "ratio"});
  return 0;
}

struct Queueing {
  SettingOptions setting;
  std::vector<double> loads{0.5};
  std::uint64_t packets = 1'000'000;
  std::string csv;
};

int run_queueing(const Queueing& o) {
  const FabricOptions fabric = checked_fabric(o.setting);
  const std::uint64_t seed = checked_seed(o.setting.seed);
  for (const double load : o.loads) {
    if (!(load > 0.0 && load <= 0.95))
      throw_error(Fault::usage, "--load {} is not valid; write a share above 0, 0.95 at most", load);
  }
  if (!o.csv.empty()) expect_writable(o.csv);
  Table table{"queue",
              {{"load", "share of the link's rate"},
               {"seed", "of arrivals"},
               {"packets", "counted"},
               {"wait_us_mean", "between arrival and transmission"},
               {"wait_us_half_width", "of its 95 % interval"},
               {"theory_us", "load / (2 (1 - load)) transmissions (M/D/1)"},
               {"ratio", "simulated over theory"}}};
  for (const double load : o.loads) {
    stop_if_interrupted();
    const QueueCheck check = check_queue(fabric, load, o.packets, seed);
    table.add({load, o.setting.seed, static_cast<std::int64_t>(check.packets), kMicro * check.wait,
               kMicro * check.half_width, kMicro * check.theory, check.wait / check.theory});
  }
  write_table(o.csv, table, {"load", "packets", "wait_us_mean", "wait_us_half_width", "theory_us", "ratio"});
  return 0;
}

}  // namespace

Command add_iterations(CLI::App& root) {
  auto* app = root.add_subcommand("iterations", "Iterations of training a captured model on a fabric");
  auto o = std::make_shared<Iterating>();
  app->add_option("capture", o->capture, "Gradient file: its tensors' sizes and magnitudes are the work")
      ->required()
      ->type_name("CAPTURE.h5");
  app->add_option("--pattern", o->patterns, "ps (parameter server), ring; repeatable, commas between")
      ->delimiter(',')
      ->type_name("NAME")
      ->capture_default_str();
  app->add_option("--workers", o->workers, "Hosts that compute [all but the servers]")->check(CLI::Range(1, 4096));
  app->add_option("--servers", o->options.servers, "Parameter servers, over which tensors are spread")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--iterations", o->options.iterations, "To simulate")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--compute-us", o->compute_us, "Forward and backward pass, microseconds")->capture_default_str();
  app->add_option("--granularity", o->granularity, "What is sent in one piece: tensor, bucket:SIZE, model")
      ->capture_default_str();
  app->add_option("--scale", o->scale, "Times more bytes than captured")->capture_default_str();
  app->add_option("--step", o->step, "Captured step that decides which packets are important")->capture_default_str();
  app->add_option("--bound", o->options.bound,
                  "dlcp: share of a unit's contribution that may stay lost; a ring's hops share it")
      ->capture_default_str();
  app->add_option("--pull-bound", o->options.pull_bound, "dlcp: the same of what a server sends")
      ->capture_default_str();
  add_fabric_options(*app, o->setting);
  add_transport_options(*app, o->setting);
  app->add_option("--csv", o->csv, "Write completion times; - for standard output")->type_name("FILE");
  app->add_option("--iterations-csv", o->iterations_csv, "Write iteration times; - for standard output")
      ->type_name("FILE");
  group(*app, "Work",
        {"--pattern", "--workers", "--servers", "--iterations", "--compute-us", "--granularity", "--scale", "--step",
         "--bound", "--pull-bound"});
  group(*app, "Fabric", fabric_option_names());
  group(*app, "Transport", transport_option_names());
  group(*app, "Output", {"--csv", "--iterations-csv"});
  app->footer("Example:\n  gradtool_netsim iterations capture.h5 --scale 4 --csv completions.csv");
  return {app, [o] { return run_iterating(*o); }};
}

Command add_replay(CLI::App& root) {
  auto* app = root.add_subcommand("replay", "Collectives that bench --payloads recorded, beside other traffic");
  auto o = std::make_shared<Replaying>();
  o->setting.transports = {"dctcp"};
  app->add_option("folders", o->folders, "Folders of gradtool bench --payloads, one for each codec")
      ->required()
      ->type_name("FOLDER");
  app->add_option("--scale", o->options.scale, "Times more bytes than recorded")->capture_default_str();
  app->add_option("--steps", o->options.steps, "Recorded steps to replay [all]");
  app->add_option(
      "--network", o->network,
      "What the alpha-beta model is told, as for bench [alpha and beta between two hosts of the idle fabric]");
  add_fabric_options(*app, o->setting);
  add_transport_options(*app, o->setting);
  app->add_option("--csv", o->csv, "Write step times; - for standard output")->type_name("FILE");
  group(*app, "Work", {"--scale", "--steps", "--network"});
  group(*app, "Fabric", fabric_option_names());
  group(*app, "Transport", transport_option_names());
  group(*app, "Output", {"--csv"});
  app->footer(
      "Example:\n  gradtool bench capture.h5 --codec topk:ratio=0.01 --payloads topk/\n"
      "  gradtool_netsim replay topk/ --background 0,0.3,0.6 --csv contention.csv");
  return {app, [o] { return run_replaying(*o); }};
}

Command add_queue(CLI::App& root) {
  auto* app = root.add_subcommand("queue", "Waiting times of one link beside queueing theory (M/D/1)");
  auto o = std::make_shared<Queueing>();
  app->add_option("--load", o->loads, "Share of the link's rate, above 0; repeatable, commas between")
      ->delimiter(',')
      ->type_name("LOAD")
      ->capture_default_str();
  app->add_option("--packets", o->packets, "To send")
      ->check(CLI::Range(std::uint64_t{1000}, std::uint64_t{100'000'000}))
      ->capture_default_str();
  app->add_option("--seed", o->setting.seed, "Of arrivals")->capture_default_str();
  add_fabric_options(*app, o->setting);
  app->add_option("--csv", o->csv, "Write the waiting times; - for standard output")->type_name("FILE");
  group(*app, "Work", {"--load", "--packets", "--seed"});
  group(*app, "Fabric", fabric_option_names());
  group(*app, "Output", {"--csv"});
  return {app, [o] { return run_queueing(*o); }};
}

}  // namespace gradtool::netsim
