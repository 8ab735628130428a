#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace gradtool {

/// How long the ranks of a job wait for one of them, in seconds.
struct WatchLimits {
  double stall = 120.0;   ///< a rank is awaited inside one call of the communicator
  double silence = 10.0;  ///< nothing at all is heard from a rank
  double period = 1.0;    ///< between two reports
};

/// Where a rank is. What it does between two jobs (`run_mpi`) is not a collective's: rank 0 reads files and measures
/// codecs alone there, so it is given ten times as long. A rank that ends for a failure of its own says so and ends the
/// job itself.
enum class WatchPhase : std::uint8_t { between_jobs, in_job, ended, failed };

/// What a rank reports about itself.
struct WatchReport {
  std::uint64_t moves = 0;   ///< calls entered plus calls left: odd inside a call
  double unmoved = 0.0;      ///< seconds since `moves` changed
  std::int32_t awaits = -1;  ///< the rank that the call receives from, -1: all of them
  WatchPhase phase = WatchPhase::between_jobs;
  bool last = false;            ///< no report follows: the rank leaves in good order
  bool stop = false;            ///< the job is over: its judge has found a rank that holds the others up
  std::array<char, 25> call{};  ///< name of the call, ends with 0

  [[nodiscard]] bool waits() const noexcept { return moves % 2 == 1; }
};

/// What one rank knows of another.
struct WatchedRank {
  WatchReport report;
  double silent = 0.0;        ///< seconds since its last report
  std::uint64_t reports = 0;  ///< how many have come
};

/// "rank 2 has not been heard from for 10 s (...)" for the ranks but `self` that are silent, or nothing.
[[nodiscard]] std::optional<std::string> judge_silence(std::span<const WatchedRank> ranks, int self, double limit);

/// Who holds the others up by what their reports say: when a rank has waited too long, the rank that waits for nobody
/// and has made the fewest calls, or, when all of them wait, the one that has made the fewest.
struct Stall {
  int culprit = -1;
  int witness = -1;  ///< a rank that waits, preferably for the culprit; -1: none but the culprit
};
[[nodiscard]] std::optional<Stall> find_stall(std::span<const WatchedRank> ranks, const WatchLimits& limits);
[[nodiscard]] std::string describe(const Stall& stall, std::span<const WatchedRank> ranks);

/// Reports of two ranks are never of the same moment: the one may say that it waits while the other, on its way since,
/// has let it go on. So a stall counts once both have said the same in some reports more.
class StallJudge {
 public:
  /// The rank that judges, whose own report is always fresh.
  explicit StallJudge(int self) : self_{self} {}
  /// To be asked after every round of reports.
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
