#include "lib/bench/bench.hpp"
#include "lib/advice/record.hpp"
#include "lib/advice/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/advice/advice.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/gate.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/bench/synthetic.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/files.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/io/usable_steps.hpp"
#include "lib/report/color.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"
#include "lib/report/outputs.hpp"

namespace gradtool::app {
namespace {

struct BenchArguments {
  BenchOptions bench;
  std::vector<std::string> codecs;
  std::vector<std::string> granularities;
  std::string synthetic, min_bytes, max_bytes, step_factor, step_bytes;
  std::string op = "all-reduce";
  std::string levels, inner;
  std::string values = "auto";
  std::string scheme = "auto";
  std::string timing = "both";
  std::string comm, csv, json, steps_csv;
  std::vector<std::string> networks, received;
  std::vector<std::uint64_t> received_bytes;
  std::optional<std::string> nodes, layers, library, codec_speed;
  std::optional<std::string> compute;
  std::string overlap, update_error;
  std::string seed = "1";
  std::optional<std::string> seeds, steps;
  std::string pipeline = "off";
  std::string all_reduce = "ring";
  bool advise = false, markdown = false;
  std::string baseline, baseline_dtype = "captured";
  int cycles = 1;
  std::optional<double> max_nmse;
  std::vector<std::string> trained;
  std::optional<int> gpus;
};

/// "node=8" as 8; 1 for nothing.
int parse_levels(const std::string& text) {
  if (text.empty()) return 1;
  const int node = text.starts_with("node=") ? number_of<int>(std::string_view{text}.substr(5)).value_or(0) : 0;
  if (node < 2 || node > 65536) {
    throw_error(Fault::usage, "--levels '{}' is not valid; write the ranks of a machine, 2 at least, as node=8", text);
  }
  return node;
}

int parse_pipeline(const std::string& text) {
  constexpr int kMost = 64;
  const int chunks = text == "off" ? 1 : number_of<int>(text).value_or(0);
  if (chunks < 1 || chunks > kMost) {
    throw_error(Fault::usage, "--pipeline '{}' is not valid; write off, or a number of chunks from 1 to {}", text,
                kMost);
  }
  return chunks;
}

UpdateRule parse_update_rule(const std::string& text, const std::string& file) {
  if (text != "file") {
    const std::regex valid{R"(adamw?(:|$)((beta1|beta2|epsilon)=[^,]+(,|$))*|sgd:((momentum|nesterov)=[^,]+(,|$))+)"};
    const auto rule = std::regex_match(text, valid) ? UpdateRule::parse(text) : std::nullopt;
    if (rule) return *rule;
    throw_error(Fault::usage,
                "--update-error '{}' is not valid; write file, adam:beta1=0.9,beta2=0.999 or "
                "sgd:momentum=0.9,nesterov=1, with momentum and betas below 1",
                text);
  }
  if (file.empty()) {
    throw Error{
        Fault::usage,
        "--update-error file asks for what a capture records, and there is none: write adam or sgd:momentum=0.9"};
  }
  const FileInfo info = GradientReader{file}.info();
  const std::string& recorded = info.optimizer;
  if (info.quantity != "gradient" && recorded.find("diloco") == std::string::npos) {
    throw_error(Fault::usage,
                "{} holds {}s, and the optimizer that it records, '{}', is the one that made them: write "
                "the rule of the outer optimizer, --update-error sgd:momentum=0.9,nesterov=1",
                file, info.quantity, recorded);
  }
  if (const auto rule = UpdateRule::parse(recorded)) return *rule;
  throw_error(Fault::usage,
              "{} records '{}' as its optimizer, which is neither Adam nor SGD with its "
              "momentum: write --update-error adam or --update-error sgd:momentum=0.9",
              file, recorded);
}

/// Checks that --comm and --gpus fit the processes that were started; also sets the ranks that --gpus stands for.
void check_place(BenchArguments& o) {
  const int processes = mpi_place().size;
  BenchOptions& bench = o.bench;
  if (processes > 1 && (bench.comm == "threads" || bench.comm == "loopback")) {
    throw_error(Fault::usage, "started as {} processes: add --comm {}", processes,
                bench.comm == "threads" ? "mpi or udp" : "nccl");
  }
  if (!o.gpus) return;
  if (bench.comm != "nccl") throw Error{Fault::usage, "--gpus is the ranks of --comm nccl: add that"};
  if (processes > 1) {
    if (*o.gpus == 1) return;
    throw_error(Fault::usage, "--gpus {}, but each of the {} processes of mpirun has one GPU; leave it out", *o.gpus,
                processes);
  }
  if (bench.ranks > 0 && bench.ranks != *o.gpus)
    throw_error(Fault::usage, "--gpus {} and --ranks {}: each GPU is one rank; give one of them", *o.gpus, bench.ranks);
  bench.ranks = *o.gpus;
}

/// Adds the outputs of --payloads that matter to `others`: the ranks are known only once the capture is open.
void add_payload_files(const std::string& folder, std::vector<NamedPath>& outputs, std::span<const NamedPath> others) {
  if (folder.empty()) return;
  namespace fs = std::filesystem;
  const auto add = [&](const std::string& name) {
    if (matches("^rank[0-9]+\\.(bin|csv)$", name))
      outputs.push_back({"--payloads", (fs::path{folder} / name).string()});
  };
  outputs.push_back({"--payloads", folder});
  for (const auto& other : others) add(fs::path{follow_links(other.path)}.filename().string());
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator{folder, no_folder}) add(entry.path().filename().string());
}

/// The sizes of --synthetic, or of the options that nccl-tests has for them; empty where a capture is replayed.
std::vector<std::uint64_t> chosen_sizes(const BenchArguments& o) {
  const bool as_nccl_tests =
      !(o.min_bytes.empty() && o.max_bytes.empty() && o.step_factor.empty() && o.step_bytes.empty());
  if (o.synthetic.empty() && !as_nccl_tests) {
    if (o.bench.file.empty()) {
      throw Error{Fault::usage,
                  "give a gradient file, from gradtool capture or any other producer, or --synthetic for sizes without "
                  "one, such as 1MB:64MB:x4"};
    }
    return {};
  }
  if (!o.bench.file.empty()) throw_error(Fault::usage, "{} and synthetic sizes: give one of them", o.bench.file);
  if (o.max_nmse) {
    throw Error{Fault::usage,
                "--max-nmse needs a capture: what errors a codec makes of your gradients, synthetic ones do not tell"};
  }
  if (!o.synthetic.empty()) {
    if (as_nccl_tests)
      throw Error{Fault::usage, "--synthetic has the sizes that -b, -e, -f and -i give: leave those out"};
    return parse_sizes(o.synthetic);
  }
  if (!o.step_factor.empty() && !o.step_bytes.empty())
    throw Error{Fault::usage, "-f grows by a factor and -i by steps: give one of them"};
  const std::string first = o.min_bytes.empty() ? "32M" : o.min_bytes;
  std::string sweep = first + ":" + (o.max_bytes.empty() ? first : o.max_bytes);
  if (!o.step_factor.empty()) sweep += ":x" + o.step_factor;
  if (!o.step_bytes.empty()) sweep += ":+" + o.step_bytes;
  return parse_sizes(sweep);
}

void check_paths(const BenchArguments& o) {
  if (o.markdown && (o.csv == "-" || o.json == "-" || o.steps_csv == "-")) {
    throw Error{Fault::usage, "--markdown goes to standard output, where other data is to go too; give that a file"};
  }
  std::vector<NamedPath> inputs;
  if (!o.bench.file.empty()) inputs.push_back({"file", o.bench.file});
  for (const auto& path : o.received) inputs.push_back({"--received", path});
  for (const auto& text : o.networks) inputs.push_back({"--network", network_file(text)});
  for (const auto& trained : o.trained) inputs.push_back({"--trained", trained});
  if (o.codec_speed) inputs.push_back({"--codec-speed", codec_speed_file(*o.codec_speed)});
  for (const auto& trace : trace_files(o.compute.value_or(""))) inputs.push_back({"--compute-ms", trace});
  std::vector<NamedPath> outputs{
      {"--csv", o.csv}, {"--json", o.json}, {"--steps-csv", o.steps_csv}, {"--reconstruction", o.bench.reconstruction}};
  std::vector<NamedPath> others = outputs;
  others.insert(others.end(), inputs.begin(), inputs.end());
  add_payload_files(o.bench.payloads, outputs, others);
  expect_separate_files(inputs, outputs);
  if (!o.bench.file.empty()) expect_outputs_spare_sources(sources_of_view(o.bench.file), outputs);
}

/// --received, each with the --received-bytes in its place.
std::vector<ReceivedFile> received_files(const BenchArguments& o) {
  const auto& bytes = o.received_bytes;
  if (!bytes.empty() && bytes.size() != o.received.size()) {
    throw_error(Fault::usage, "{} --received and {} --received-bytes: give one of these for each file",
                o.received.size(), bytes.size());
  }
  std::vector<ReceivedFile> files;
  for (std::size_t i = 0; i < o.received.size(); ++i)
    files.push_back({o.received[i], bytes.empty() ? std::nullopt : std::optional{bytes[i]}});
  return files;
}

int run_against_baseline(const BenchArguments& o) {
  if (!(o.csv.empty() && o.steps_csv.empty() && o.bench.payloads.empty() && o.bench.reconstruction.empty()) ||
      o.advise) {
    throw Error{Fault::usage,
                "--baseline writes how two programs compare, to --json: leave out --csv, --steps-csv, --payloads, "
                "--reconstruction and --advise"};
  }
  if (mpi_place().size > 1)
    throw Error{Fault::usage, "--baseline starts programs of its own: leave mpirun out, and use --comm threads"};
  const std::vector<NamedPath> program{{"--baseline", o.baseline}};
  expect_separate_files(program, std::vector<NamedPath>{{"--json", o.json}});
  return bench_against(o.baseline, o.cycles, o.json, o.markdown);
}

int run(BenchArguments& o) {
  BenchOptions& bench = o.bench;
  bench.sizes = chosen_sizes(o);
  bench.codecs = parse_codecs(o.codecs, bench.all_codecs);  // which may have files of their own
  check_paths(o);
  bench.received = received_files(o);
  bench.granularities.clear();
  for (const auto& text : o.granularities) {
    Granularity granularity = Granularity::parse(text);
    const auto same = [&](const Granularity& other) { return other.text() == granularity.text(); };
    if (std::none_of(bench.granularities.begin(), bench.granularities.end(), same))
      bench.granularities.push_back(std::move(granularity));
  }
  const ProcessComm comm = parse_comm(!o.comm.empty() ? o.comm : bench.device == "cpu" ? "threads" : "loopback");
  bench.comm = comm.name;
  bench.udp = comm.udp;
  check_place(o);
  if (!o.baseline.empty()) return run_against_baseline(o);
  bench.op = named<Collective>(o.op).value();
  bench.values = named<ReplayedValues>(o.values).value();
  bench.baseline = parse_baseline_dtype(o.baseline_dtype);
  bench.node = parse_levels(o.levels);
  if (!o.inner.empty()) bench.inner = parse_codec(o.inner);
  bench.scheme = named<Scheme>(o.scheme).value();
  bench.isolated = o.timing != "concurrent";
  bench.concurrent = o.timing != "isolated";
  if (!(bench.stop.timeout_seconds >= 0.0 && std::isfinite(bench.stop.timeout_seconds)))
    throw_error(Fault::usage, "--timeout {} is not valid; write seconds", bench.stop.timeout_seconds);
  if (!(bench.comm_timeout >= 0.1 && bench.comm_timeout <= 1e6))
    throw_error(Fault::usage, "--comm-timeout {} is not valid; write seconds, 0.1 to 1000000", bench.comm_timeout);
  if (bench.iterations > 0) {
    bench.stop.min_samples = bench.iterations;
    bench.stop.max_noise = 1e150;
    bench.rounds = std::min<std::size_t>(bench.rounds, bench.iterations);
    bench.stop.timeout_seconds = 1e9;
  }
  bench.networks = parse_networks(o.networks);
  if (o.max_nmse && !(*o.max_nmse >= 0.0 && std::isfinite(*o.max_nmse)))
    throw_error(Fault::usage, "--max-nmse {} is not valid; an error is 0 or more", *o.max_nmse);
  bench.seed = parse_seed(o.seed);
  if (o.seeds) {
    if (o.csv.empty() && o.json.empty() && o.steps_csv.empty()) {
      throw Error{Fault::usage,
                  "--seeds makes rows for each seed, of which the terminal shows the first one's: give --csv, --json "
                  "or --steps-csv"};
    }
    bench.more_seeds = parse_seeds(*o.seeds);
    bench.seed = bench.more_seeds.front();
    bench.more_seeds.erase(bench.more_seeds.begin());
  }
  if (!o.update_error.empty()) bench.update_rule = parse_update_rule(o.update_error, bench.file);
  bench.pipeline = parse_pipeline(o.pipeline);
  bench.all_reduce = named<AllReduce>(o.all_reduce).value();
  for (const auto& path : {o.csv, o.json, o.steps_csv}) {
    if (!path.empty()) expect_writable(path);  // now, not after minutes of measuring
  }
  if (o.layers && o.layers->empty()) {
    throw Error{Fault::usage, "--layers '' is not valid; write a regular expression, or leave it out for all tensors"};
  }
  bench.layers = o.layers.value_or("");
  if (o.steps) bench.only_iterations = parse_iterations(*o.steps);
  bench.tensor_steps = bench.per_tensor && !o.steps_csv.empty();
  if (o.nodes) bench.nodes = parse_node_counts(*o.nodes);
  set_iteration(o.compute, o.overlap, bench);
  set_carriers(o.library, o.codec_speed, bench);
  if (o.networks.empty() &&
      (o.nodes || o.advise || o.max_nmse || o.compute || !o.overlap.empty() || o.library || o.codec_speed)) {
    throw Error{Fault::usage,
                "--nodes, --library, --codec-speed, --advise, --max-nmse, --compute-ms and --overlap are about a "
                "modelled network: give --network, such as 10gbe"};
  }
  if (o.max_nmse && !o.advise)
    throw Error{Fault::usage, "--max-nmse is the largest error that --advise accepts: add it"};
  if (!o.trained.empty() && (!o.advise || bench.file.empty()))
    throw Error{Fault::usage, "--trained is about the advice for a capture: give a file and --advise"};
  const Acceptance acceptable = parse_acceptance(o.max_nmse, o.trained);
  if (acceptable.trials) acceptable.trials->expect_same_model(bench.file, GradientReader{bench.file}.elements());
  bench.command = command_line();
  const std::initializer_list<NamedPath> outputs{{"--csv", o.csv}, {"--json", o.json}, {"--steps-csv", o.steps_csv}};
  for (const auto& [option, path] : outputs)
    if (!path.empty()) bench.outputs += " " + option;
  const BenchReport report = run_bench(bench, [&o](std::span<const ResultRow> rows) {
    // A device or a pipe is left out: what was written to it could not be replaced when the next codec is done.
    // What fails here is said at the end, and keeps no codec from being measured.
    if (!is_stream(o.csv)) Outputs{}.csv(o.csv, csv_table(rows));
  });
  if (!report.leads) return 0;
  std::vector<ResultRow> shown;  // of the first seed
  std::copy_if(report.rows.begin(), report.rows.end(), std::back_inserter(shown),
               [&](const ResultRow& row) { return row.seed == bench.seed || row.received(); });
  Outputs saved;
  saved.csv(o.csv, csv_table(report.rows));
  if (!o.json.empty()) {
    auto whole = record(bench, report);
    if (o.advise && bench.sizes.empty()) whole["advice"] = advice_record(shown, acceptable);
    saved.text(o.json, json_text(whole, 1) + "\n");
  }
  if (!o.steps_csv.empty()) saved.csv(o.steps_csv, steps_table(report.rows));
  if (o.advise) expect_times_of_none(bench, report);
  const bool data_on_stdout = o.csv == "-" || o.json == "-" || o.steps_csv == "-";
  if (report.averaged())
    print_warning(fmt::format("{}: {}", bench.file, averaged_warning(report.likeness, report.stated_averaged)));
  if (report.overflowed_steps > 0) print_warning(left_out_warning(bench.file, report.overflowed_steps));
  if (!report.without_speed.empty()) {
    print_warning(
        fmt::format("--codec-speed {} has no times of {}, which are not modelled; bench them there as well, ways that "
                    "are not their own with --network or --reduce",
                    *o.codec_speed, joined(report.without_speed, ", ")));
  }
  std::optional<Acceptance> acceptance;
  if (o.advise) acceptance = acceptable;
  std::FILE* const people = data_on_stdout ? stderr : stdout;
  const Style style = o.markdown ? Style::markdown : color_on(people) ? Style::colored : Style::plain;
  if (o.markdown)
    fmt::print("### Gradient compression of {}\n\n`{}`\n\n", bench.sizes.empty() ? bench.file : "synthetic gradients",
               bench.command);
  AdviceText advice;
  if (acceptance) {
    if (bench.sizes.empty()) advice = advise(shown, *acceptance, style, {&bench, o.max_nmse});
    fmt::print(people, "{}{}", bench.sizes.empty() ? advice.answer : gates_table(shown, style), o.markdown ? "" : "\n");
  }
  if (!data_on_stdout) {
    fmt::print("{}{}", bench.sizes.empty() ? terminal_table(shown, style, acceptance) : sizes_table(shown, style),
               modelled_tables(shown, style));
  }
  if (acceptance) {
    fmt::print(people, "{}", advice.reasons);
  } else if (!data_on_stdout && !o.networks.empty() && bench.sizes.empty()) {
    fmt::print("These are times alone; --advise says with which codec a model still learns.\n");
  }
  std::fflush(stdout);  // so that nothing on stderr lands inside a table
  std::size_t unmeasured = 0;
  for (const ResultRow& row : report.rows) {
    if (row.message == kInterruptedMessage) ++unmeasured;
    if (row.status == ResultRow::Status::ok || row.message == kInterruptedMessage) continue;
    const Ink ink = row.status == ResultRow::Status::failed ? Ink::error : Ink::warning;
    fmt::print(stderr, "{} {}: {}: {}\n", row.codec.name(), row.tensor,
               inked(name_of(row.status), ink, color_on(stderr)), row.message);
  }
  std::vector<std::string> wrote = saved.written();
  wrote.insert(wrote.end(), report.written.begin(), report.written.end());
  for (const auto& path : wrote) fmt::print(stderr, "wrote {}\n", printable(path));
  saved.finish();
  if (o.csv.empty() && o.json.empty() && o.steps_csv.empty())
    fmt::print(stderr, "nothing written: --csv FILE and --json FILE keep all columns\n");
  if (report.interrupted) {
    fmt::print(stderr, "interrupted: {}\n",
               unmeasured == 0
                   ? std::string{"every row was measured, but some have fewer samples than were asked for"}
                   : fmt::format("{} rows have no measurement; CSV and JSON mark them as skipped", unmeasured));
    return kInterrupted;
  }
  if (!report.left_out.empty()) {
    fmt::print(stderr, "{}\n", report.left_out);
    if (!report.failed) return static_cast<int>(Fault::backend);
  }
  return report.failed ? static_cast<int>(Fault::check) : 0;
}

}  // namespace

