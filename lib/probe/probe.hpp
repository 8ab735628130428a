#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/comm/launch.hpp"
#include "lib/probe/fit.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

constexpr double gbit(double bytes_per_second) {
  return bytes_per_second * 8e-9;
}

/// The options of one `gradtool probe`.
struct ProbeOptions {
  std::string comm = "mpi";               ///< mpi, udp, nccl, or threads of this process
  UdpOptions udp;                         ///< where comm is udp
  int ranks = 0;                          ///< of nccl in one process and of threads; 0: all GPUs, or 4 threads
  double comm_timeout = 120.0;            ///< seconds that ranks wait for one of them
  std::vector<std::uint64_t> sizes;       ///< bytes, ascending, three at least
  bool largest_by_time = false;           ///< leave out the sizes behind the first that takes kLargestSeconds
  std::vector<Pattern> collectives;       ///< in this order; pair and `link_from` are among them
  Pattern link_from = Pattern::sendrecv;  ///< whose fit is the network's alpha and beta
  std::size_t samples = 10;               ///< of each row; of pairs at least one for each pair
  std::size_t rounds = 5;    ///< in which every row is sampled once, so that what drifts hits all of them alike
  std::size_t warmup = 5;    ///< operations before the samples of a round; fewer than in a sample
  double row_seconds = 8.0;  ///< after so long a row gets no more samples
  std::string command;       ///< as given, for the record
  std::string outputs;       ///< the options of outputs that were given, which ranks must have alike

  /// The transport between ranks that are processes. GPUs meet through MPI.
  [[nodiscard]] ProcessComm processes() const { return {comm == "udp" ? comm : "mpi", udp}; }
  /// One sample repeats its operation for so long, and is the mean: bursts that a link lets pass at once, and the
  /// resolution of clocks, are small against it.
  static constexpr double kSampleSeconds = 0.02;
  static constexpr double kLargestSeconds = 0.1;
};

/// One size of one pattern.
struct ProbeRow {
  Pattern pattern = Pattern::pair;
  std::uint64_t bytes = 0;
  std::size_t repeats = 0;  ///< of the operation, in a sample
  double expected = 0.0;    ///< seconds of one operation, from a first try
  double spent = 0.0;       ///< seconds that its samples and their warm-up took
  SizeTimes times;          ///< seconds of one operation, slowest rank
};

/// The rate between two neighbours while all others were silent, at the largest size.
struct PairRate {
  int from = 0, to = 0;
  double bytes_per_second = 0.0;
};

struct ProbeReport {
  bool leads = true;  ///< this process has the results; the others have none
  bool interrupted = false;
  int ranks = 0;
  int hosts = 1;
  std::vector<ProbeRow> rows;     ///< by pattern, then by size
  std::vector<Pattern> patterns;  ///< of `fits`
  std::vector<LinkFit> fits;
  std::vector<PairRate> pairs;

  /// The fit of a pattern that was measured.
  [[nodiscard]] const LinkFit& fit_of(Pattern pattern) const;
};

/// How many times longer a byte takes when all ranks send at once: the fitted rate of a pair alone over that of
/// ProbeOptions::link_from.
struct Contention {
  double factor = 1.0;
  std::optional<Interval> interval;  ///< 95 %, from the ends of both rates' intervals
};
[[nodiscard]] Contention contention_of(const ProbeOptions& options, const ProbeReport& report);

/// Collective over the processes of a job: makes sure that all have the same options, then measures. Throws
/// Fault::usage for options that do not go together, and for fewer than two ranks; Fault::unavailable for a
/// communicator that is not built in or has no device here; Fault::backend when a rank fails or is waited for in vain.
[[nodiscard]] ProbeReport run_probe(const ProbeOptions& options);

/// Rows as CSV has them. `modelled_us` is by the network's link, for pairs by their own.
[[nodiscard]] Table to_table(const ProbeOptions& options, const ProbeReport& report);
/// The network file (docs/network-model.md), which Network::from_option reads.
[[nodiscard]] nlohmann::ordered_json record(const ProbeOptions& options, const ProbeReport& report,
                                            const std::string& name);
/// The report for people.
[[nodiscard]] std::string terminal_text(const ProbeOptions& options, const ProbeReport& report);

}  // namespace gradtool
