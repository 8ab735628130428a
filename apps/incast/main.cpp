// gradtool_incast: how long a tensor takes that all ranks send to one at the same time, over MPI or over the
// bounded-loss transport. It is the push of a parameter server, and what DLCP was made for.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "lib/comm/launch.hpp"
#include "lib/comm/udp/job.hpp"
#include "lib/comm/udp/marking.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/csv.hpp"

namespace gradtool {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string comm = "mpi", bytes = "1MB", capture, csv, samples;
  std::size_t iterations = 200, warmup = 20;
  double comm_timeout = 120.0;
};

/// One message of a rank in one iteration, and its place in the model.
struct Message {
  std::string tensor;
  std::vector<float> values;
  double depth = 0.0;
};

/// The tensors of a capture that are worth a measurement, of the first step and of this rank's worker; or random
/// values.
std::vector<Message> messages_of(const Options& options, int rank) {
  std::vector<Message> messages;
  if (options.capture.empty()) {
    Message one{"random", std::vector<float>(parse_bytes(options.bytes, "--bytes") / sizeof(float))};
    std::uint32_t state = static_cast<std::uint32_t>(rank) + 1;
    for (float& value : one.values) {
      state = state * 1664525U + 1013904223U;
      value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
    }
    messages.push_back(std::move(one));
    return messages;
  }
  const GradientReader reader{options.capture};
  const auto least = parse_bytes(options.bytes, "--bytes");
  double all = 0.0, before = 0.0;
  for (const TensorInfo& tensor : reader.tensors()) all += static_cast<double>(tensor.elements);
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    const TensorInfo& tensor = reader.tensors()[t];
    if (tensor.elements * sizeof(float) >= least) {
      Message one{tensor.name, std::vector<float>(tensor.elements), before / all};
      reader.read_gradient_part(t, 0, static_cast<std::size_t>(rank) % reader.workers(), 0, one.values);
      messages.push_back(std::move(one));
    }
    before += static_cast<double>(tensor.elements);
  }
  if (messages.empty()) {
    throw_error(Fault::usage, "{} has no tensor of {} or more; give a smaller --bytes", options.capture,
                human_bytes(static_cast<double>(least)));
  }
  return messages;
}

std::size_t largest(const std::vector<Message>& messages) {
  std::size_t bytes = 0;
  for (const Message& one : messages) bytes = std::max(bytes, one.values.size() * sizeof(float));
  return bytes;
}

/// Seconds of processor time that this process has used.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Sample {
  const Message* message = nullptr;
  double seconds = 0.0;    ///< from the common start to the moment when rank 0 has what is to arrive
  double delivered = 1.0;  ///< share of all senders' bytes
};

struct Run {
  int rank = 0, ranks = 1;
  std::vector<Message> messages;
  std::vector<Sample> samples;
  double processor = 0.0;         ///< seconds of this rank, while it measured
  double processor_sender = 0.0;  ///< of the busiest sender
  TransportCounts counts;
};

/// One iteration after the other: all ranks but 0 send, rank 0 takes.
///   push(message, sample)  does that;  meet(values)  is a barrier that leaves the maxima of the values;
///   begin()                is called once, before the first iteration that counts.
template <class Push, class Meet, class Begin>
void measure(const Options& options, Run& run, Push&& push, Meet&& meet, Begin&& begin) {
  run.messages = messages_of(options, run.rank);
  run.samples.reserve(options.iterations);
  double used = 0.0;
  for (std::size_t i = 0; i < options.warmup + options.iterations; ++i) {
    if (i == options.warmup) {
      begin();
      used = processor_seconds();
    }
    Sample sample{.message = &run.messages[i % run.messages.size()]};
    meet(std::span<double>{});
    const auto start = Clock::now();
    push(*sample.message, sample);
    sample.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (i >= options.warmup) run.samples.push_back(sample);
  }
  run.processor = processor_seconds() - used;
  std::array<double, 1> most{run.rank == 0 ? 0.0 : run.processor};
  meet(most);
  run.processor_sender = most[0];
}

