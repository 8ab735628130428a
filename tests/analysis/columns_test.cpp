#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "feed.hpp"
#include "lib/analysis/noise_scale.hpp"
#include "lib/analysis/prediction.hpp"

namespace gradtool::test {
namespace {

/// docs/analysis.md describes every column in the words of the program, table by table.
TEST(Documentation, ColumnsAreThoseOfTheTables) {
  std::ifstream file{GRADTOOL_DOCS "/analysis.md"};
  std::stringstream text;
  text << file.rdbuf();
  const std::string docs = text.str();

  Capture capture{2, 2};
  capture.add(vector_of(10), [](auto, auto, std::size_t i) { return static_cast<double>(i); });
  std::vector<std::unique_ptr<Analysis>> analyses;
  analyses.push_back(make_spectrum(capture.scope));
  analyses.push_back(make_correlation(capture.scope, 128, 0));
  analyses.push_back(make_variance(capture.scope));
  analyses.push_back(make_noise(capture.scope));
  if (spectrum_available()) analyses.push_back(make_transforms(capture.scope));
  analyses.push_back(make_steps(capture.scope));
  analyses.push_back(make_gradiveq(capture.scope, 128, 0));
  analyses.push_back(make_low_rank(capture.scope));
  analyses.push_back(make_certainty(capture.scope));
  analyses.push_back(make_losses(capture.scope));
  analyses.push_back(make_distribution(capture.scope));
  std::vector<Table> tables{predict({})};
  for (const auto& analysis : analyses) {
    for (auto& table : run(*analysis, capture)) tables.push_back(std::move(table));
  }
  for (const auto& table : tables) {
    std::string section = "| column | meaning |\n| --- | --- |\n";
    for (const auto& column : table.columns()) section += "| `" + column.name + "` | " + column.meaning + " |\n";
    const std::string marked = "<!-- columns of " + table.name() + ".csv -->\n" + section + "<!-- end -->";
    EXPECT_NE(docs.find(marked), std::string::npos) << "docs/analysis.md should hold:\n" << marked;
  }
}

}  // namespace
}  // namespace gradtool::test
