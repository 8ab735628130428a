#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/advice/acceptance.hpp"
#include "lib/bench/bench.hpp"
#include "lib/report/color.hpp"
#include "lib/tune/search.hpp"

namespace gradtool {

/// The options of one `gradtool tune`.
struct TuneOptions {
  /// File, ranks, granularity, and exactly one network with at most one number of machines. Codecs, timing, rounds and
  /// when to stop are the search's own.
  BenchOptions bench;
  std::vector<std::string> codecs;               ///< whose parameters are searched, as SearchSpace takes them
  double max_error = 0.0;                        ///< largest judged_error() that is accepted
  bool limit_given = false;                      ///< by the user, so that the advice takes it at that word (Acceptance)
  std::shared_ptr<const OwnTrials> trials = {};  ///< --trained: decide about the codecs that they have tried
  double budget_seconds = 60.0;                  ///< for everything; a codec that has been begun is ended

  /// Which errors the advice accepts.
  [[nodiscard]] Acceptance acceptance() const;
};

/// The result of a whole `gradtool tune`.
struct TuneReport {
  /// One round of the search.
  struct Round {
    std::size_t steps = 0;     ///< captured ones, the first of every window, over which it measured
    std::size_t settings = 0;  ///< that it was to measure
    std::size_t measured = 0;  ///< that it did measure: there was time, and the method was at work in these steps
    std::size_t idle = 0;      ///< whose method was not at work in these steps
    std::size_t lost = 0;      ///< that a trial has found to lose, and that are therefore not measured
    std::size_t timeless = 0;  ///< of which the record of --codec-speed has no times
  };
  SearchResult search;
  std::vector<Round> rounds;
  std::vector<std::string>
      left_out;  ///< settings that a trial has tried, for which the budget has no room in the finals
  std::vector<std::string> untried;  ///< names of codecs of which no setting had its turn
  std::size_t steps = 0;             ///< captured
  BenchReport bench;                 ///< none, noop and the finalists, replayed in full
  double seconds = 0.0;              ///< that all took
};

/// Searches with run_bench()'s own measurements, each round in one bench over more of the steps than the one before,
/// then benches the finalists over all steps in as many rounds as `bench.rounds` says. Errors and times of codecs are
/// measured; the network is modelled, as in every bench. The error of a codec that delays what it sends is expected
/// from how it changed over the steps so far. Settings that have lost in a trial are not measured; others of the
/// searched codecs that a trial has tried are among the finalists, as many as the budget has room for. The search takes
/// at most 0.6 of the budget, and begins with one setting of each codec. Throws as run_bench() and
/// expect_times_of_none() do.
[[nodiscard]] TuneReport tune(const TuneOptions& options);

/// The finalists' modelled rows that are within the limit, faster than uncompressed, and not beaten by another in both
/// error and time, the fastest first; what needs a trial beats nothing that needs none. What has learned in a trial is
/// within every limit, and what has lost in none.
/// The report must outlive them.
[[nodiscard]] std::vector<const ResultRow*> tuned_front(const TuneOptions& options, const TuneReport& report);

/// For people: the advice, the front, how to reproduce it, and what the search went over.
[[nodiscard]] std::string tune_text(const TuneOptions& options, const TuneReport& report, Style style);

/// The record of the bench (docs/measuring.md), with `tune`: the limit, each round and each trial.
[[nodiscard]] nlohmann::ordered_json tune_record(const TuneOptions& options, const TuneReport& report);

}  // namespace gradtool
