#pragma once

#include <string>
#include <vector>

#include "lib/page/chart.hpp"
#include "lib/page/sources.hpp"

namespace gradtool {

/// The charts that the page draws of one run of analyze.
struct AnalysisFigures {
  std::string title;
  std::vector<std::string> notes;  ///< tensors that were skipped, rows that are not drawn
  std::vector<Chart> charts;
  std::vector<MissingChart> missing;
};

/// `suffix` goes behind the charts' ids.
[[nodiscard]] AnalysisFigures analysis_figures(const AnalysisSource& source, const std::string& suffix);

}  // namespace gradtool
