#include "lib/probe/probe.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <optional>

#include "gradtool_version.hpp"
#include "lib/bench/agreement.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/probe/rank_probe.hpp"
#if GT_HAS_CUDA
#include "kernels/cuda/runtime.hpp"
#endif

namespace gradtool {
namespace {

/// Values of many magnitudes and both signs, for links that compress.
float filling(std::size_t i) {
  return static_cast<float>(static_cast<std::int32_t>(static_cast<std::uint32_t>(i) * 2654435761U)) * 1e-9F;
}

class HostDevice {
 public:
  [[nodiscard]] static Queue<Space::host> queue() { return {}; }
  [[nodiscard]] HostView<std::byte> memory(std::size_t which, std::size_t bytes) {
    std::vector<float>& values = memories_[which];
    const std::size_t had = values.size(), wanted = (bytes + sizeof(float) - 1) / sizeof(float);
    if (wanted > had) {
      values.resize(wanted);
      for (std::size_t i = had; i < wanted; ++i) values[i] = filling(i);
    }
    return as_writable_bytes(HostView<float>{values}).first(bytes);
  }
  void start() { started_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] double stop(Communicator<Space::host>& /*comm*/) const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

 private:
  std::array<std::vector<float>, 2> memories_;
  std::chrono::steady_clock::time_point started_;
};

#if GT_HAS_CUDA
class CudaDevice {
 public:
  explicit CudaDevice(Queue<Space::cuda> queue) : queue_{queue} {}
  [[nodiscard]] Queue<Space::cuda> queue() const { return queue_; }
  [[nodiscard]] View<std::byte, Space::cuda> memory(std::size_t which, std::size_t bytes) {
    cuda::DeviceBuffer& buffer = memories_[which];
    if (buffer.size() < bytes) {
      std::vector<float> values((bytes + sizeof(float) - 1) / sizeof(float));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = filling(i);
      buffer = cuda::DeviceBuffer{4 * values.size()};
      cuda::copy(queue_, buffer.bytes(), as_bytes(HostView<const float>{values}));
      cuda::synchronize(queue_);
    }
    return buffer.bytes().first(bytes);
  }
  void start() const { begin_.record(queue_); }
  [[nodiscard]] double stop(Communicator<Space::cuda>& comm) const {
    end_.record(queue_);
    comm.barrier(queue_);  // waits with an eye on the other ranks
    return cuda::elapsed_seconds(begin_, end_);
  }