void measure_mpi(const Options& options, Run& run) {
  run_mpi(
      [&](Communicator<Space::host>& ranks) {
        run.rank = ranks.rank();
        run.ranks = ranks.size();
        std::vector<std::byte> all;
        measure(
            options, run,
            [&](const Message& message, Sample&) {
              const auto mine = as_bytes(HostView<const float>{message.values});
              ranks.gather({}, mine,
                           {all.data(), run.rank == 0 ? mine.size() * static_cast<std::size_t>(run.ranks) : 0}, 0);
            },
            [&](std::span<double> values) {
              if (run.rank == 0 && all.empty()) all.resize(largest(run.messages) * static_cast<std::size_t>(run.ranks));
              ranks.barrier({});
              if (!values.empty()) ranks.agree_max(values);
            },
            [] {});
      },
      options.comm_timeout);
}

void measure_udp(const Options& options, const UdpOptions& udp, Run& run) {
  udp::run_engine(
      udp,
      [&](udp::Engine& engine) {
        run.rank = engine.rank();
        run.ranks = engine.size();
        std::vector<std::vector<std::byte>> places(static_cast<std::size_t>(run.ranks));
        const auto part_of = [&](const Message& message) {
          udp::TensorPart part = udp::at_depth({.bytes = message.values.size() * sizeof(float)}, message.depth);
          part.loss = part.back && udp.loss_back >= 0.0 ? udp.loss_back : udp.loss;
          part.loss_important = udp.loss_important < 0.0 ? part.loss : std::min(part.loss, udp.loss_important);
          return part;
        };
        measure(
            options, run,
            [&](const Message& message, Sample& sample) {
              const auto bytes = std::as_bytes(std::span{message.values});
              const udp::TensorPart part = part_of(message);
              if (run.rank != 0) {
                const udp::Plan plan{{&part, 1}, udp.packet};
                const udp::Engine::Sending one{
                    0, bytes, {&part, 1}, udp.marks() ? udp::important_packets(plan, bytes, Dtype::f32) : udp::Bits{}};
                engine.exchange({&one, 1}, {});
                return;
              }
              std::vector<udp::Engine::Receiving> from;
              for (int r = 1; r < run.ranks; ++r) {
                auto& place = places[static_cast<std::size_t>(r)];
                place.resize(std::max(place.size(), bytes.size()));
                from.push_back({r, std::span{place}.first(bytes.size()), {&part, 1}});
              }
              const std::uint64_t missing = engine.counts().missing_bytes;
              engine.exchange({}, from);
              sample.delivered = 1.0 - static_cast<double>(engine.counts().missing_bytes - missing) /
                                           static_cast<double>(bytes.size() * from.size());
            },
            [&](std::span<double> values) { engine.meet(values); }, [&] { engine.reset_counts(); });
        run.counts = engine.counts();
      },
      options.comm_timeout);
}

/// The smallest value that `share` of the values do not exceed.
double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(at, 1, values.size()) - 1];
}

Table samples_of(const Options& options, const Run& run) {
  Table table{"incast",
              {{"comm", "as given"},
               {"senders", "ranks that sent to rank 0 at once"},
               {"tensor", "its name"},
               {"bytes", "that each sender had"},
               {"ms", "until rank 0 had what was to arrive"},
               {"delivered", "share of all senders' bytes"}}};
  for (const Sample& one : run.samples)
    table.add({options.comm, std::int64_t{run.ranks - 1}, one.message->tensor,
               static_cast<std::int64_t>(one.message->values.size() * sizeof(float)), one.seconds * 1e3,
               one.delivered});
  return table;
}

