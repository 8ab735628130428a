#include "lib/probe/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/files.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/model/network.hpp"
#include "lib/report/color.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"
#include "lib/report/outputs.hpp"

namespace gradtool::app {
namespace {

struct ProbeArguments {
  ProbeOptions probe;
  std::string first = "8", last;
  double factor = 4.0;
  std::vector<std::string> collectives;
  std::string fit = "sendrecv", out, csv;
  std::optional<std::string> name;
};

Pattern parse_pattern(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& info : patterns()) {
    if (text == info.name) return info.pattern;
    names.emplace_back(info.name);
  }
  const std::string near = nearest(text, names);
  throw_error(Fault::usage, "--collective '{}' is not valid; {}there are {}", text,
              near.empty() ? "" : fmt::format("did you mean '{}'? ", near), joined(names, ", "));
}

std::vector<Pattern> chosen_collectives(const ProbeArguments& o) {
  std::vector<Pattern> chosen;
  const auto add = [&chosen](Pattern pattern) {
    if (std::find(chosen.begin(), chosen.end(), pattern) == chosen.end()) chosen.push_back(pattern);
  };
  if (!o.collectives.empty()) add(Pattern::pair);
  for (const auto& list : o.collectives) {
    if (list.empty()) add(parse_pattern(list));
    for (const std::string_view one : split(list, ',')) add(parse_pattern(std::string{one}));
  }
  for (const auto& info : patterns()) {
    // NCCL has one all-reduce.
    if (o.collectives.empty() && !(info.pattern == Pattern::all_reduce_ring && o.probe.comm == "nccl"))
      add(info.pattern);
  }
  add(parse_pattern(o.fit));
  return chosen;
}

std::vector<std::uint64_t> chosen_sizes(const ProbeArguments& o) {
  constexpr std::uint64_t kLast = std::uint64_t{64} << 20, kMost = std::uint64_t{16} << 30;
  constexpr std::size_t kMostSizes = 1000;
  const std::uint64_t first = parse_bytes(o.first, "-b");
  const std::uint64_t last = o.last.empty() ? kLast : parse_bytes(o.last, "-e");
  if (last > kMost) throw_error(Fault::usage, "-e {} is not valid; write 16G at most", o.last);
  if (first > last) {
    throw_error(Fault::usage, "-b {} is larger than the last size, {}", o.first,
                o.last.empty() ? "64M unless -e says otherwise" : "-e " + o.last);
  }
  if (!(o.factor > 1.0 && std::isfinite(o.factor)))
    throw_error(Fault::usage, "-f {} is not valid; write a number above 1", o.factor);
  std::vector<std::uint64_t> sizes;
  double size = static_cast<double>(first);
  std::size_t steps = 0;
  while (size <= static_cast<double>(last)) {
    if (steps++ == kMostSizes) throw_error(Fault::usage, "-f {} makes more than {} sizes", o.factor, kMostSizes);
    const auto bytes = static_cast<std::uint64_t>(size);
    if (sizes.empty() || bytes > sizes.back()) sizes.push_back(bytes);
    size *= o.factor;
  }
  return sizes;
}

/// The network's name: what was asked for, else that of the file.
std::string chosen_name(const ProbeArguments& o) {
  if (o.name) {
    if (valid_network_name(*o.name)) return *o.name;
    throw_error(Fault::usage,
                "--name '{}' is not valid; write letters, digits, dots, hyphens and underscores, 64 at most", *o.name);
  }
  const std::string stem = std::filesystem::path{o.out}.stem().string();
  return o.out != "-" && valid_network_name(stem) ? stem : "probe";
}

void check_place(const ProbeArguments& o) {
  const int processes = mpi_place().size;
  if (processes > 1 && o.probe.comm == "threads")
    throw_error(Fault::usage, "started as {} processes: add --comm mpi or udp", processes);
  if (o.probe.ranks > 0 && (o.probe.comm == "mpi" || o.probe.comm == "udp" || processes > 1))
    throw Error{Fault::usage, "the launcher says how many ranks there are: leave --ranks out"};
}

int run(ProbeArguments& o) {
  ProbeOptions& probe = o.probe;
  const ProcessComm comm = parse_comm(probe.comm);
  probe.comm = comm.name;
  probe.udp = comm.udp;
  check_place(o);
  expect_separate_files({}, std::vector<NamedPath>{{"--out", o.out}, {"--csv", o.csv}});
  expect_same_kind({"--out", o.out}, OutputKind::json);
  probe.link_from = parse_pattern(o.fit);
  probe.collectives = chosen_collectives(o);
  probe.largest_by_time = o.last.empty();
  probe.sizes = chosen_sizes(o);
  if (!(probe.comm_timeout >= 0.1 && probe.comm_timeout <= 1e6))
    throw_error(Fault::usage, "--comm-timeout {} is not valid; write seconds, 0.1 to 1000000", probe.comm_timeout);
  if (!(probe.row_seconds > 0.0 && std::isfinite(probe.row_seconds)))
    throw_error(Fault::usage, "--timeout {} is not valid; write seconds above 0", probe.row_seconds);
  const std::string name = chosen_name(o);
  for (const auto& path : {o.out, o.csv}) {
    if (!path.empty() && mpi_place().rank == 0) expect_writable(path);  // now, not after minutes of measuring
  }
  probe.command = command_line();
  probe.outputs = std::string{o.out.empty() ? "" : " --out"} + (o.csv.empty() ? "" : " --csv");
  const ProbeReport report = run_probe(probe);
  if (report.interrupted) {
    if (report.leads) fmt::print(stderr, "interrupted: nothing written\n");
    return kInterrupted;
  }
  if (!report.leads) return 0;
  Outputs outputs;
  outputs.csv(o.csv, to_table(probe, report));
  outputs.text(o.out, json_text(record(probe, report, name), 1) + "\n");
  if (o.out != "-" && o.csv != "-") fmt::print("{}", terminal_text(probe, report));
  std::fflush(stdout);
  for (const auto& path : outputs.written()) fmt::print(stderr, "wrote {}\n", printable(path));
  outputs.finish();
  if (o.out.empty() && o.csv.empty())
    fmt::print(stderr, "nothing written: -o net.json makes a network for bench --network net.json\n");
  return 0;
}

}  // namespace

