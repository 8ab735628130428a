#include "lib/page/records.hpp"
#include "lib/advice/record.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/bench/bench.hpp"
#include "lib/page/assets.hpp"
#include "lib/page/chart.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"
#include "tests/core/fault.hpp"

namespace gradtool {
namespace {

std::string csv_of(const Table& table) {
  std::ostringstream out;
  write_csv(out, table);
  return out.str();
}

ResultRow measured_row() {
  ResultRow row{parse_codec("topk:ratio=0.05")};
  row.run_id = "run";
  row.scheme = Scheme::gather;
  row.granularity = "bucket:25MB";
  row.elements = 1000;
  row.ranks = row.measured_ranks = 4;
  row.comm = "threads";
  row.device = "cpu";
  row.bytes = StepBytes{
      .payload = 400.0, .payload_max = 400.0, .wire_per_rank = 1200.0, .values_sent = 50.0, .fewest_values_sent = 50.0};
  row.errors = ErrorSums{.elements = 1000, .xx = 2.0, .error = 0.5};
  row.cumulative_nmse = 0.125;
  row.error_correlation = 0.0625;
  row.lost_signs = 0.25;
  row.encode = PhaseSummary{.median = 1e-3, .low = 0.9e-3, .high = 1.2e-3};
  row.communicate = PhaseSummary{.median = 2e-3};
  row.decode = PhaseSummary{.median = 3e-3, .low = 2.9e-3, .high = 3.3e-3};
  UnitProfile unit;
  unit.encode = 1e-3;
  unit.decode = 3e-3;
  add_use(unit.uses, "all_gather", 400.0);
  row.units.push_back(unit);
  return row;
}

/// A row of --received has no threads, no bytes on a wire and no codec that could be looked up.
TEST(Records, MeansOfAnotherProgramAreReadBack) {
  ResultRow row{received_spec("folder/a,b.h5")};
  row.granularity = "tensor";
  row.elements = 1000;
  row.ranks = row.measured_ranks = 4;
  row.errors = ErrorSums{.elements = 1000, .xx = 2.0, .error = 0.5};
  row.worst_nmse = 0.3;
  const std::string text = csv_of(to_table({&row, 1}));
  const BenchRecord record = read_bench(table_from_csv("bench", text, "here"), nullptr, "here");
  ASSERT_EQ(record.rows.size(), 1U);
  EXPECT_TRUE(record.unknown_codecs.empty());
  const ResultRow& read = record.rows.front();
  EXPECT_TRUE(read.received());
  EXPECT_EQ(spec_of(read), "received:file=a,b.h5");
  EXPECT_EQ(judged_error(read), 0.3);
  EXPECT_FALSE(read.bytes || read.encode || read.total);
  EXPECT_EQ(csv_of(to_table({&read, 1})).find("nan"), std::string::npos);
  for (const char* column : {"aggregation", "comm", "device", "threads", "seed", "all_reduce", "payload_bytes",
                             "wire_bytes_per_rank", "reached", "encode_us_median", "total_us_median", "codec_nmse"})
    EXPECT_EQ(text_at(record.table, 0, column), "") << column;
}

TEST(Records, CellsPrintAsTheyDidInTheCsv) {
  const std::string text =
      "name,value\n007,0.30000000000000004\n\"a \"\"quoted\"\", one\",inf\n\"two\nlines\",-12\n1e5,1e+30\ntrue,\n";
  EXPECT_EQ(csv_of(table_from_csv("t", text, "here")), text);
}

TEST(Records, NumbersOfCsvAreNumbersAndNamesAreNot) {
  const Table table = table_from_csv("t", "name,value\n007,12\n1e5,0.5\n", "here");
  EXPECT_EQ(table.at(0, "name"), Cell{std::string{"007"}});
  EXPECT_EQ(number_at(table, 0, "value"), 12.0);
  EXPECT_EQ(number_at(table, 1, "value"), 0.5);
  EXPECT_EQ(number_at(table, 1, "name"), std::nullopt);
  EXPECT_EQ(number_at(table, 1, "absent"), std::nullopt);
}

TEST(Records, JsonAndCsvOfATableReadAlike) {
  Table table{"t", {{"text", ""}, {"whole", ""}, {"real", ""}, {"truth", ""}}};
  table.add({std::string{"a,b"}, std::int64_t{-3}, 0.1, true});
  table.add({Cell{}, Cell{}, std::numeric_limits<double>::infinity(), Cell{}});
  EXPECT_EQ(csv_of(table_from_json("t", to_json(table), "here")), csv_of(table));
  EXPECT_EQ(csv_of(table_from_csv("t", csv_of(table), "here")), csv_of(table));
}

TEST(Records, BrokenTablesSayWhere) {
  EXPECT_NE(test::message_of(Fault::data, [&] { static_cast<void>(table_from_csv("t", "a,b\n1\n", "x.csv")); }), "");
  EXPECT_NE(test::message_of(Fault::data, [&] { static_cast<void>(table_from_csv("t", "a\n\"open\n", "x.csv")); }), "");
  EXPECT_NE(test::message_of(Fault::data,
                             [&] {
                               static_cast<void>(table_from_json("t", nlohmann::ordered_json{{"a", 1}}, "x.json"));
                             }),
            "");
}

TEST(Records, ARowReadBackIsJudgedAndModelledAsTheOneThatWasWritten) {
  std::vector<ResultRow> written{measured_row()};
  nlohmann::ordered_json json = to_json(to_table(written));
  json[0]["name"] = short_name(written[0]);
  json[0]["units"] = {{{"ready", 1.0},
                       {"encode_us", 1000.0},
                       {"decode_us", 3000.0},
                       {"collectives", {{{"kind", "all_gather"}, {"calls", 1.0}, {"bytes", 400.0}}}}}};
  const BenchRecord record = read_bench(table_from_json("bench", json, "here"), &json, "here");
  ASSERT_EQ(record.rows.size(), 1U);
  std::vector<ResultRow> read = record.rows;
  EXPECT_EQ(short_name(read[0]), "topk:ratio=0.05");
  EXPECT_DOUBLE_EQ(judged_error(read[0]), judged_error(written[0]));
  const std::vector<Network> networks{Network::parse("10gbe")};
  const std::vector<int> machines{64};
  const std::vector<double> tensor_bytes{4000.0};
  const ModelSetting setting{.networks = networks, .machines = machines, .tensor_bytes = tensor_bytes};
  add_modelled(written, setting);
  add_modelled(read, setting);
  ASSERT_EQ(read.size(), 2U);
  EXPECT_DOUBLE_EQ(judged_seconds(read[1]), judged_seconds(written[1]));
  EXPECT_DOUBLE_EQ(judged_interval(read[1]).high, judged_interval(written[1]).high);
  EXPECT_GT(judged_seconds(read[1]), 16.0 * 3e-3) << "a gather decodes the payloads of 64 ranks, not of 4";
}

TEST(Records, ARowInTwoLevelsIsModelledAsTheOneThatWasWritten) {
  std::vector<ResultRow> written{measured_row()};
  ResultRow& row = written[0];
  row.level_node = row.measured_node = 2;
  row.inner = parse_codec("none");
  row.scheme = Scheme::gather;
  row.units[0].decode_across = 2e-3;
  row.units[0].uses = no_uses();
  add_use(row.units[0].uses, "all_gather", 200.0, false, false, Level::across, 2);
  BenchOptions options;
  options.sizes = {4000};
  options.codecs = {row.codec};
  BenchReport report;
  report.rows = written;
  const nlohmann::ordered_json json = record(options, report)["rows"];
  const BenchRecord back = read_bench(table_from_json("bench", json, "here"), &json, "here");
  ASSERT_EQ(back.rows.size(), 1U);
  std::vector<ResultRow> read = back.rows;
  const std::vector<Network> networks{Network::parse("10gbe:node=8,inner=nvlink")};
  const std::vector<int> machines{64};
  const ModelSetting setting{.networks = networks, .machines = machines, .tensor_bytes = {}};
  add_modelled(written, setting);
  add_modelled(read, setting);
  ASSERT_EQ(read.size(), 2U);
  // The decoding has 2 ms between machines: shards of a quarter, and 64 machines instead of 2.
  EXPECT_NEAR(written[1].decode->median, 1e-3 + 2e-3 / 4.0 * 32.0, 1e-9);
  EXPECT_DOUBLE_EQ(read[1].decode->median, written[1].decode->median);
  EXPECT_DOUBLE_EQ(judged_seconds(read[1]), judged_seconds(written[1]));
}

TEST(Records, AModelledRowKeepsItsLibraryAndItsMessages) {
  std::vector<ResultRow> rows{measured_row()};
  rows[0].network = Network::parse("10gbe");
  rows[0].network->library = Library::hook;
  rows[0].network->under_hook = Library::nccl;
  rows[0].messages = 42.0;
  const nlohmann::ordered_json json = to_json(to_table(rows));
  const BenchRecord record = read_bench(table_from_json("bench", json, "here"), &json, "here");
  ASSERT_EQ(record.rows.size(), 1U);
  EXPECT_EQ(library_text(*record.rows[0].network), "hook over nccl");
  EXPECT_EQ(record.rows[0].messages, 42.0);
}

/// Records of before the column say it in the message.
TEST(Records, RowsOfAveragedGradientsStaySo) {
  for (const bool by_message : {false, true}) {
    ResultRow row = measured_row();
    row.averaged = !by_message;
    if (by_message) row.message = "replayed: gradients; the workers' gradients are averaged already";
    EXPECT_TRUE(read_bench(to_table({&row, 1}), nullptr, "here").rows.at(0).averaged) << by_message;
  }
  const ResultRow row = measured_row();
  EXPECT_FALSE(read_bench(to_table({&row, 1}), nullptr, "here").rows.at(0).averaged);
}

TEST(Records, ARowKeepsItsWindows) {
  ResultRow written = measured_row();
  written.window_iterations = {{10, 17}, {290, 299}};
  written.windows = 2;
  written.worst_window = written.window_iterations[1];
  auto json = to_json(to_table({&written, 1}));
  json[0]["window_iterations"] = {{10, 17}, {290, 299}};
  const BenchRecord record = read_bench(table_from_json("bench", json, "here"), &json, "here");
  ASSERT_EQ(record.rows.size(), 1U);
  EXPECT_EQ(iterations_text(record.rows[0]), "iterations 10 to 17 and 290 to 299");
  ASSERT_TRUE(record.rows[0].worst_window);
  EXPECT_EQ(record.rows[0].worst_window->last, 299);
}

TEST(Records, RowsThatNoBenchWritesAreRefused) {
  const std::vector<ResultRow> written{measured_row()};
  Table negative = to_table(written);
  negative.set(0, "worst_nmse", -1e-9);
  EXPECT_THROW(static_cast<void>(read_bench(negative, nullptr, "here")), Error);
  auto json = to_json(to_table(written));
  json[0]["units"] = false;
  try {
    static_cast<void>(read_bench(to_table(written), &json, "here"));
    ADD_FAILURE() << "units that are none were taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string{error.what()}.find("exception"), std::string::npos) << error.what();
  }
}

TEST(Records, WithoutANameTheParametersThatAreNoDefaultsWereGiven) {
  const std::vector<ResultRow> written{measured_row()};
  const Table table = to_table(written);
  const BenchRecord record = read_bench(table_from_csv("bench", csv_of(table), "here"), nullptr, "here");
  EXPECT_EQ(short_name(record.rows.at(0)), "topk:ratio=0.05");
  EXPECT_TRUE(record.rows.at(0).units.empty());
}

TEST(Records, CodecsThatAreNotKnownHereAreNamed) {
  const std::vector<ResultRow> written{measured_row()};
  Table table = to_table(written);
  table.set(0, "codec", std::string{"of_tomorrow"});
  const BenchRecord record = read_bench(table, nullptr, "here");
  EXPECT_TRUE(record.rows.empty());
  EXPECT_EQ(record.unknown_codecs, std::vector<std::string>{"of_tomorrow"});
}

TEST(Charts, EveryBlankOfASpecificationIsFilledIn) {
  Table table{"compaction", {{"tensor", ""}, {"kept", ""}, {"kept_percent", ""}, {"energy_share", ""}}};
  table.add({std::string{"all"}, std::string{"values"}, std::int64_t{5}, std::numeric_limits<double>::infinity()});
  const Chart chart = make_chart("compaction", "_2", {"a.json", "gradtool analyze"}, table,
                                 {{"tensors_or_all", {"all", "fc"}}, {"two_colours", {"#d55e00", "#0072b2"}}});
  EXPECT_EQ(chart.id, "compaction_2");
  EXPECT_EQ(chart.spec.dump().find('@'), std::string::npos);
  EXPECT_EQ(chart.spec.at("params").at(0).at("bind").at("options"), (nlohmann::ordered_json{"all", "fc"}));
  const auto whole = whole_spec(chart);
  EXPECT_EQ(whole.at("datasets").at("table").at(0).at("kept_percent"), 5);
  EXPECT_TRUE(whole.at("datasets").at("table").at(0).at("energy_share").is_null()) << "no axis has a place for inf";
  EXPECT_NE(test::message_of(Fault::internal, [&] { static_cast<void>(make_chart("compaction", "", {}, table, {})); }),
            "");
}

TEST(Charts, WithoutTheLibrariesThePageSaysWhatToInstall) {
  if (charts_available()) {
    EXPECT_GT(asset("vega.js").size(), 100'000U);
  } else {
    EXPECT_NE(test::message_of(Fault::unavailable, [&] { static_cast<void>(asset("vega.js")); }), "");
  }
}

}  // namespace
}  // namespace gradtool
