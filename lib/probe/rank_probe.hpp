#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "lib/comm/communicator.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/probe/probe.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {

/// The pairs of neighbours that are measured alone: all, or kMostPairs evenly spread over the ranks. Their first ranks.
[[nodiscard]] inline std::vector<int> probed_pairs(int ranks) {
  constexpr int kMostPairs = 64;
  const int pairs = ranks == 2 ? 1 : ranks;
  std::vector<int> firsts(static_cast<std::size_t>(std::min(pairs, kMostPairs)));
  for (std::size_t i = 0; i < firsts.size(); ++i)
    firsts[i] = static_cast<int>(i * static_cast<std::size_t>(pairs) / firsts.size());
  return firsts;
}

/// The work of every rank of a probe, on either processor. `Device` has a queue, two memories and a stopwatch:
///   Queue<S> queue();  View<std::byte, S> memory(0 or 1, bytes);  void start();
///   double stop(Communicator<S>&);
/// `start` and `stop` stand around enqueued work; stop waits for it.
template <Space S, class Device>
class RankProbe {
 public:
  RankProbe(const ProbeOptions& options, Communicator<S>& comm, Device& device)
      : options_{options}, comm_{comm}, device_{device}, pairs_{probed_pairs(comm.size())} {}

  /// Empty after an interruption.
  [[nodiscard]] std::vector<ProbeRow> run() {
    once(Pattern::all_to_all, size_for(Pattern::all_to_all, 1, comm_.size()), 0);  // connects everybody
    std::vector<ProbeRow> rows = make_rows(chosen_sizes());
    Progress progress{comm_.rank() == 0 ? "probe" : "", comm_.rank() == 0 ? rows.size() * options_.rounds : 0};
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = 0; i < rows.size() && !stopped_; ++i) {
        if (comm_.rank() == 0) progress.update(round * rows.size() + i, name_of(rows[i].pattern));
        sample(rows[i], round);
      }
    }
    return stopped_ ? std::vector<ProbeRow>{} : rows;
  }

 private:
  [[nodiscard]] std::vector<std::uint64_t> chosen_sizes() {
    std::vector<std::uint64_t> sizes = options_.sizes;
    if (!options_.largest_by_time) return sizes;
    constexpr std::uint64_t kSurelyFast = std::uint64_t{16} << 10;
    for (std::size_t i = 2; i < sizes.size(); ++i) {
      if (sizes[i] < kSurelyFast) continue;
      expected_ = 0.0;
      static_cast<void>(timed(Pattern::sendrecv, sizes[i], 1, 0));
      if (timed(Pattern::sendrecv, sizes[i], 1, 0) >= ProbeOptions::kLargestSeconds) sizes.resize(i + 1);
    }
    return sizes;
  }

  [[nodiscard]] std::vector<ProbeRow> make_rows(const std::vector<std::uint64_t>& sizes) const {
    std::vector<ProbeRow> rows;
    for (const Pattern pattern : options_.collectives) {
      for (const std::uint64_t asked : sizes) {
        const std::uint64_t bytes = size_for(pattern, asked, comm_.size());
        if (!rows.empty() && rows.back().pattern == pattern && rows.back().bytes == bytes) continue;
        ProbeRow row{.pattern = pattern, .bytes = bytes, .times = {}};
        row.times.bytes = static_cast<double>(bytes);
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }

  /// The row's samples of one round.
  void sample(ProbeRow& row, std::size_t round) {
    const std::size_t pairs = row.pattern == Pattern::pair ? pairs_.size() : 1;
    const std::size_t wanted = (options_.samples + pairs - 1) / pairs * pairs;
    if (round == 0) {
      expected_ = 0.0;
      const double first = timed(row.pattern, row.bytes, 1, 0);
      row.expected = timed(row.pattern, row.bytes, repeats_for(first, 10), 0);
      row.repeats = repeats_for(row.expected, 10000);
    }
    expected_ = row.expected;
    const std::size_t here = wanted * (round + 1) / options_.rounds - wanted * round / options_.rounds;
    std::vector<double>& seconds = row.times.seconds;
    std::size_t taken = 0;
    for (; taken < here && !stopped_ && (seconds.empty() || row.spent < options_.row_seconds); ++taken) {
      const std::size_t turn = seconds.size() % pairs;
      const auto time = [&](std::size_t repeats) {
        const double each = timed(row.pattern, row.bytes, repeats, turn);
        row.spent += ways(row.pattern) * each * static_cast<double>(repeats);
        return each;
      };
      const std::size_t warmup = std::min(options_.warmup, row.repeats - 1);
      if (warmup > 0 && (taken == 0 || pairs > 1)) static_cast<void>(time(warmup));
      seconds.push_back(time(row.repeats));
    }
    row.times.rounds.push_back(taken);
  }

  [[nodiscard]] static std::size_t repeats_for(double seconds, std::size_t most) {
    const double wanted = std::ceil(ProbeOptions::kSampleSeconds / std::max(seconds, 1e-9));
    return static_cast<std::size_t>(std::clamp(wanted, 1.0, static_cast<double>(most)));
  }

  /// A pair sends to and fro.
  [[nodiscard]] static double ways(Pattern pattern) { return pattern == Pattern::pair ? 2.0 : 1.0; }

  /// Seconds of one operation, mean of `repeats`, on the slowest rank: the same on all of them.
  double timed(Pattern pattern, std::uint64_t bytes, std::size_t repeats, std::size_t turn) {
    comm_.barrier(device_.queue());
    device_.start();
    if (idle(pattern, turn)) {
      // A rank that polls for the others to end would disturb them where ranks share cores.
      const double most = 0.9 * expected_ * ways(pattern) * static_cast<double>(repeats);
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(most, 1.0)));
    }
    for (std::size_t i = 0; i < repeats; ++i) once(pattern, bytes, turn, i);
    std::array<double, 2> agreed{device_.stop(comm_), interrupted() ? 1.0 : 0.0};
    if (idle(pattern, turn)) agreed[0] = 0.0;
    comm_.agree_max(agreed);
    stopped_ = stopped_ || agreed[1] > 0.0;
    return std::max(agreed[0], 1e-9) / ways(pattern) / static_cast<double>(repeats);
  }

  [[nodiscard]] bool idle(Pattern pattern, std::size_t turn) const {
    const int first = pairs_[turn % pairs_.size()];
    return pattern == Pattern::pair && comm_.rank() != first && comm_.rank() != (first + 1) % comm_.size();
  }

  void once(Pattern pattern, std::uint64_t bytes, std::size_t turn, std::size_t repeat = 0) {
    using Bytes = View<std::byte, S>;
    const Queue<S> queue = device_.queue();
    const int rank = comm_.rank(), ranks = comm_.size();
    const Bytes a = device_.memory(0, bytes), b = device_.memory(1, bytes);
    switch (pattern) {
      case Pattern::pair: {
        const int first = pairs_[turn], second = (first + 1) % ranks;
        if (rank == first) {
          comm_.send(queue, second, a);
          comm_.recv(queue, second, b);
        } else if (rank == second) {
          comm_.recv(queue, first, b);
          comm_.send(queue, first, a);
        }
        return;
      }
      case Pattern::sendrecv:
        return comm_.exchange(queue, (rank + 1) % ranks, a, (rank + ranks - 1) % ranks, b);
      case Pattern::all_reduce:
        return comm_.all_reduce_native(queue, a, Dtype::f32, b);
      case Pattern::all_reduce_ring:
        return comm_.all_reduce_sum(queue, a, Dtype::f32, b);
      case Pattern::reduce_scatter:
        return comm_.reduce_scatter_sum(queue, a, Dtype::f32, b);
      case Pattern::all_gather: {
        const std::size_t part = bytes / static_cast<std::size_t>(ranks);
        return comm_.all_gather(queue, a.part(static_cast<std::size_t>(rank) * part, part), a);
      }
      case Pattern::all_to_all:
        return comm_.all_to_all(queue, a, b);
      case Pattern::broadcast: {
        // The next root is the last rank of this chain, so that none begins before all have ended.
        const auto last = static_cast<std::size_t>(ranks);
        return comm_.broadcast(queue, a, static_cast<int>((last - repeat % last) % last));
      }
    }
  }

  const ProbeOptions& options_;
  Communicator<S>& comm_;
  Device& device_;
  std::vector<int> pairs_;
  double expected_ = 0.0;  ///< as ProbeRow::expected, of the operation that is timed; 0: not known
  bool stopped_ = false;
};

}  // namespace gradtool
