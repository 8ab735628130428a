// One table of columns: the CSV, the JSON record, `gradtool list columns` and docs/columns.md have the same ones.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lib/bench/result.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"

namespace gradtool::test {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& column : bench_columns()) names.push_back(column.name);
  return names;
}

/// A row that is as full as a measured one can be.
ResultRow full_row() {
  ResultRow row{parse_codec("qsgd:bits=4")};
  row.scheme = Scheme::gather;
  row.elements = 1000;
  row.ranks = 4;
  row.comm = "threads";
  row.all_reduce = "ring";
  row.bytes = {.payload = 500.0,
               .payload_max = 510.5,
               .wire_per_rank = 1500.5,
               .values_sent = 250.0,
               .fewest_values_sent = 200.0};
  row.errors = ErrorSums{.elements = 1000, .xx = 4.0, .yy = 4.0, .xy = 3.0, .error = 1.0};
  row.cumulative_nmse = 0.25;
  row.encode = PhaseSummary{.median = 1e-6, .p95 = 3e-6, .min = 0.5e-6, .noise = 0.25};
  row.decode = row.communicate = row.encode;
  row.copy_rate = 2e9;
  row.samples.resize(20);
  return row;
}

Cell cell(const ResultRow& row, const std::string& column) {
  return to_table(std::span{&row, 1}).at(0, column);
}

