#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace gradtool {

/// How long the ranks of a job wait for one of them, in seconds.
struct WatchLimits {
  double stall = 120.0;   ///< how long ranks wait for another one inside one call of the communicator
  double silence = 10.0;  ///< how long a rank may send no report at all
  double period = 1.0;    ///< time between two reports
};

/// The activity of a rank. Between two jobs (calls of `run_mpi`) rank 0 reads files and measures codecs alone while the
/// others wait, so a rank may take ten times as long there. A rank that ends because of a failure of its own reports
/// `failed` and ends the job itself.
enum class WatchPhase : std::uint8_t { between_jobs, in_job, ended, failed };

/// A rank's report about itself.
struct WatchReport {
  std::uint64_t moves = 0;   ///< calls entered plus calls left, so it is odd inside a call
  double unmoved = 0.0;      ///< seconds since `moves` changed
  std::int32_t awaits = -1;  ///< the rank that the call receives from; -1 when it waits for all ranks
  WatchPhase phase = WatchPhase::between_jobs;
  bool last = false;            ///< no report follows, because the rank leaves in good order
  bool stop = false;            ///< sent by rank 0 when it has found a rank that holds the others up and ends the job
  std::array<char, 25> call{};  ///< name of the call, with a terminating zero

  [[nodiscard]] bool waits() const noexcept { return moves % 2 == 1; }
};

/// One rank's knowledge of another one.
struct WatchedRank {
  WatchReport report;
  double silent = 0.0;        ///< seconds since its last report
  std::uint64_t reports = 0;  ///< number of reports that have arrived
};

/// The sentence "rank 2 has not been heard from for 10 s (...)" about the ranks other than `self` that have been silent
/// for more than `limit` seconds; nothing when there is none.
[[nodiscard]] std::optional<std::string> judge_silence(std::span<const WatchedRank> ranks, int self, double limit);

/// The rank that holds the others up, judged by the reports. Once a rank has waited too long, the culprit is the rank
/// that waits for nobody and has made the fewest calls or, when all ranks wait, the one that has made the fewest calls.
struct Stall {
  int culprit = -1;
  int witness = -1;  ///< a rank that waits, preferably for the culprit; -1 when no rank but the culprit waits
};
[[nodiscard]] std::optional<Stall> find_stall(std::span<const WatchedRank> ranks, const WatchLimits& limits);
[[nodiscard]] std::string describe(const Stall& stall, std::span<const WatchedRank> ranks);

/// Decides when a stall is certain. The reports of two ranks are never from the same moment: one may say that it waits
/// although the other has let it go on since. So a stall counts only after both ranks have repeated their state in
/// kReports further reports.
class StallJudge {
 public:
  /// `self` is the rank that judges; its own report is always current.
  explicit StallJudge(int self) : self_{self} {}
  /// Called after every round of reports. Returns the sentence that describes the stall once it is certain.
  [[nodiscard]] std::optional<std::string> judge(std::span<const WatchedRank> ranks, const WatchLimits& limits);

 private:
  static constexpr std::uint64_t kReports = 5;
  struct Seen {
    std::uint64_t moves = 0, reports = 0;
  };
  [[nodiscard]] bool repeated(int rank, const Seen& seen, std::span<const WatchedRank> ranks) const;

  int self_;
  std::optional<Stall> suspected_;
  Seen culprit_, witness_;  ///< when they were first suspected
};

}  // namespace gradtool