Subcommand add_bench(CLI::App& root) {
  auto* app = root.add_subcommand("bench", "Replay a capture through codecs and a real all-reduce");
  auto o = std::make_shared<BenchArguments>();
  BenchOptions& b = o->bench;
  app->add_option("file", b.file, "Gradient file, from gradtool capture or any other producer")->type_name("FILE");
  app->add_option("--synthetic", o->synthetic,
                  "Instead of a file: made-up gradients of one size, 16MB, or of a sweep, 1MB:64MB:x4 or "
                  "1MB:10MB:+1MB; 4 ranks unless --ranks says otherwise");
  app->add_option("-b,--minbytes", o->min_bytes, "The same as nccl-tests have it: the first size, such as 1M [32M]");
  app->add_option("-e,--maxbytes", o->max_bytes, "The last size [the first]");
  app->add_option("-f,--stepfactor", o->step_factor, "Factor between sizes [4]");
  app->add_option("-i,--stepbytes", o->step_bytes, "Or the difference between them");
  app->add_option("--codec", o->codecs,
                  "name:key=value,...; repeatable, or several with commas; 'all' for every codec (gradtool list "
                  "codecs); topk:ratio=[0.001,0.01] for each of these values; python:mine.py for a class of your own")
      ->default_val(std::vector<std::string>{"all"})
      ->take_all()
      ->expected(1);
  app->add_option("--received", o->received,
                  "Also rows for a method in another program: a gradient file with the mean that it brought to every "
                  "rank, in the capture's tensors and steps, as one worker; repeatable; they have errors and no times")
      ->type_name("FILE")
      ->take_all()
      ->expected(1);
  app->add_option("--received-bytes", o->received_bytes,
                  "Bytes that a rank of that method puts into a step, on average; once for each --received")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 53))
      ->take_all()
      ->expected(1);
  app->add_option("--granularity", o->granularities,
                  "What is reduced in one piece: bucket:25MB (filled as PyTorch DDP does), tensor or model; "
                  "repeatable, to compare them")
      ->default_val(std::vector<std::string>{"bucket:25MB"})
      ->take_all()
      ->expected(1);
  app->add_option("--op", o->op,
                  "Collective that is carried out on every unit: all-reduce, reduce-scatter and all-gather (of shards, "
                  "as FSDP and ZeRO do) or all-to-all (each rank's part for each other one, as experts do)")
      ->check(CLI::IsMember({"all-reduce", "reduce-scatter", "all-gather", "all-to-all"}))
      ->capture_default_str();
  app->add_option(
         "--values", o->values,
         "What of the capture is replayed: own (what it captured), weight or weight-difference (the weights beside the "
         "gradients, or how they changed); auto: with --op all-gather weight where there are any, else own")
      ->check(CLI::IsMember({"auto", "own", "weight", "weight-difference"}))
      ->capture_default_str();
  add_baseline_dtype(*app, o->baseline_dtype);
  add_reduce_options(*app, o->scheme, o->all_reduce);
  app->add_option("--levels", o->levels,
                  "node=8: all-reduce in two levels, among the 8 ranks of a machine and between machines, where "
                  "--codec works; consecutive ranks are one machine");
  app->add_option("--codec-inner", o->inner, "With --levels: the codec inside machines [none]");
  app->add_option("--comm", o->comm,
                  "threads: ranks in this process; mpi: one rank for each process of mpirun; udp: the same over the "
                  "bounded-loss transport, also without mpirun (udp:loss=0.01, docs/transport.md); loopback: ranks "
                  "share a GPU; nccl: a GPU each [threads, with --device cuda loopback]")
      ->check(one_of_comms({"threads", "mpi", "udp", "loopback", "nccl"}));
  app->add_option("--comm-timeout", b.comm_timeout,
                  "Seconds that ranks wait for one of them before the bench ends and names it, 0.1 to 1000000; an MPI "
                  "process that is silent (dead, stopped) ends it after 10 s, whatever this is")
      ->capture_default_str();
  app->add_option("--ranks", b.ranks, "Ranks to replay [the file's workers]")->check(CLI::Range(1, 65536));
  app->add_option("-g,--gpus", o->gpus, "GPUs of this process with --comm nccl, each of them a rank: as --ranks there")
      ->check(CLI::Range(1, 1024));
  app->add_option("-t,--threads", b.threads,
                  "Threads of each rank for encode and decode, fewer for units too small to feed them [the machine's "
                  "cores over its ranks]")
      ->check(CLI::Range(1, 1024));
  app->add_option("--device", b.device, "cpu, cuda or cuda:INDEX")->capture_default_str();
  app->add_option("--pipeline", o->pipeline,
                  "off, or into how many chunks to cut a unit whose encoding, communication and decoding overlap, in "
                  "concurrent rows")
      ->capture_default_str();
  app->add_option("--timing", o->timing, "isolated (one rank encodes at a time), concurrent (all at once) or both")
      ->check(CLI::IsMember({"isolated", "concurrent", "both"}))
      ->capture_default_str();
  app->add_option("-n,--iters", b.iterations, "Exactly so many timed steps, instead of sampling until the noise is low")
      ->check(CLI::Range(1, 1000000000));
  app->add_option("-w,--warmup-iters,--warmup_iters", b.warmup_steps,
                  "Steps before sampling begins; the comparison pass already warms up the first timing")
      ->check(CLI::Range(0, 1000000000))
      ->capture_default_str();
  app->add_option("--min-samples", b.stop.min_samples, "Timed steps at least")
      ->check(CLI::Range(1, 1000000000))
      ->capture_default_str();
  app->add_option("--rounds", b.rounds,
                  "In which every codec is timed once: what changes on the machine meanwhile then shows as noise")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--max-noise", b.stop.max_noise, "Relative deviation of the mean to reach")->capture_default_str();
  app->add_option("--timeout", b.stop.timeout_seconds,
                  "Seconds of sampling for a row at most [20 steps' time, 0.25 to 5 s; 30 s for all rows]");
  for (const char* until : {"--min-samples", "--max-noise", "--timeout"})
    app->get_option(until)->excludes("--iters");  // which ends the sampling by itself
  app->add_option("--seed", o->seed, "Of the codecs' random draws, 0 to 2^64 - 1")->capture_default_str();
  app->add_option("--seeds", o->seeds,
                  "Or several, as 1,2,3: all is benched once for each, in rows that the column seed tells apart")
      ->excludes("--seed");
  app->add_option("-c,--check", b.check, "Compare the result's bits across ranks: 0 or 1")
      ->check(CLI::IsMember({"0", "1", "true", "false"}))
      ->capture_default_str();
  app->add_option("--layers", o->layers, "Only tensors whose name matches this regular expression");
  app->add_option("--steps", o->steps,
                  "FIRST:LAST training iterations, both included: only the steps that were captured there");
  app->add_flag("--per-tensor", b.per_tensor, "Also a row with the errors of each tensor");
  app->add_option("--update-error", o->update_error,
                  "Also compare what the optimizer makes of gradients, in the columns update_nmse and cosine_by_layer: "
                  "file (the optimizer that the capture records), adam, or sgd:momentum=0.9")
      ->type_name("OPTIMIZER");
  app->add_flag("--hot", b.hot, "Leave gradients in the caches between steps");
  app->add_option("--reconstruction", b.reconstruction,
                  "Write what the one --codec produced as a gradient file with one worker");
  app->add_option("--network", o->networks,
                  "Also model this network: wan, 1gbe, 10gbe, 25gbe, 100gbe, 200gbe, 400gbe, ndr, nvlink, "
                  "NAME:alpha=5us,beta=12.5GBps, or the file of gradtool probe; two levels: "
                  "100gbe:node=8,inner=nvlink; repeatable")
      ->take_all()
      ->expected(1);
  app->add_option("--nodes", o->nodes, "Machines in the modelled network: 2,4,8 or 2,4,...,4096 [the measured ranks]");
  add_carriers(*app, o->library, o->codec_speed);
  app->add_option("--compute-ms", o->compute,
                  "Model whole iterations: milliseconds of forward, backward and update on one rank; captured: the "
                  "time that the file states; trace.json: of your own job, from a trace of torch.profiler, or those of "
                  "several ranks with commas; none: gradients alone [the file's time, where it states one]");
  app->add_option(
         "--overlap", o->overlap,
         "In modelled iterations: bucket (a unit is sent as soon as the backward pass has it) or none [bucket]")
      ->check(CLI::IsMember({"none", "bucket"}));
  app->add_flag("--advise", o->advise,
                "Say first which codec to take on each modelled network, if any is worth it; of synthetic sizes, from "
                "which size on each codec pays");
  app->add_option("--max-nmse", o->max_nmse,
                  fmt::format("Largest error that --advise accepts; of codecs with error feedback or a memory it is "
                              "the cumulative_nmse, else the nmse. Given, it is the only limit; else an error of a "
                              "step has a limit of its own (docs/network-model.md) [{}]",
                              kDefaultMaxNmse));
  add_trained(*app, o->trained);
  app->add_option("--payloads", b.payloads,
                  "Folder: write what each rank put into each collective for the one --codec, byte for byte");
  app->add_option("--csv", o->csv, "Write all rows and columns; - for standard output");
  app->add_option("--steps-csv", o->steps_csv,
                  "Write the errors of each captured step, with --per-tensor of each tensor; - for standard output");
  app->add_option("--json", o->json, "Write the full record, every sample included; - for standard output");
  app->add_option("--baseline", o->baseline,
                  "Bench this other gradtool program and this one by turns, and say what differs, as gradtool compare "
                  "does; status 1 on a regression")
      ->type_name("PROGRAM");
  app->add_option("--cycles", o->cycles, "Of four turns each, the baseline's first and last")
      ->needs("--baseline")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag("--markdown", o->markdown, "Print advice and tables as Markdown, for a pull request");
  for (const char* file : {"--csv", "--steps-csv", "--json", "--reconstruction"})
    app->get_option(file)->type_name("FILE");
  app->get_option("--payloads")->type_name("FOLDER");
  app->get_option("--codec")->type_name("CODEC");
  app->get_option("--network")->type_name("NETWORK");
  set_groups(
      *app,
      {{"Synthetic gradients", {"--synthetic", "--minbytes", "--maxbytes", "--stepfactor", "--stepbytes"}},
       {"Codecs",
        {"--codec", "--received", "--received-bytes", "--granularity", "--op", "--values", "--baseline-dtype",
         "--reduce", "--levels", "--codec-inner", "--pipeline", "--layers", "--steps", "--seed", "--seeds", "--check"}},
       {"Communication", {"--comm", "--comm-timeout", "--ranks", "--gpus", "--threads", "--device", "--all-reduce"}},
       {"Timing",
        {"--timing", "--iters", "--warmup-iters", "--min-samples", "--rounds", "--max-noise", "--timeout", "--hot"}},
       {"Modelled networks",
        {"--network", "--nodes", "--library", "--codec-speed", "--compute-ms", "--overlap", "--advise", "--max-nmse",
         "--trained"}},
       {"Output",
        {"--per-tensor", "--update-error", "--reconstruction", "--payloads", "--csv", "--steps-csv", "--json",
         "--markdown"}},
       {"Comparison", {"--baseline", "--cycles"}}});
  app->footer(
      "The rows of none (uncompressed) and noop (sends nothing) are always there.\n"
      "Columns: docs/columns.md. Examples:\n"
      "  gradtool bench capture.h5 --codec all --csv bench.csv\n"
      "  gradtool bench capture.h5 --codec fft:theta=0.9,bits=8 --codec qsgd:bits=[2,4,8]\n"
      "  gradtool bench capture.h5 --codec topk:ratio=0.01 --reconstruction topk.h5\n"
      "  gradtool bench capture.h5 --codec none --received from_pytorch.h5 --per-tensor\n"
      "  gradtool bench --synthetic 1MB:64MB:x4 --codec topk,powersgd,fp8 --ranks 4\n"
      "  gradtool bench capture.h5 --network 10gbe --nodes 32 --advise --max-nmse 0.05\n"
      "  gradtool bench --synthetic 16KB:64MB:x4 --codec bf16,fp8,topk --network 10gbe --nodes 32 --advise\n"
      "  gradtool bench capture.h5 --network 25gbe --nodes 2,4,...,4096 --compute-ms 120\n"
      "  mpirun -n 2 gradtool bench capture.h5 --comm mpi --codec all\n"
      "  srun --mpi=pmix -n 4 gradtool bench capture.h5 --comm mpi --codec all");
  return {app, [o] { return run(*o); }};
}

}  // namespace gradtool::app