TEST(Columns, HaveNamesOfTheirOwnAndAMeaning) {
  std::set<std::string> seen;
  for (const auto& column : bench_columns()) {
    EXPECT_TRUE(seen.insert(column.name).second) << column.name << " stands twice";
    EXPECT_EQ(column.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << column.name;
    EXPECT_FALSE(column.meaning.empty()) << column.name;
  }
}

TEST(Columns, AreTheHeaderOfTheCsvAndTheKeysOfTheJson) {
  const ResultRow row = full_row();
  const Table table = to_table(std::span{&row, 1});
  std::ostringstream csv;
  write_csv(csv, table);
  std::istringstream header{csv.str().substr(0, csv.str().find('\n'))};
  std::vector<std::string> in_csv;
  for (std::string name; std::getline(header, name, ',');) in_csv.push_back(name);
  EXPECT_EQ(in_csv, names());
  std::vector<std::string> in_json;
  const auto json = to_json(table);
  for (const auto& [key, value] : json[0].items()) in_json.push_back(key);
  EXPECT_EQ(in_json, names());
}

TEST(Columns, OfTheCsvEndWithTheParametersOfAllCodecsInIt) {
  std::vector<ResultRow> rows;
  for (const char* codec : {"none", "qsgd:bits=2", "topk:ratio=0.25,gate=64", "powersgd:rank=3"})
    rows.emplace_back(parse_codec(codec));
  const Table table = csv_table(rows);
  const auto& columns = table.columns();
  ASSERT_GT(columns.size(), names().size());
  for (std::size_t i = 0; i < columns.size(); ++i)
    EXPECT_EQ(columns[i].name.starts_with("params."), i >= names().size()) << columns[i].name;
  const auto of = [&table](const char* column) {
    return std::vector{table.at(0, column), table.at(1, column), table.at(2, column), table.at(3, column)};
  };
  EXPECT_EQ(of("params.bits"), (std::vector{Cell{}, Cell{std::int64_t{2}}, Cell{}, Cell{}}));
  EXPECT_EQ(of("params.ratio"), (std::vector{Cell{}, Cell{}, Cell{0.25}, Cell{}}));
  EXPECT_EQ(of("params.rank"), (std::vector{Cell{}, Cell{}, Cell{}, Cell{std::int64_t{3}}}));
  EXPECT_EQ(of("params.gate"), (std::vector{Cell{}, Cell{}, Cell{std::int64_t{64}}, Cell{}}));
  EXPECT_EQ(of("params.ef"), (std::vector{Cell{}, Cell{}, Cell{std::string{"on"}}, Cell{std::string{"on"}}}))
      << "also where it is a default";
}

/// Neither a column that the document lacks nor one that is no longer there.
TEST(Columns, AreThoseOfTheDocumentInItsOrder) {
  std::ifstream file{GRADTOOL_SOURCE_DIR "/docs/columns.md"};
  ASSERT_TRUE(file);
  std::vector<std::string> documented;
  bool table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| column | meaning |")) table = true;
    if (table && !line.starts_with('|')) break;
    if (table && line.starts_with("| `")) documented.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(documented, names());
}

TEST(Columns, ReadARowsNumbersInTheirUnits) {
  const ResultRow row = full_row();
  EXPECT_EQ(cell(row, "codec"), Cell{std::string{"qsgd"}});
  EXPECT_EQ(cell(row, "aggregation"), Cell{std::string{"gather"}});
  EXPECT_EQ(cell(row, "time_source"), Cell{std::string{"measured"}});
  EXPECT_EQ(cell(row, "raw_bytes"), Cell{std::int64_t{4000}});
  EXPECT_EQ(cell(row, "payload_bytes"), Cell{std::int64_t{500}}) << "a whole mean is a count";
  EXPECT_EQ(cell(row, "wire_bytes_per_rank"), Cell{1500.5});
  EXPECT_EQ(cell(row, "payload_bytes_max"), Cell{510.5});
  EXPECT_EQ(cell(row, "element_ratio"), Cell{4.0});
  EXPECT_EQ(cell(row, "element_ratio_max"), Cell{5.0});
  EXPECT_EQ(cell(row, "payload_ratio"), Cell{8.0});
  EXPECT_EQ(cell(row, "wire_ratio"), Cell{2.0 * 3.0 / 4.0 * 4000.0 / 1500.5});
  EXPECT_EQ(cell(row, "bits_per_element"), Cell{4.0});
  EXPECT_EQ(cell(row, "nmse"), Cell{0.25});
  EXPECT_EQ(cell(row, "encode_us_median"), Cell{1e-6 * 1e6});
  EXPECT_EQ(cell(row, "encode_us_p95"), Cell{3e-6 * 1e6});
  EXPECT_EQ(cell(row, "comm_noise"), Cell{0.25});
  EXPECT_EQ(cell(row, "samples"), Cell{std::int64_t{20}});
  EXPECT_DOUBLE_EQ(row.encode_gb_s().value(), 4.0);
  EXPECT_DOUBLE_EQ(row.wire_gb_s().value(), 1.5005);
  EXPECT_DOUBLE_EQ(row.encode_share().value(), 4500.0 / 4000.0);                // in the time of a copy of 2000 bytes
  EXPECT_DOUBLE_EQ(row.decode_share().value(), (4 * 500.0 + 8000.0) / 4000.0);  // a gather decodes four payloads
}

TEST(Columns, HaveNoShareOfMemcpyWhereTwoCodecsTookTheTime) {
  ResultRow row = full_row();
  row.inner = parse_codec("bf16");
  for (const char* column : {"encode_share", "decode_share"}) EXPECT_EQ(cell(row, column), Cell{}) << column;
}

TEST(Columns, AreEmptyForWhatARowDoesNotHave) {
  ResultRow row{parse_codec("topk")};
  row.status = ResultRow::Status::skipped;
  row.message = "no tensor has only finite values";
  row.granularity = "model";
  const std::set<std::string> known{
      "schema_version", "run_id", "status",      "message",        "codec",       "params",
      "aggregation",    "file",   "model",       "tensor",         "granularity", "elements",
      "first_step",     "ranks",  "last_step",   "comm",           "device",      "threads",
      "dtype",          "seed",   "time_source", "timing",         "pipeline",    "all_reduce",
      "raw_bytes",      "op",     "quantity",    "baseline_dtype", "averaged"};
  for (const auto& column : bench_columns()) {
    const bool empty = std::holds_alternative<std::monostate>(column.cell(row));
    EXPECT_EQ(empty, !known.contains(column.name)) << column.name;
  }
  EXPECT_EQ(cell(row, "status"), Cell{std::string{"skipped"}});
}

TEST(Columns, OfAModelledRowNameItsNetworkAndKeepNoCount) {
  ResultRow row = full_row();
  row.network = Network::parse("lab:alpha=5us,beta=12.5GBps");
  row.bytes->wire_per_rank = 1500.0;
  row.iteration = {.compute_seconds = 0.012, .overlap = Overlap::none, .seconds = 0.015};
  EXPECT_EQ(cell(row, "time_source"), Cell{std::string{"modelled"}});
  EXPECT_EQ(cell(row, "network"), Cell{std::string{"lab:alpha=5us,beta=12.5GBps"}});
  EXPECT_DOUBLE_EQ(std::get<double>(cell(row, "alpha_us")), 5.0);
  EXPECT_DOUBLE_EQ(std::get<double>(cell(row, "link_gbit_s")), 100.0);
  EXPECT_EQ(cell(row, "wire_bytes_per_rank"), Cell{1500.0}) << "a real number, though it is whole";
  EXPECT_EQ(cell(row, "overlap"), Cell{std::string{"none"}});
  EXPECT_DOUBLE_EQ(std::get<double>(cell(row, "scaling_efficiency")), 0.8);
  for (const char* column : {"all_reduce", "encode_gb_s", "encode_share", "wire_gb_s"})
    EXPECT_EQ(cell(row, column), Cell{}) << column;
}

TEST(Columns, OfOtherCollectivesCompareWithTheirOwnBytes) {
  ResultRow row = full_row();
  row.ranks = row.measured_ranks = 4;
  const double n = row.raw_bytes();
  row.total = PhaseSummary{.median = 1e-3};
  row.op = Collective::reduce_scatter;
  EXPECT_DOUBLE_EQ(row.busbw_gb_s().value(), row.algbw_gb_s().value() * 0.75);  // nccl-tests: (p - 1) / p
  EXPECT_DOUBLE_EQ(row.wire_ratio().value(), 0.75 * n / row.bytes->wire_per_rank);
  EXPECT_DOUBLE_EQ(row.payload_ratio().value(), n / row.bytes->payload);
  row.op = Collective::all_gather;  // a rank encodes a quarter
  EXPECT_DOUBLE_EQ(row.payload_ratio().value(), n / 4.0 / row.bytes->payload);
  EXPECT_DOUBLE_EQ(row.encode_gb_s().value(), n / 4.0 / row.encode->median / 1e9);
  EXPECT_DOUBLE_EQ(row.bits_per_element().value(), 8.0 * row.bytes->payload / (n / 16.0));
  row.op = Collective::all_reduce;
  EXPECT_DOUBLE_EQ(row.busbw_gb_s().value(), row.algbw_gb_s().value() * 1.5);
}

TEST(Columns, NameTheParametersAlsoOfACodecWithoutAny) {
  EXPECT_EQ(cell(ResultRow{parse_codec("bf16")}, "params"), Cell{std::string{"default"}});
}

TEST(Columns, WriteSeedsThatAreTooLargeForAnIntegerAsText) {
  ResultRow row = full_row();
  row.seed = 7;
  EXPECT_EQ(cell(row, "seed"), Cell{std::int64_t{7}});
  row.seed = ~std::uint64_t{0};
  EXPECT_EQ(cell(row, "seed"), Cell{std::string{"18446744073709551615"}});
}

}  // namespace
}  // namespace gradtool::test
