// CSV as RFC 4180 has it, and files that are whole or not there.
#include "lib/report/csv.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

namespace fs = std::filesystem;

std::string csv_of(const Table& table) {
  std::ostringstream out;
  write_csv(out, table);
  return out.str();
}

std::string contents(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

Table one_text(const std::string& text) {
  Table table{"texts", {{"text", "any"}, {"after", "stands behind it"}}};
  table.add({text, std::int64_t{7}});
  return table;
}

TEST(Csv, QuotesNamesOfColumnsAsItQuotesTexts) {
  const Table table{"times",
                    {{"modelled_link:alpha=5us,beta=1Gbps_seconds", "a network's"}, {"after", "stands behind it"}}};
  EXPECT_EQ(csv_of(table), "\"modelled_link:alpha=5us,beta=1Gbps_seconds\",after\n");
}

TEST(Csv, HasOneHeaderLineAndOneLineForEachRow) {
  Table table{"numbers", {{"name", "text"}, {"count", "integer"}, {"share", "real"}, {"yes", "truth"}}};
  EXPECT_EQ(csv_of(table), "name,count,share,yes\n");
  table.add({std::string{"a"}, std::int64_t{-3}, 0.1, true});
  table.add({std::string{}, std::int64_t{1} << 62, std::numeric_limits<double>::infinity(), false});
  EXPECT_EQ(csv_of(table), "name,count,share,yes\na,-3,0.1,true\n,4611686018427387904,inf,false\n");
}

TEST(Csv, LeavesOutWhatWasNotMeasured) {
  Table table{"empty", {{"first", ""}, {"second", ""}, {"third", ""}}};
  table.add({{}, 0.0, {}});
  EXPECT_EQ(csv_of(table), "first,second,third\n,0,\n");
}

TEST(Csv, QuotesWhatWouldEndAField) {
  EXPECT_EQ(csv_of(one_text("bits=4,bucket=512")), "text,after\n\"bits=4,bucket=512\",7\n");
  EXPECT_EQ(csv_of(one_text("he said \"no\"")), "text,after\n\"he said \"\"no\"\"\",7\n");
  EXPECT_EQ(csv_of(one_text("two\nlines")), "text,after\n\"two\nlines\",7\n");
  EXPECT_EQ(csv_of(one_text("a\rb")), "text,after\n\"a\rb\",7\n");
  EXPECT_EQ(csv_of(one_text("plain; text")), "text,after\nplain; text,7\n");
}

TEST(Csv, IsUtf8WhateverFilesAreCalled) {
  EXPECT_EQ(csv_of(one_text("a\xff.h5")), "text,after\na\xef\xbf\xbd.h5,7\n");
  EXPECT_EQ(csv_of(one_text("gr\xc3\xb6\xc3\x9f"
                            "e,\xc3")),
            "text,after\n\"gr\xc3\xb6\xc3\x9f"
            "e,\xef\xbf\xbd\",7\n");
}

/// A folder of this test's own, removed at its end.
class CsvFile : public testing::Test {
 protected:
  CsvFile() { fs::create_directories(folder_); }
  ~CsvFile() override { fs::remove_all(folder_); }
  /// The fault with which `work` ends.
  template <class Work>
  static Fault fault_of(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.fault();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
  fs::path folder_ = fs::temp_directory_path() / ("gradtool-report-" + std::to_string(getpid()));
};

TEST_F(CsvFile, IsWrittenWholeWithItsFolders) {
  const fs::path path = folder_ / "new" / "table.csv";
  save_csv(path.string(), one_text("old"));
  save_csv(path.string(), one_text("new"));
  EXPECT_EQ(contents(path), "text,after\nnew,7\n");
  EXPECT_EQ(std::distance(fs::directory_iterator{path.parent_path()}, {}), 1) << "a temporary file was left behind";
}

TEST_F(CsvFile, IsRefusedWhereItCannotBe) {
  const std::string file_as_parent = (folder_ / "file" / "table.csv").string();
  std::ofstream{folder_ / "file"} << "text";
  EXPECT_EQ(fault_of([&] { save_csv(file_as_parent, one_text("x")); }), Fault::backend);
  EXPECT_EQ(fault_of([&] { expect_writable(file_as_parent); }), Fault::backend);
  EXPECT_EQ(fault_of([&] { expect_writable(folder_.string()); }), Fault::backend);
  EXPECT_EQ(contents(folder_ / "file"), "text");
}

TEST_F(CsvFile, IsNotTouchedByTheQuestionWhetherItCanBe) {
  const fs::path path = folder_ / "table.csv";
  expect_writable(path.string());
  EXPECT_TRUE(fs::is_empty(folder_));
  std::ofstream{path} << "kept";
  expect_writable(path.string());
  EXPECT_EQ(contents(path), "kept");
}

TEST_F(CsvFile, IsTheSameWhereATableIsWrittenInParts) {
  Table table{"long", {{"text", "any"}, {"number", "any"}}};
  for (std::int64_t i = 0; i < 70'000; ++i) table.add({"a, b and 20 letters more", static_cast<double>(i) / 7});
  const fs::path path = folder_ / "long.csv";
  save_csv(path.string(), table);
  const std::string whole = csv_of(table);
  EXPECT_GT(whole.size(), std::size_t{2} << 20);
  EXPECT_TRUE(contents(path) == whole);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 70'001);
}

TEST_F(CsvFile, NeverReplacesAnHdf5File) {
  const fs::path path = folder_ / "capture.h5";
  const std::string capture = "\x89HDF\r\n\x1a\n and hours of training";
  std::ofstream{path, std::ios::binary} << capture;
  EXPECT_EQ(fault_of([&] { expect_writable(path.string()); }), Fault::usage);
  EXPECT_EQ(fault_of([&] { save_csv(path.string(), one_text("x")); }), Fault::usage);
  EXPECT_EQ(contents(path), capture);
}

}  // namespace
}  // namespace gradtool::test
