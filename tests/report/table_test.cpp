// Cells as text, tables that refuse what does not fit them, and tables for people.
#include "lib/report/table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

TEST(Table, PrintsTheShortestTextThatReadsBackEqual) {
  for (const double value : {0.1, 1.0 / 3.0, 1e300, 5e-324, -0.0, 123456789.125}) {
    EXPECT_EQ(std::strtod(to_text(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(to_text(0.1), "0.1");
  EXPECT_EQ(to_text(std::int64_t{-42}), "-42");
  EXPECT_EQ(to_text(true), "true");
  EXPECT_EQ(to_text(std::string{"as it is"}), "as it is");
}

TEST(Table, SharesEqualTexts) {
  static_assert(sizeof(Cell) <= 16, "tables of large models have a hundred million cells");
  const std::string name = "model.layers.0.mlp.experts.0.gate.weight";
  const Cell one{name}, same{std::string{name}}, other{"model"};
  EXPECT_EQ(&std::get<Text>(one).str(), &std::get<Text>(same).str());
  EXPECT_EQ(one, same);
  EXPECT_NE(one, other);
  EXPECT_EQ(to_text(one), name);
}

TEST(Table, PrintsWhatPandasReads) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_text(kInfinite), "inf");
  EXPECT_EQ(to_text(-kInfinite), "-inf");
  EXPECT_EQ(to_text(std::nan("")), "nan");
  EXPECT_EQ(to_text(-std::nan("")), "nan");
  EXPECT_EQ(to_text(Cell{}), "");
}

TEST(Table, TakesWholeRowsOnly) {
  Table table{"pairs", {{"first", ""}, {"second", ""}}};
  table.add({1.0, 2.0});
  EXPECT_THROW(table.add({1.0}), Error);
  EXPECT_THROW(table.add({1.0, 2.0, 3.0}), Error);
  EXPECT_EQ(table.rows().size(), 1U);
}

TEST(Table, FindsColumnsByName) {
  Table table{"pairs", {{"first", ""}, {"second", ""}}};
  table.add({1.0, 2.0});
  EXPECT_EQ(std::get<double>(table.at(0, "second")), 2.0);
  EXPECT_THROW(static_cast<void>(table.index_of("third")), Error);
}

TEST(TableForPeople, PadsColumnsToTheirWidestCell) {
  EXPECT_EQ(format_rows({"codec", "ratio"}, {{"topk", "2.5"}, {"powersgd", "125.25"}}, {false, true}),
            "codec      ratio\n"
            "topk         2.5\n"
            "powersgd  125.25\n");
}

TEST(TableForPeople, LeavesHeadingsWhole) {
  EXPECT_EQ(format_rows({"a", "b"}, {{"a heading longer than a cell"}, {"1", "2"}}, {false, true}, 5),
            "a  b\na heading longer than a cell\n1  2\n");
}

TEST(TableForPeople, LeavesLongNamesWholeAboveTheirRow) {
  EXPECT_EQ(format_rows({"name", "x", "y"}, {{"0123456789", "1", ""}, {"short", "2", "3"}}, {false, true, false}, 8),
            "name   x  y\n"
            "0123456789\n"
            "       1\n"
            "short  2  3\n");
  EXPECT_EQ(format_rows({"#", "name", "x"}, {{"7", "0123456789", "1"}, {"8", "short", "2"}}, {true, false, true}, 8),
            "#  name   x\n"
            "7  0123456789\n"
            "          1\n"
            "8  short  2\n");
  EXPECT_EQ(format_rows({"name", "x"}, {{"0123456789", ""}}, {false, true}, 8), "name  x\n0123456789\n");
}

TEST(TableForPeople, CutsNamesOfTensorsInTheMiddle) {
  EXPECT_EQ(cut_in_the_middle("layer.0.weight", 14), "layer.0.weight");
  EXPECT_EQ(cut_in_the_middle("layer.0.weight", 13), "laye...weight");
  EXPECT_EQ(cut_in_the_middle("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", 11), "\u00e9...\u00e9\u00e9")
      << "no half of a character";
}

TEST(TableForPeople, CutsOtherLongCells) {
  EXPECT_EQ(format_rows({"name", "x"}, {{"a", "0123456789"}}, {false, false}, 8),
            "name  x\n"
            "a     01234...\n");
  EXPECT_EQ(format_rows({"name"}, {{"01234567"}}, {false}, 8), "name\n01234567\n");
}

TEST(TableForPeople, LeavesNoBlanksAtTheEndOfALine) {
  EXPECT_EQ(format_rows({"codec", "status"}, {{"topk", ""}, {"dct", "failed"}}, {false, false}),
            "codec  status\n"
            "topk\n"
            "dct    failed\n");
}

TEST(TableForPeople, PrintsAHeaderWithoutRows) {
  EXPECT_EQ(format_rows({"a", "b"}, {}, {false, false}), "a  b\n");
}

TEST(MarkdownRows, PadsShortRowsAndEscapesBars) {
  EXPECT_EQ(markdown_rows({"codec", "ratio"}, {{"a|b", "4"}, {"rest:"}}, {false, true}),
            "| codec | ratio |\n| --- | ---: |\n| a\\|b | 4 |\n| rest: |  |\n");
}

}  // namespace
}  // namespace gradtool::test
