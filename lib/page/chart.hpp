#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/report/table.hpp"

namespace gradtool {

/// The source of a chart's numbers, which stands under the chart.
struct Origin {
  std::string file;     ///< that was read, as it was named
  std::string command;  ///< that wrote it; empty where the file does not say (CSV)
};

/// A figure of the page: a Vega-Lite specification and the one table that it draws. The page, the downloads and
/// `--format svg|png` all use these two.
struct Chart {
  std::string id;     ///< unique on the page: also the name of its files
  std::string title;  ///< text for people
  std::string lead;   ///< what is seen, and how to read it
  int min_width = 0;  ///< pixels that its columns need: on a narrower screen it scrolls; 0: any width will do
  Origin origin;
  nlohmann::ordered_json spec;  ///< without data: refers to the table as the data set "table"
  Table table;
};

/// Values for the blanks in specifications: "@name" becomes this value if it is a whole string; inside a longer string
/// the value is text.
using Blanks = std::map<std::string, nlohmann::ordered_json>;

/// The chart whose specification is lib/page/charts/<name>.vl.json, with its blanks filled in. A blank without a value
/// is an internal error. `suffix` makes the id unique where several files make the same chart.
[[nodiscard]] Chart make_chart(const std::string& name, const std::string& suffix, Origin origin, Table table,
                               const Blanks& blanks);

/// A chart that the input has no numbers for: its title, and the command that would write them.
struct MissingChart {
  std::string title, needs;
  std::string why;  ///< a sentence without its capital and full stop
};
[[nodiscard]] MissingChart missing_chart(const std::string& name, const std::string& why, const Blanks& blanks = {});

/// The specification with its table in it, as the page offers it for download and as --format svg|png draws it.
[[nodiscard]] nlohmann::ordered_json whole_spec(const Chart& chart);

}  // namespace gradtool
