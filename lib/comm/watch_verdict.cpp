#include "lib/comm/watch_verdict.hpp"
#include "lib/core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace gradtool {
namespace {

/// How many times the limit inside a job a rank may take between two jobs.
constexpr double kBetweenJobs = 10.0;

/// For example "rank 2" or "ranks 1, 2 and 5". Of more than eight ranks it names eight and counts the others.
std::string list_ranks(std::span<const int> ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  constexpr std::size_t kMost = 8;
  if (ranks.size() > kMost) {
    return fmt::format("ranks {} and {} more", joined(ranks.first(kMost), ", "), ranks.size() - kMost);
  }
  return fmt::format("ranks {} and {}", joined(ranks.first(ranks.size() - 1), ", "), ranks.back());
}

std::string call_of(const WatchReport& report) {
  return fmt::format("{} (call {})", report.call.data(), report.moves / 2 + 1);
}

/// Seconds that the others wait before this rank counts as stalled.
double patience(const WatchReport& culprit, const WatchLimits& limits) {
  switch (culprit.phase) {
    case WatchPhase::between_jobs:
      return kBetweenJobs * limits.stall;
    case WatchPhase::ended:
      return std::min(limits.stall, limits.silence);
    default:
      return limits.stall;
  }
}

std::string activity(const WatchReport& culprit) {
  switch (culprit.phase) {
    case WatchPhase::between_jobs:
      return fmt::format("has not come for {:.0f} s", culprit.unmoved);
    case WatchPhase::ended:
    case WatchPhase::failed:
      return "has ended";
    default:
      return fmt::format("has been computing for {:.0f} s", culprit.unmoved);
  }
}

/// Says which ranks wait in which call, beginning with those that have made the fewest calls.
std::string whereabouts(std::span<const WatchedRank> ranks) {
  std::map<std::pair<std::uint64_t, std::string>, std::vector<int>> calls;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const WatchReport& report = ranks[static_cast<std::size_t>(r)].report;
    calls[{report.moves, call_of(report)}].push_back(r);
  }
  constexpr std::size_t kMost = 4;
  std::vector<std::string> parts;
  for (const auto& [call, there] : calls) {
    if (parts.size() < kMost) parts.push_back(fmt::format("{} in {}", list_ranks(there), call.second));
  }
  return fmt::format("{}{}", joined(parts, ", "), calls.size() > kMost ? ", ..." : "");
}

/// The rank that is named as waiting: one that waits for the culprit itself or, when there is none, the one that has
/// waited longest.
int find_witness(std::span<const WatchedRank> ranks, int culprit) {
  int best = -1;
  const auto merit = [&](int r) {
    const WatchReport& report = ranks[static_cast<std::size_t>(r)].report;
    return std::pair{report.awaits == culprit, report.unmoved};
  };
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    if (r == culprit || !ranks[static_cast<std::size_t>(r)].report.waits()) continue;
    if (best < 0 || merit(r) > merit(best)) best = r;
  }
  return best;
}

}  // namespace

std::optional<std::string> judge_silence(std::span<const WatchedRank> ranks, int self, double limit) {
  std::vector<int> silent;
  double shortest = 0.0;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const WatchedRank& rank = ranks[static_cast<std::size_t>(r)];
    if (r == self || rank.report.last || rank.silent <= limit) continue;
    shortest = silent.empty() ? rank.silent : std::min(shortest, rank.silent);
    silent.push_back(r);
  }
  if (silent.empty()) return std::nullopt;
  const bool one = silent.size() == 1;
  return fmt::format(
      "{} {} not been heard from for {:.0f} s ({})", list_ranks(silent), one ? "has" : "have", shortest,
      one ? "it died, was stopped, or its host is gone" : "they died, were stopped, or their hosts are gone");
}

std::optional<Stall> find_stall(std::span<const WatchedRank> ranks, const WatchLimits& limits) {
  Stall stall;
  double longest = 0.0;
  // Ranks that wait for nobody come before ranks that wait; among equals the one with the fewest calls comes first.
  const auto order = [&](int r) {
    const WatchReport& report = ranks[static_cast<std::size_t>(r)].report;
    return std::pair{report.waits(), report.moves};
  };
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const WatchReport& report = ranks[static_cast<std::size_t>(r)].report;
    if (report.waits()) longest = std::max(longest, report.unmoved);
    if (stall.culprit < 0 || order(r) < order(stall.culprit)) stall.culprit = r;
  }
  if (stall.culprit < 0) return std::nullopt;
  if (longest <= patience(ranks[static_cast<std::size_t>(stall.culprit)].report, limits)) return std::nullopt;
  stall.witness = find_witness(ranks, stall.culprit);
  return stall;
}

std::string describe(const Stall& stall, std::span<const WatchedRank> ranks) {
  const WatchReport& culprit = ranks[static_cast<std::size_t>(stall.culprit)].report;
  const WatchReport* witness = stall.witness < 0 ? nullptr : &ranks[static_cast<std::size_t>(stall.witness)].report;
  if (!culprit.waits() && witness != nullptr) {
    return fmt::format("rank {} {}, and rank {} has waited {:.0f} s for it in {}", stall.culprit, activity(culprit),
                       stall.witness, witness->unmoved, call_of(*witness));
  }
  return fmt::format("for {:.0f} s no rank has come on: {}; their calls do not match, or the network is down",
                     culprit.unmoved, whereabouts(ranks));
}

bool StallJudge::repeated(int rank, const Seen& seen, std::span<const WatchedRank> ranks) const {
  return rank < 0 || rank == self_ || ranks[static_cast<std::size_t>(rank)].reports >= seen.reports + kReports;
}

std::optional<std::string> StallJudge::judge(std::span<const WatchedRank> ranks, const WatchLimits& limits) {
  const auto stall = find_stall(ranks, limits);
  if (!stall) {
    suspected_.reset();
    return std::nullopt;
  }
  const auto moves = [&](int rank) { return rank < 0 ? 0 : ranks[static_cast<std::size_t>(rank)].report.moves; };
  const auto reports = [&](int rank) { return rank < 0 ? 0 : ranks[static_cast<std::size_t>(rank)].reports; };
  // The comparison is with the pair that was suspected first, though another rank may have waited longer by now.
  const bool same = suspected_ && suspected_->culprit == stall->culprit && culprit_.moves == moves(stall->culprit) &&
                    witness_.moves == moves(suspected_->witness);
  if (!same) {
    suspected_ = stall;
    culprit_ = {moves(stall->culprit), reports(stall->culprit)};
    witness_ = {moves(stall->witness), reports(stall->witness)};
    return std::nullopt;
  }
  if (!repeated(suspected_->culprit, culprit_, ranks) || !repeated(suspected_->witness, witness_, ranks)) {
    return std::nullopt;
  }
  return describe(*suspected_, ranks);
}

}  // namespace gradtool
