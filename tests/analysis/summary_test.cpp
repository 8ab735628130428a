#include "lib/analysis/summary.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "feed.hpp"

namespace gradtool::test {
namespace {

Capture many_tensors() {
  Capture capture{6, 2};
  const auto noise = normal(1 << 14, 60);
  for (int t = 0; t < 30; ++t) {
    capture.add(vector_of(100 + 20 * t, "a.tensor.with.a.rather.long.name." + std::to_string(t)),
                [&, t](std::size_t s, std::size_t w, std::size_t i) {
                  return 1e-3 * noise[(s * 1000 + w * 500 + i + t) % noise.size()];
                });
  }
  capture.add(vector_of(5000, "bad"), [](auto, auto, auto) { return NAN; });
  return capture;
}

TEST(Summary, HasOneRowForEachTensorAndFitsATerminal) {
  const Capture capture = many_tensors();
  std::vector<Table> tables;
  for (auto make : {+[](const Scope& s) { return make_spectrum(s); }, +[](const Scope& s) { return make_variance(s); },
                    +[](const Scope& s) { return make_correlation(s, 128, 0); }}) {
    const auto analysis = make(capture.scope);
    for (auto& table : run(*analysis, capture)) tables.push_back(std::move(table));
  }
  const Table summary = summarise(tables);
  EXPECT_EQ(summary.rows().size(), 32U);
  EXPECT_EQ(to_text(summary.at(31, "tensor")), "all");
  EXPECT_EQ(to_text(summary.at(30, "status")), "skipped");
  EXPECT_GT(number(summary, 0, "raw_share_15"), 0.4);
  EXPECT_EQ(summary.at(3, "pass_share_1"), tables[2].at(3, "pass_share_1"));

  const std::string text = describe(summary);
  std::istringstream lines{text};
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 100U) << line;
  EXPECT_LE(count, 22U) << text;
  EXPECT_NE(text.find("skipped"), std::string::npos) << text;
  EXPECT_NE(text.find("Low rank: 99 % of the variance of 6 steps"), std::string::npos) << text;
}

TEST(Summary, OfOneAnalysisLeavesTheOthersOut) {
  const Capture capture = many_tensors();
  const auto analysis = make_variance(capture.scope);
  const Table summary = summarise(run(*analysis, capture));
  const auto& columns = summary.columns();
  EXPECT_TRUE(std::none_of(columns.begin(), columns.end(), [](const Column& c) { return c.name == "fft_share_15"; }));
  const std::string text = describe(summary);
  EXPECT_EQ(text.find("Frequencies"), std::string::npos);
  EXPECT_NE(text.find("Variance test (over workers)"), std::string::npos) << text;
}

/// Returns what the summary prints of a capture with one matrix: the part of all workers, and the noise of each.
std::string text_of_matrix(std::size_t rows, std::size_t columns, std::size_t rank, double noise) {
  const auto left = normal(rows * rank, 70), right = normal(columns * rank, 71), own = normal(1 << 14, 72);
  Capture capture{2, 4};
  TensorInfo info;
  info.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)}, info.kind = "linear";
  capture.add(info, [&](std::size_t s, std::size_t w, std::size_t i) {
    double value = noise * own[(s * 5003 + w * 1009 + i) % own.size()];
    for (std::size_t k = 0; k < rank; ++k) value += left[i / columns * rank + k] * right[i % columns * rank + k];
    return value;
  });
  capture.add(vector_of(500), [](auto, auto, std::size_t i) { return static_cast<double>(i % 7); });
  return describe(summarise(run(*make_low_rank(capture.scope), capture)));
}

TEST(Summary, SaysWhereMatricesAreOfLowRank) {
  const std::string planted = text_of_matrix(32, 48, 3, 0.1);
  EXPECT_NE(planted.find("Matrices: in 1 of 1"), std::string::npos) << planted;
  const std::string full = text_of_matrix(32, 48, 32, 0.1);
  EXPECT_EQ(full.find("Matrices:"), std::string::npos) << full;
  const std::string narrow = text_of_matrix(4, 300, 3, 0.1);
  EXPECT_EQ(narrow.find("Matrices:"), std::string::npos) << "four rows have no more than four directions: " << narrow;
}

}  // namespace
}  // namespace gradtool::test