Table summary_of(const Options& options, const Run& run) {
  std::vector<double> seconds;
  seconds.reserve(run.samples.size());
  double bytes = 0.0;  // of one sender
  for (const Sample& one : run.samples) {
    seconds.push_back(one.seconds);
    bytes += static_cast<double>(one.message->values.size() * sizeof(float));
  }
  const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const auto senders = static_cast<double>(run.ranks - 1);
  const bool udp = options.comm.starts_with("udp");
  const TransportCounts& counts = run.counts;
  const auto share = [udp](std::uint64_t part, std::uint64_t of) -> Cell {
    if (!udp) return {};
    return of == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(of);
  };
  Table table{"incast",
              {{"comm", "as given"},
               {"senders", "ranks that sent to rank 0 at once"},
               {"iterations", "that were timed"},
               {"mean_ms", "until rank 0 had what was to arrive"},
               {"p50_ms", "the median of that"},
               {"p99_ms", "its 99th percentile"},
               {"max_ms", "the largest"},
               {"gbit_s", "bits of all senders over all times"},
               {"delivered_least", "smallest share of a tensor that a sender delivered"},
               {"lost_first", "share of packets that had not arrived when all had been sent once"},
               {"lost_important", "the same of important packets, in messages that lost any"},
               {"lost_droppable", "the same of the others"},
               {"dropped", "datagrams that were duplicates, stale, misfits or damaged / packets"},
               {"overflowed", "datagrams that the kernel dropped because rank 0 was too slow"},
               {"sender_cpu_s_per_gb", "processor time of the busiest sender for a gigabyte of its own"},
               {"server_cpu_s_per_gb", "processor time of rank 0 for a gigabyte that it took"}}};
  table.add({options.comm, std::int64_t{run.ranks - 1}, static_cast<std::int64_t>(seconds.size()),
             1e3 * all / static_cast<double>(seconds.size()), 1e3 * quantile(seconds, 0.5),
             1e3 * quantile(seconds, 0.99), 1e3 * quantile(seconds, 1.0), 8e-9 * bytes * senders / all,
             udp ? Cell{counts.least_delivered} : Cell{1.0}, share(counts.lost_first, counts.expected),
             share(counts.lost_important, counts.important),
             share(counts.lost_first - counts.lost_important, counts.losing_packets - counts.important),
             share(counts.duplicates + counts.stale + counts.misfits + counts.damaged, counts.expected),
             udp ? Cell{static_cast<std::int64_t>(counts.overflowed)} : Cell{}, run.processor_sender / (1e-9 * bytes),
             run.processor / (1e-9 * bytes * senders)});
  return table;
}

void print(const Table& table) {
  for (std::size_t c = 0; c < table.columns().size(); ++c) {
    const Cell& cell = table.rows().front()[c];
    const auto* number = std::get_if<double>(&cell);
    fmt::print("{:>20}  {:<12} {}\n", table.columns()[c].name,
               number != nullptr ? fmt::format("{:.4g}", *number) : to_text(cell), table.columns()[c].meaning);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Times a tensor that all ranks send to rank 0 at once, as workers to a parameter server"};
  Options options;
  app.add_option("--comm", options.comm, "mpi, or udp with its options, such as udp:loss=0.01 (docs/transport.md)")
      ->capture_default_str();
  app.add_option("--bytes", options.bytes,
                 "Random values of this size; with --capture only tensors of this size and more")
      ->capture_default_str();
  app.add_option("--capture", options.capture, "Gradient file whose tensors are sent, one after the other");
  app.add_option("-n,--iters", options.iterations, "Iterations that are timed")
      ->check(CLI::Range(1, 100000000))
      ->capture_default_str();
  app.add_option("-w,--warmup-iters", options.warmup, "Iterations before them")
      ->check(CLI::Range(0, 100000000))
      ->capture_default_str();
  app.add_option("--comm-timeout", options.comm_timeout, "Seconds that ranks wait for one of them")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_option("--csv", options.csv, "File for the summary");
  app.add_option("--samples", options.samples, "File for every iteration");
  app.footer("Example:\n  mpirun -n 5 gradtool_incast --comm udp:loss=0.01 --bytes 1MB --csv incast.csv");
  CLI11_PARSE(app, argc, argv);
  const std::size_t colon = options.comm.find(':');
  const std::string name = options.comm.substr(0, colon);
  if (name != "udp" && options.comm != "mpi")
    throw_error(Fault::usage, "--comm {} is not valid; write mpi, or udp with its options", options.comm);
  Run run;
  if (name == "udp") {
    measure_udp(options,
                parse_udp_options(colon == std::string::npos ? std::string_view{}
                                                             : std::string_view{options.comm}.substr(colon + 1)),
                run);
  } else {
    measure_mpi(options, run);
  }
  if (run.ranks < 2) throw Error{Fault::usage, "an incast has two ranks at least: mpirun -n 5 gradtool_incast"};
  if (run.rank != 0) return 0;
  const Table summary = summary_of(options, run);
  print(summary);
  if (!options.csv.empty()) save_csv(options.csv, summary);
  if (!options.samples.empty()) save_csv(options.samples, samples_of(options, run));
  return 0;
}

}  // namespace
}  // namespace gradtool

int main(int argc, char** argv) {
  try {
    return gradtool::run(argc, argv);
  } catch (const gradtool::Error& error) {
    std::fputs(fmt::format("gradtool_incast: {}\n", error.what()).c_str(), stderr);
    return gradtool::exit_status(error.fault());
  }
}
