#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <fstream>
#include <sstream>

#include "feed.hpp"
#include "lib/analysis/noise_scale.hpp"
#include "lib/analysis/prediction.hpp"

namespace gradtool::test {
namespace {

using Columns = std::span<const Column>;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream{text};
  return {std::istream_iterator<std::string>{stream}, {}};
}

/// "1, 5 or 10" of words that stand at one place of several meanings, "1, 5 or 10;" where each ends in a semicolon.
std::string alternatives(std::vector<std::string> words) {
  std::string end;
  const char mark = words[0].back();
  const auto marked = [&](const std::string& word) { return word.ends_with(mark); };
  if (std::string_view{",;:"}.find(mark) != std::string_view::npos && std::ranges::all_of(words, marked)) {
    end = mark;
    for (std::string& word : words) word.pop_back();
  }
  const std::string last = words.back();
  words.pop_back();
  return fmt::format("{} or {}{}", fmt::join(words, ", "), last, end);
}

std::vector<std::size_t> different_places(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) places.push_back(i);
  }
  return places;
}

/// The lines of a table in the document. Columns beside each other whose meanings differ in one word at most share a
/// line.
std::string lines_of(Columns columns) {
  std::string lines;
  while (!columns.empty()) {
    std::vector<std::string> words = words_of(columns[0].meaning), names{columns[0].name}, alike;
    std::vector<std::size_t> places;
    for (const Column& column : columns.subspan(1)) {
      const std::vector<std::string> next = words_of(column.meaning);
      if (next.size() != words.size()) break;
      const std::vector<std::size_t> here = different_places(words, next);
      if (names.size() == 1) places = here;
      if (here.size() > 1 || here != places) break;
      names.push_back(column.name);
      if (!here.empty()) alike.push_back(next[here[0]]);
    }
    columns = columns.subspan(names.size());
    if (!alike.empty()) {
      alike.insert(alike.begin(), words[places[0]]);
      words[places[0]] = alternatives(alike);
    }
    const std::string meaning =
        boost::algorithm::replace_all_copy(fmt::format("{}", fmt::join(words, " ")), "|", "&#124;");
    lines += fmt::format("| `{}` | {} |\n", fmt::join(names, "` `"), meaning);
  }
  return lines;
}

std::size_t common_start(Columns columns, Columns start) {
  const auto same = [](const Column& a, const Column& b) { return a.name == b.name && a.meaning == b.meaning; };
  return static_cast<std::size_t>(std::ranges::mismatch(columns, start, same).in1 - columns.begin());
}

const Table& named(const std::vector<Table>& tables, std::string_view name) {
  return *std::ranges::find(tables, name, [](const Table& table) { return table.name(); });
}

/// docs/analysis.md describes every column in the words of the program, table by table. The columns with which many
/// tables begin stand there once.
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
  const Columns of_tensors = Columns{named(tables, "steps").columns()}.first(11);
  const Columns of_curves = Columns{named(tables, "step_lags").columns()}.first(4);
  const auto expect = [&](const std::string& lines) {
    const std::size_t at = docs.find(lines);
    EXPECT_NE(at, std::string::npos) << "docs/analysis.md should hold:\n" << lines;
    if (at == std::string::npos) return;
    EXPECT_FALSE(std::string_view{docs}.substr(at + lines.size()).starts_with("| `")) << "too many columns after:\n"
                                                                                      << lines;
  };
  expect("| **tables of tensors** | one row for each tensor, and `all` |\n" + lines_of(of_tensors));
  expect("| **tables of curves** | several rows for each tensor, and `all` |\n" + lines_of(of_curves));
  for (const auto& table : tables) {
    const Columns columns{table.columns()};
    const std::size_t tensors = common_start(columns, of_tensors);
    const std::size_t curves = common_start(columns, of_curves);
    const std::size_t common = std::max(tensors, curves);
    ASSERT_GE(common, 1U) << table.name();
    const std::string kind = tensors == of_tensors.size() ? "of tensors"
                             : curves == of_curves.size() ? "of curves"
                                                          : "of curves, up to `" + columns[common - 1].name + "`";
    expect("| **`" + table.name() + ".csv`** | begins as tables " + kind + " |\n" + lines_of(columns.subspan(common)));
  }
}

}  // namespace
}  // namespace gradtool::test
