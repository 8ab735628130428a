#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/comm/watch_verdict.hpp"

/// Whom the watch over MPI processes names, without MPI.
namespace gradtool::test {
namespace {

constexpr WatchLimits kLimits{.stall = 100.0, .silence = 10.0, .period = 1.0};

struct Job {
  std::vector<WatchedRank> ranks;
  StallJudge judge{0};

  explicit Job(int size) : ranks(static_cast<std::size_t>(size)) {
    for (auto& rank : ranks) rank.report.phase = WatchPhase::in_job;
  }
  WatchReport& operator[](int r) { return ranks[static_cast<std::size_t>(r)].report; }
  void waits(int r, std::uint64_t call, double seconds, const char* name = "barrier", int awaits = -1) {
    WatchReport& report = (*this)[r];
    report.moves = 2 * call - 1;
    report.unmoved = seconds;
    report.awaits = awaits;
    std::strncpy(report.call.data(), name, report.call.size() - 1);
  }
  void computes(int r, std::uint64_t calls_made, double seconds) {
    (*this)[r].moves = 2 * calls_made;
    (*this)[r].unmoved = seconds;
  }
  /// The verdict after `rounds` reports of everybody without a change.
  std::string said(int rounds = 7) {
    for (int i = 0; i < rounds; ++i) {
      if (const auto reason = judge.judge(ranks, kLimits)) return *reason;
      for (auto& rank : ranks) ++rank.reports;
    }
    return {};
  }
};

TEST(Watch, NamesTheRankThatComputes) {
  Job job{4};
  for (const int r : {0, 1, 3}) job.waits(r, 17, 101.0 + r, "all_reduce_sum", r == 1 ? 2 : 1);
  job.computes(2, 16, 130.0);
  EXPECT_EQ(job.said(),
            "rank 2 has been computing for 130 s, and rank 1 has waited 102 s for it in all_reduce_sum (call 17)");
}

TEST(Watch, IsPatientUpToTheLimit) {
  Job job{3};
  job.waits(0, 5, 99.0);
  job.waits(1, 5, 99.0);
  job.computes(2, 4, 5000.0);  // nobody has waited that long
  EXPECT_EQ(job.said(), "");
  job.waits(0, 5, 101.0);
  EXPECT_NE(job.said(), "");
}

TEST(Watch, AmongSeveralThatComputeItNamesTheOneBehind) {
  Job job{4};
  job.waits(0, 9, 120.0);
  job.computes(1, 8, 110.0);
  job.computes(2, 7, 20.0);
  job.computes(3, 8, 119.0);
  EXPECT_EQ(job.said(), "rank 2 has been computing for 20 s, and rank 0 has waited 120 s for it in barrier (call 9)");
}

TEST(Watch, LeavesARankMoreTimeBetweenJobs) {
  Job job{2};
  job.waits(1, 9, 900.0);
  job.computes(0, 8, 950.0);
  job[0].phase = WatchPhase::between_jobs;
  EXPECT_EQ(job.said(), "");
  job.waits(1, 9, 1001.0);
  EXPECT_EQ(job.said(), "rank 0 has not come for 950 s, and rank 1 has waited 1001 s for it in barrier (call 9)");
}

TEST(Watch, KnowsARankThatHasEnded) {
  Job job{2};
  job.waits(0, 9, 11.0);
  job.computes(1, 8, 11.0);
  EXPECT_EQ(job.said(), "");
  job[1].phase = WatchPhase::ended;
  EXPECT_EQ(job.said(), "rank 1 has ended, and rank 0 has waited 11 s for it in barrier (call 9)");
}

TEST(Watch, SaysWhereTheyAreWhenAllOfThemWait) {
  Job job{4};
  job.waits(0, 6, 101.0, "an exchange", 3);
  job.waits(1, 6, 101.0, "barrier");
  job.waits(2, 6, 101.0, "an exchange", 1);
  job.waits(3, 7, 101.0, "an exchange", 2);
  EXPECT_EQ(
      job.said(),
      "for 101 s no rank has come on: ranks 0 and 2 in an exchange (call 6), rank 1 in barrier (call 6), rank 3 in "
      "an exchange (call 7); their calls do not match, or the network is down");
}

// Rank 0 has just come, and rank 1's report is from before that.
TEST(Watch, DoesNotTrustOneReport) {
  Job job{2};
  job.waits(1, 5, 500.0);
  job.computes(0, 6, 0.0);
  EXPECT_EQ(job.said(5), "");
  job.computes(1, 5, 0.0);
  EXPECT_EQ(job.said(), "");
  // Nor one that is only repeated because no other has come.
  job.waits(1, 6, 500.0);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(job.judge.judge(job.ranks, kLimits));
}

TEST(Watch, NamesSilentRanks) {
  Job job{12};
  const auto silence = [&](int self) { return judge_silence(job.ranks, self, kLimits.silence).value_or(""); };
  EXPECT_EQ(silence(0), "");
  job.ranks[3].silent = 10.4;
  EXPECT_EQ(silence(0), "rank 3 has not been heard from for 10 s (it died, was stopped, or its host is gone)");
  EXPECT_EQ(silence(3), "");  // a rank does not judge itself
  job.ranks[5].silent = 12.0;
  job.ranks[7].silent = 12.0;
  EXPECT_EQ(silence(0),
            "ranks 3, 5 and 7 have not been heard from for 10 s (they died, were stopped, or their hosts are gone)");
  job.ranks[3].report.last = true;  // it left in good order
  EXPECT_NE(silence(0).find("ranks 5 and 7 have"), std::string::npos);
  for (auto& rank : job.ranks) rank.silent = 11.0;
  EXPECT_NE(silence(0).find("ranks 1, 2, 4, 5, 6, 7, 8, 9 and 2 more have"), std::string::npos);
}

}  // namespace
}  // namespace gradtool::test