Subcommand add_probe(CLI::App& root) {
  auto* app = root.add_subcommand("probe", "Measure the network between ranks, for bench --network");
  auto o = std::make_shared<ProbeArguments>();
  ProbeOptions& p = o->probe;
  app->add_option("--comm", p.comm,
                  "mpi: the processes of mpirun; udp: the same over the bounded-loss transport, also without mpirun "
                  "(udp:loss=0.01, docs/transport.md); nccl: GPUs, of one process or one for each process; threads: of "
                  "this process, which is memory and no network")
      ->check(one_of_comms({"mpi", "udp", "nccl", "threads"}))
      ->capture_default_str();
  app->add_option("-g,--ranks,--gpus", p.ranks, "GPUs of nccl in one process [all], or threads [4]")
      ->check(CLI::Range(2, 1024));
  app->add_option("--comm-timeout", p.comm_timeout, "Seconds that ranks wait for one of them before the job ends")
      ->capture_default_str();
  app->add_option("--collective", o->collectives,
                  "What to measure: pair (two neighbours alone), sendrecv (all ranks at once), all_reduce (the "
                  "library's), all_reduce_ring (gradtool's), reduce_scatter, all_gather, all_to_all, broadcast; commas "
                  "between, repeatable [all]")
      ->take_all()
      ->expected(1)
      ->type_name("COLLECTIVE");
  app->add_option("--fit", o->fit, "Whose times bench's model repeats: what all ranks at once do to alpha and rate")
      ->check(CLI::IsMember({"pair", "sendrecv", "all_reduce", "all_reduce_ring", "reduce_scatter", "all_gather",
                             "all_to_all", "broadcast"}))
      ->capture_default_str();
  app->add_option("-b,--minbytes", o->first, "The smallest size, such as 8 or 1K")->capture_default_str();
  app->add_option("-e,--maxbytes", o->last, "The largest [the first that takes 100 ms, 64M at most]");
  app->add_option("-f,--stepfactor", o->factor, "Factor between sizes")->capture_default_str();
  app->add_option("-n,--iters", p.samples, "Samples of each row; one repeats its operation for 20 ms and is their mean")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1000000}))
      ->capture_default_str();
  app->add_option("-w,--warmup-iters", p.warmup, "Operations before the samples, fewer than one sample has")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1000000}))
      ->capture_default_str();
  app->add_option("--rounds", p.rounds, "In which every row is sampled, so that what drifts hits all alike")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1000}))
      ->capture_default_str();
  app->add_option("--timeout", p.row_seconds, "Seconds after which a row gets no more samples")->capture_default_str();
  app->add_option("-o,--out,--json", o->out, "Write the network and all samples; - for standard output")
      ->type_name("FILE");
  app->add_option("--csv", o->csv, "Write the rows; - for standard output")->type_name("FILE");
  app->add_option("--name", o->name, "Of the network, in bench's tables [that of the file]")->needs("--out");
  set_groups(*app, {{"Communication", {"--comm", "--ranks", "--comm-timeout"}},
                    {"What is sent", {"--collective", "--minbytes", "--maxbytes", "--stepfactor"}},
                    {"Timing", {"--iters", "--warmup-iters", "--rounds", "--timeout"}},
                    {"Output", {"--fit", "--out", "--csv", "--name"}}});
  app->footer(
      "Sizes, algbw and busbw are those of nccl-tests, rates in Gbit/s. What is measured and how it becomes alpha and "
      "beta: docs/network-model.md. Start one rank on each machine.\n"
      "Examples:\n"
      "  mpirun -n 4 gradtool probe -o net.json\n"
      "  gradtool bench capture.h5 --network net.json --nodes 4,8,...,64 --advise\n"
      "  mpirun -n 8 gradtool probe -b 1K -e 256M -f 2 --collective pair,all_reduce\n"
      "  gradtool probe --comm nccl -o nvlink.json");
  return {app, [o] { return run(*o); }};
}

}  // namespace gradtool::app
