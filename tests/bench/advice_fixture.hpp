#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "lib/advice/advice.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/bench/result.hpp"
#include "lib/model/network.hpp"

namespace gradtool::test {

/// A codec on the modelled network.
struct Modelled {
  std::string codec;    ///< with parameters
  double ms = 0.0;      ///< of a step, or of an iteration where there is one
  double spread = 0.0;  ///< half the width of the 95 % interval of that time, in ms; below 0: not known
  double error = 0.0;   ///< of a step, and accumulated
};

class Advice : public testing::Test {
 protected:
  Advice() {
    add({.codec = "none", .ms = 100.0});
    add({.codec = "noop", .ms = 1.0, .error = 1.0});
  }
  ResultRow& add(const Modelled& m, int ranks = 8) {
    ResultRow row{parse_codec(m.codec)};
    row.network = Network::parse("10gbe");
    row.ranks = ranks;
    row.measured_ranks = 2;
    row.file = "capture.h5";
    row.granularity = "bucket:25MB";
    row.total = PhaseSummary{.median = m.ms * 1e-3};
    if (m.spread >= 0.0) {
      row.total->low = (m.ms - m.spread) * 1e-3;
      row.total->high = (m.ms + m.spread) * 1e-3;
    }
    row.errors = ErrorSums{.xx = 1.0, .error = m.error};
    row.cumulative_nmse = m.error;
    row.error_correlation = 0.0;
    rows_.push_back(row);
    return rows_.back();
  }
  /// Every row becomes one of an iteration, which hides all but its time beyond `compute_ms`.
  void add_iterations(double compute_ms) {
    for (ResultRow& row : rows_) {
      row.iteration = {.compute_seconds = compute_ms * 1e-3,
                       .seconds = row.total->median,
                       .low = row.total->low,
                       .high = row.total->high};
    }
  }
  /// The advice on one line, because where lines break is not what these tests are about.
  [[nodiscard]] std::string advice(const Acceptance& acceptance = 0.1) const {
    const AdviceText whole = advise(rows_, acceptance);
    const std::string lines = whole.answer + whole.reasons;
    std::string text;
    for (const char c : lines) {
      if (c == '\n') text += ' ';
      if (c != '\n' && !(c == ' ' && text.ends_with(' '))) text += c;
    }
    return text;
  }
  std::vector<ResultRow> rows_;
};

inline bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gradtool::test
