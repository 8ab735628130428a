#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/words.hpp"
#include "lib/model/statistics.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// A run of `gradtool bench`, read back from its JSON record, or from its CSV, which has no samples.
struct BenchRun {
  /// Seconds of each timed step in one phase, and how many of them each round of the bench took; empty: not known.
  struct Samples {
    std::vector<double> seconds;
    std::vector<std::size_t> rounds;
  };
  std::string path;
  Table table = {"bench", {}};
  std::string capture_sha256 = {};  ///< of the capture, which a CSV does not say
  /// For each row of the table the samples of encode, comm, decode and total. A CSV has none.
  std::vector<std::array<Samples, 4>> samples = {};
};

/// Reads a file by its contents. Throws Fault::data for what no bench wrote, and Fault::usage where nothing is there.
[[nodiscard]] BenchRun read_bench_run(const std::string& path);

/// A row of both runs, and a column whose cells differ though they should not.
struct ExactDifference {
  std::string row;     ///< codec with parameters, and what else tells it from others
  std::string column;  ///< of bytes, errors, or status
  Cell a, b;
};

enum class TimeVerdict : std::uint8_t {
  same,    ///< no difference is seen, and one of `margin` would have been
  faster,  ///< B takes less time
  slower,  ///< B takes more time
  unclear  ///< the times are too noisy: even a difference of `margin` would not be seen
};
constexpr auto spellings(TimeVerdict) {
  return words("SAME", "FASTER", "SLOWER", "UNCLEAR");
}

struct TimeDifference {
  std::string row;          ///< without the timing, which the phase tells: total is concurrent, the others are isolated
  std::string phase;        ///< encode, comm, decode or total
  double a = 0.0, b = 0.0;  ///< median seconds
  double ratio = 1.0;       ///< b / a
  /// The interval that holds the ratio with 95 % confidence; empty if a run says nothing of its noise.
  std::optional<Interval> interval = {};
  double p = 1.0;  ///< the probability of a difference at least as large between two runs of the same program
  TimeVerdict verdict = TimeVerdict::unclear;
};

struct CompareOptions {
  double margin = 0.10;    ///< a difference in time that must be seen for a verdict of `same`, relative
  double tolerance = 0.0;  ///< relative, of error columns, for runs on machines whose libraries round differently
  bool times = true;       ///< false: bytes and errors alone
};

struct Comparison {
  std::vector<ExactDifference> changed;
  std::vector<TimeDifference> times;
  std::vector<std::string> only_a, only_b;  ///< rows without a partner
  std::size_t rows = 0;                     ///< of both runs
  std::string other_capture = {};           ///< what tells that B is of another capture than A; empty: nothing does
  std::string other_setting = {};           ///< what makes B's times others than A's, as another communicator
  /// Columns of bytes or errors that one of the runs has and the other, in whatever version, has not.
  std::vector<std::string> columns_only_a = {}, columns_only_b = {};
  bool versions_differ = false;  ///< of the table's schema: then payload bytes and what follows are left out

  /// B is worse, or is not the same where it must be: a byte or an error changed, a row or a column is
  /// gone, a time is slower.
  [[nodiscard]] bool regression() const;
};

/// Compares measured rows that agree in codec, parameters, collective, tensor, granularity, elements, ranks, seed,
/// timing and pipeline. Parameters that only one of two versions knows are left out of the match. Machine, device and
/// threads may differ.
///
/// Bytes, errors and statuses must be the same to the last digit. Times are compared by the difference of log medians.
/// Its standard deviation is bootstrapped (Efron 1979) as median_interval() does, rounds first and samples within them,
/// and corrected for there being few rounds; t-distributed with (rounds of A - 1) + (rounds of B - 1) degrees of
/// freedom it gives `p`. FASTER and SLOWER are those p that Benjamini and Hochberg's procedure (1995) keeps at a false
/// discovery rate of 5 % over all times of the comparison, and no less than half a per cent: two runs of one program
/// have any such verdict in at most one of twenty comparisons, however many rows they have. Phases that take less than
/// a microsecond in both are left out. Modelled rows follow from the measured ones and are left out.
[[nodiscard]] Comparison compare_runs(const BenchRun& a, const BenchRun& b, const CompareOptions& options);

/// For people: counts, then every difference, and with `all` also what is the same. Names in the table are cut behind
/// 26 characters.
[[nodiscard]] std::string to_text(const Comparison& comparison, bool all);
/// The comparison as Markdown, for a pull request.
[[nodiscard]] std::string to_markdown(const Comparison& comparison, bool all);
[[nodiscard]] nlohmann::ordered_json to_json(const Comparison& comparison, const CompareOptions& options);

}  // namespace gradtool