 private:
  Queue<Space::cuda> queue_;
  std::array<cuda::DeviceBuffer, 2> memories_;
  cuda::Event begin_{cuda::Event::Timing::on}, end_{cuda::Event::Timing::on};
};
#endif

std::vector<Fact> facts_of(const ProbeOptions& options) {
  std::vector<std::string_view> names;
  for (const Pattern pattern : options.collectives) names.push_back(name_of(pattern));
  return {{"gradtool", GRADTOOL_VERSION " (" GRADTOOL_COMMIT ")"},
          {"--comm", options.comm + (options.udp.text.empty() ? "" : ":" + options.udp.text)},
          {"the list of sizes", joined(options.sizes, ", ")},
          {"-e", options.largest_by_time ? "none" : "given"},
          {"--collective", joined(names, ", ")},
          {"--iters", fmt::to_string(options.samples)},
          {"--rounds", fmt::to_string(options.rounds)},
          {"--warmup-iters", fmt::to_string(options.warmup)},
          {"--timeout", fmt::to_string(options.row_seconds)},
          {"the list of outputs", options.outputs.empty() ? " none" : options.outputs}};
}

/// The machines of the job, from how many processes each process has on its own.
int hosts_of(Communicator<Space::host>& comm, int on_machine) {
  std::vector<int> counts(static_cast<std::size_t>(comm.size()));
  comm.all_gather({}, as_bytes(HostView<const int>{&on_machine, 1}), as_writable_bytes(HostView<int>{counts}));
  return static_cast<int>(std::lround(
      std::accumulate(counts.begin(), counts.end(), 0.0, [](double sum, int count) { return sum + 1.0 / count; })));
}

/// Finds this process's place among the others, which must want the same.
MpiPlace join_job(const ProbeOptions& options, ProbeReport& report) {
  const MpiPlace place = processes_world(options.processes(), options.comm_timeout);
  if (place.size < 2) {
    throw_error(Fault::usage,
                "a network has two ranks at least: start them, such as mpirun -n 4 gradtool "
                "probe --comm {}",
                options.comm);
  }
  std::optional<Error> different;
  run_processes(
      options.processes(),
      [&](Communicator<Space::host>& comm) {
        try {  // what all ranks throw alike is said once, behind the job
          expect_same_on_all_ranks(facts_of(options), comm);
        } catch (const Error& error) {
          if (error.fault() != Fault::usage) throw;
          different = error;
        }
        if (!different) report.hosts = hosts_of(comm, place.on_machine);
      },
      options.comm_timeout);
  if (different) throw Error{*different};
  return place;
}

void check(const ProbeOptions& options) {
  expect_valid(options.sizes.size() >= 3, "three sizes at least tell latency from rate: set -b and -e further apart");
  expect_valid(options.samples >= 1, "--iters must be 1 at least");
  expect_valid(options.rounds >= 1, "--rounds must be 1 at least");
  expect_valid(!options.collectives.empty(), "probe: no collective given");
  for (const auto& backend : comm_backends()) {
    if (backend.name == options.comm && !backend.available)
      throw_error(Fault::unavailable, "--comm {}: {}", options.comm, backend.detail);
  }
}

[[nodiscard]] int ranks_of_process(const ProbeOptions& options) {
  int ranks = options.ranks > 0 ? options.ranks : 4;
#if GT_HAS_CUDA
  if (options.comm == "nccl" && options.ranks == 0) ranks = cuda::device_count();
#endif
  if (ranks < 2) {
    throw Error{Fault::usage, options.comm == "nccl"
                                  ? "a network has two ranks at least, and this machine has one GPU: "
                                    "start a process on each of several with mpirun"
                                  : "a network has two ranks at least: leave --ranks out, or raise it"};
  }
  return ranks;
}

/// The rows of one pattern.
std::vector<const ProbeRow*> rows_of(const ProbeReport& report, Pattern pattern) {
  std::vector<const ProbeRow*> rows;
  for (const ProbeRow& row : report.rows) {
    if (row.pattern == pattern) rows.push_back(&row);
  }
  return rows;
}

void add_fits(const ProbeOptions& options, ProbeReport& report) {
  for (const Pattern pattern : options.collectives) {
    std::vector<SizeTimes> sizes;
    for (const ProbeRow* row : rows_of(report, pattern)) sizes.push_back(row->times);
    if (sizes.size() < 2) {
      throw_error(Fault::usage, "all sizes are the same for {} among {} ranks: give a larger -e", name_of(pattern),
                  report.ranks);
    }
    report.patterns.push_back(pattern);
    report.fits.push_back(fit_link(pattern, sizes, report.ranks));
  }
}

void add_pairs(ProbeReport& report) {
  const auto rows = rows_of(report, Pattern::pair);
  if (rows.empty()) return;
  const ProbeRow& largest = *rows.back();
  const std::vector<int> firsts = probed_pairs(report.ranks);
  for (std::size_t pair = 0; pair < firsts.size(); ++pair) {
    std::vector<double> seconds;
    for (std::size_t i = pair; i < largest.times.seconds.size(); i += firsts.size())
      seconds.push_back(largest.times.seconds[i]);
    if (seconds.empty()) continue;
    report.pairs.push_back({.from = firsts[pair],
                            .to = (firsts[pair] + 1) % report.ranks,
                            .bytes_per_second = largest.times.bytes / summarise(seconds).median});
  }
}

}  // namespace

const LinkFit& ProbeReport::fit_of(Pattern pattern) const {
  const auto place = std::find(patterns.begin(), patterns.end(), pattern);
  expects(place != patterns.end(), "pairs and the pattern that the network is taken from are always measured");
  return fits[static_cast<std::size_t>(place - patterns.begin())];
}

Contention contention_of(const ProbeOptions& options, const ProbeReport& report) {
  const LinkFit& alone = report.fit_of(Pattern::pair);
  const LinkFit& together = report.fit_of(options.link_from);
  Contention contention{.factor = alone.link.beta / together.link.beta, .interval = std::nullopt};
  if (alone.beta && together.beta)
    contention.interval = {alone.beta->low / together.beta->high, alone.beta->high / together.beta->low};
  return contention;
}

ProbeReport run_probe(const ProbeOptions& options) {
  check(options);
  ProbeReport report;
  const bool across =
      options.comm == "mpi" || options.comm == "udp" || (options.comm == "nccl" && mpi_place().size > 1);
  const int in_process = across ? 0 : ranks_of_process(options);
  if (across) report.leads = join_job(options, report).rank == 0;
  const auto measure = [&](auto& comm, auto& device) {
    RankProbe probe{options, comm, device};
    std::vector<ProbeRow> rows = probe.run();
    if (comm.rank() != 0) return;
    report.ranks = comm.size();
    report.rows = std::move(rows);
  };
  const HostBody host_body = [&](Communicator<Space::host>& comm) {
    HostDevice device;
    measure(comm, device);
  };
  if (options.comm == "threads") run_threads(in_process, host_body, options.comm_timeout);
  if (options.comm == "mpi" || options.comm == "udp")
    run_processes(options.processes(), host_body, options.comm_timeout);
#if GT_HAS_CUDA
  const CudaBody cuda_body = [&](Communicator<Space::cuda>& comm, Queue<Space::cuda> queue) {
    CudaDevice device{queue};
    measure(comm, device);
  };
  if (options.comm == "nccl" && !across) run_nccl(in_process, cuda_body, options.comm_timeout);
  if (options.comm == "nccl" && across) run_nccl_mpi(cuda_body, options.comm_timeout);
#endif
  report.interrupted = interrupted() || (report.leads && report.rows.empty());
  if (!report.leads || report.interrupted) return report;
  add_fits(options, report);
  add_pairs(report);
  return report;
}

}  // namespace gradtool
