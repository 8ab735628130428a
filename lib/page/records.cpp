#include "lib/page/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "lib/codecs/prototype.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void bad(const std::string& where, const std::string& why) {
  throw_error(Fault::data, "{}: {}", where, why);
}

std::optional<double> special_number(std::string_view text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

Cell cell_of(const Json& json, const std::string& where) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& one) { return one.is_number(); }))
    return json_text(json);
  if (!json.is_string()) bad(where, "a cell of a row is neither a number nor text");
  const auto& text = json.get_ref<const std::string&>();
  if (const auto special = special_number(text)) return *special;
  return text;
}

/// A number only where it would be written the same again: a tensor that is called 007 stays text.
Cell cell_of_csv(const std::string& text) {
  if (text.empty()) return {};
  if (text == "true" || text == "false") return text == "true";
  if (const auto special = special_number(text)) return *special;
  if (const auto whole = number_of<std::int64_t>(text); whole && to_text(Cell{*whole}) == text) return *whole;
  if (const auto number = number_of<double>(text); number && to_text(Cell{*number}) == text) return *number;
  return text;
}

/// The records of a CSV text by RFC 4180.
class CsvLines {
 public:
  CsvLines(std::string_view text, const std::string& where) : text_{text}, where_{where} {}
  [[nodiscard]] bool more() const { return at_ < text_.size(); }
  [[nodiscard]] std::vector<std::string> next() {
    std::vector<std::string> fields(1);
    for (bool quoted = false;; ++at_) {
      if (at_ == text_.size()) {
        if (quoted) bad(where_, "a quoted field does not end");
        return fields;
      }
      const char c = text_[at_];
      const bool two_quotes = text_.substr(at_, 2) == "\"\"";
      if (c == '"' && !(quoted && two_quotes)) {
        quoted = !quoted;
      } else if (!quoted && c == ',') {
        fields.emplace_back();
      } else if (!quoted && c == '\n') {
        ++at_;
        return fields;
      } else if (quoted || c != '\r') {
        fields.back() += c;
        if (quoted && two_quotes) ++at_;
      }
    }
  }

 private:
  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

std::size_t column_of(const Table& table, std::string_view column) {
  const auto& columns = table.columns();
  return static_cast<std::size_t>(
      std::find_if(columns.begin(), columns.end(), [&](const Column& each) { return each.name == column; }) -
      columns.begin());
}

/// One row of the bench's table, from which a ResultRow is made again.
class RowReader {
 public:
  RowReader(const Table& table, std::size_t row, const std::string& where) : table_{table}, row_{row}, where_{where} {}

  [[nodiscard]] std::string text(std::string_view column) const { return text_at(table_, row_, column); }
  [[nodiscard]] std::optional<double> number(std::string_view column) const { return number_at(table_, row_, column); }
  [[nodiscard]] std::int64_t whole(std::string_view column) const {
    const auto value = number(column);
    constexpr double kLargest = 9e15;  // up to there every whole number is a double
    if (!value || *value != std::floor(*value) || std::abs(*value) > kLargest)
      bad(where_, fmt::format("row {} has no whole number in column {}", row_ + 1, column));
    return static_cast<std::int64_t>(*value);
  }
  /// A number of ranks, threads or chunks.
  [[nodiscard]] int count(std::string_view column) const {
    const std::int64_t value = whole(column);
    if (value < 1 || value > (1 << 30))
      bad(where_, fmt::format("row {}: {} is no number of {}", row_ + 1, value, column));
    return static_cast<int>(value);
  }
  [[nodiscard]] std::optional<PhaseSummary> phase(const std::string& name) const {
    const auto seconds = [&](const char* what) -> std::optional<double> {
      const auto us = number(name + "_us_" + what);
      return us && std::isfinite(*us) ? std::optional{*us * 1e-6} : std::nullopt;
    };
    const auto median = seconds("median");
    if (!median) return std::nullopt;
    return PhaseSummary{.median = *median,
                        .p95 = seconds("p95"),
                        .min = seconds("min"),
                        .noise = number(name + "_noise"),
                        .low = seconds("low"),
                        .high = seconds("high")};
  }

 private:
  const Table& table_;
  std::size_t row_;
  const std::string& where_;
};

/// The parameters that were given on the command line, so far as the filled-in ones tell: those that differ from the
/// default.
std::string given_params(const std::string& codec, const std::string& params) {
  const std::string defaults = codec == kPrototype ? "" : "," + parse_codec(codec).params_text() + ",";
  std::string given;
  for (const std::string_view one : split(params, ',')) {
    if (defaults.find(fmt::format(",{},", one)) != std::string::npos) continue;
    if (!given.empty()) given += ',';
    given += one;
  }
  return given;
}

bool is_known(std::string_view name) {
  const auto all = codecs();
  return name == kPrototype || name == kReceivedName ||
         std::any_of(all.begin(), all.end(), [&](const CodecDescriptor* codec) { return codec->name == name; });
}

CodecSpec codec_of(const RowReader& row) {
  const std::string name = row.text("codec");
  std::string params = row.text("params");
  if (params == "default") params.clear();
  constexpr std::string_view kFile = "file=";
  if (name == kReceivedName) return received_spec(params.substr(std::min(kFile.size(), params.size())));
  CodecSpec codec = parse_recorded_codec(params.empty() ? name : name + ":" + params);
  // Records since schema 2 say what was given; of older ones and of a CSV it is what differs from the defaults.
  const std::string shown = row.text("name");
  codec.given = shown.empty() ? given_params(name, params) : shown.substr(std::min(name.size() + 1, shown.size()));
  return codec;
}

ResultRow result_row(const RowReader& cells) {
  ResultRow row{codec_of(cells)};
  row.run_id = cells.text("run_id");
  row.status = named<ResultRow::Status>(cells.text("status")).value_or(ResultRow::Status::not_finite);
  row.message = cells.text("message");
  row.scheme = named<Scheme>(cells.text("aggregation")).value_or(Scheme::automatic);
  if (row.scheme == Scheme::own) row.scheme = Scheme::automatic;
  // Older versions had no other collective.
  row.op = named<Collective>(cells.text("op")).value_or(Collective::all_reduce);
  if (const std::string levels = cells.text("levels"); levels.starts_with("node=")) {
    row.level_node = row.measured_node = std::atoi(levels.c_str() + 5);
    if (const std::string inner = cells.text("codec_inner"); !inner.empty()) row.inner = parse_recorded_codec(inner);
  }
  row.file = cells.text("file");
  row.model = cells.text("model");
  row.granularity = cells.text("granularity");
  row.elements = static_cast<std::uint64_t>(std::max<std::int64_t>(0, cells.whole("elements")));
  row.first_step = cells.whole("first_step");
  row.last_step = cells.whole("last_step");
  row.stride = static_cast<std::int64_t>(std::max(1.0, cells.number("stride").value_or(1.0)));
  row.windows = static_cast<std::size_t>(std::max(1.0, cells.number("windows").value_or(1.0)));
  row.ranks = row.measured_ranks = cells.count("ranks");
  row.comm = cells.text("comm");
  row.device = cells.text("device");
  if (!row.received()) row.threads = cells.count("threads");
  row.processor = cells.text("processor");
  row.dtype = cells.text("dtype");
  if (const std::string baseline = cells.text("baseline_dtype"); !baseline.empty()) {
    row.baseline_dtype = baseline;
    if (const auto raw = cells.number("raw_bytes"); raw && row.elements > 0)
      row.baseline_bytes = *raw / static_cast<double>(row.elements);
  }
  if (const std::string quantity = cells.text("quantity"); !quantity.empty()) row.quantity = quantity;
  // Records of before have no column of it, and say it in the message.
  row.averaged =
      cells.text("averaged") == "true" || cells.text("message").find("averaged already") != std::string::npos;
  row.timing = cells.text("timing") == "concurrent" ? Timing::concurrent : Timing::isolated;
  row.pipeline = cells.count("pipeline");
  row.all_reduce = cells.text("all_reduce");
  row.reached = cells.text("reached") != "false";
  if (cells.text("time_source") == "modelled") {
    row.network = Network::parse(cells.text("network"));
    if (const std::string library = cells.text("library"); !library.empty()) set_library(*row.network, library);
    row.messages = cells.number("messages");
  }
  const auto seconds = [&](const char* column) -> std::optional<double> {
    const auto milliseconds = cells.number(column);
    return milliseconds ? std::optional{*milliseconds * 1e-3} : std::nullopt;
  };
  if (const auto ms = cells.number("iteration_ms"), compute = cells.number("compute_ms"); ms && compute) {
    row.iteration = {.compute_seconds = *compute * 1e-3,
                     .compute_low = cells.number("compute_low_ms").value_or(0.0) * 1e-3,
                     .compute_high = cells.number("compute_high_ms").value_or(0.0) * 1e-3,
                     .overlap = cells.text("overlap") == "none" ? Overlap::none : Overlap::bucket,
                     .backward = {.share = cells.number("backward_share").value_or(kBackwardShare),
                                  .captured = cells.text("readiness") == "captured"},
                     .seconds = *ms * 1e-3};
    row.iteration->low = seconds("iteration_low_ms");
    row.iteration->high = seconds("iteration_high_ms");
  }
  if (const auto ms = cells.number("ddp_ms"))
    row.in_ddp = {.hook = cells.text("ddp_hook"),
                  .time = {.median = *ms * 1e-3, .low = seconds("ddp_low_ms"), .high = seconds("ddp_high_ms")},
                  .gate_bytes = cells.number("ddp_gate_bytes")};
  if (const auto payload = cells.number("payload_bytes"), wire = cells.number("wire_bytes_per_rank");
      payload && wire && std::isfinite(*payload) && std::isfinite(*wire)) {
    const double sent = cells.number("element_ratio").value_or(0.0);
    StepBytes bytes;
    bytes.payload = bytes.payload_max = *payload;
    bytes.wire_per_rank = *wire;
    bytes.values_sent = bytes.fewest_values_sent = sent > 0.0 ? static_cast<double>(row.elements) / sent : 0.0;
    row.bytes = bytes;
  }
  if (const auto nmse = cells.number("nmse")) {
    // Only the quotient is in the record: sums that have it stand for those that the bench had.
    row.errors = ErrorSums{
        .elements = row.elements, .xx = std::isinf(*nmse) ? 0.0 : 1.0, .error = std::isinf(*nmse) ? 1.0 : *nmse};
  }
  row.worst_nmse = cells.number("worst_nmse");
  row.cumulative_nmse = cells.number("cumulative_nmse");
  row.error_correlation = cells.number("error_correlation");
  row.lost_signs = cells.number("lost_signs");
  const std::string times = cells.text("codec_times");
  row.codec_times = times == "floor"    ? CodecTimes::floor
                    : times == "record" ? CodecTimes::record
                                        : CodecTimes::measured;
  row.encode = cells.phase("encode");
  row.communicate = cells.phase("comm");
  row.decode = cells.phase("decode");
  row.total = cells.phase("total");
  row.gate_bytes = cells.number("gate_bytes");
  row.gated_share = cells.number("gated_share").value_or(0.0);
  row.gate_applied = row.gated_share > 0.0 && row.gate_bytes > static_cast<double>(row.codec.gate);
  row.verdict.pareto = cells.text("pareto").empty() ? std::nullopt : std::optional{cells.text("pareto") == "true"};
  row.verdict.speedup_vs_none = cells.number("speedup_vs_none");
  row.verdict.iteration_speedup_vs_none = cells.number("iteration_speedup_vs_none");
  return row;
}

/// The iterations of the row's windows, which only the JSON has, and the window that judges. Records of before have
/// none.
void read_windows(const Json& json, const RowReader& cells, ResultRow& row) {
  for (const Json& window : json.value("window_iterations", Json::array()))
    row.window_iterations.push_back({window.at(0).get<std::int64_t>(), window.at(1).get<std::int64_t>()});
  const auto first = cells.number("worst_window_first_step");
  for (const IterationRange& window : row.window_iterations) {
    if (first && static_cast<double>(window.first) == *first) row.worst_window = window;
  }
}

UnitProfile unit_profile(const Json& json) {
  UnitProfile unit;
  unit.ready = json.at("ready").get<double>();
  unit.bytes.payload = json.value("payload_bytes", 0.0);
  unit.bytes.wire_per_rank = json.value("wire_bytes_per_rank", 0.0);
  unit.encode = json.at("encode_us").get<double>() * 1e-6;
  unit.decode = json.at("decode_us").get<double>() * 1e-6;
  unit.decode_across = json.value("decode_across_us", 0.0) * 1e-6;
  for (const Json& used : json.value("collectives", Json::array())) {
    const auto found = std::find_if(unit.uses.begin(), unit.uses.end(), [&](const CollectiveUse& use) {
      return name_of(use.kind) == used.at("kind").get<std::string>() &&
             name_of(use.level) == used.value("level", "whole");
    });
    if (found == unit.uses.end())
      throw Error{Fault::data, "unknown kind of collective '" + used.at("kind").get<std::string>() + "'"};
    found->node = used.value("node", 1);
    found->calls = used.at("calls").get<double>();
    found->bytes = used.at("bytes").get<double>();
  }
  return unit;
}

}  // namespace

Table table_from_json(const std::string& name, const Json& rows, const std::string& where) {
  if (!rows.is_array()) bad(where, fmt::format("'{}' is no list of rows", name));
  std::vector<Column> columns;
  std::map<std::string, std::size_t> index;
  std::vector<std::vector<Cell>> cells;
  for (const Json& row : rows) {
    if (!row.is_object()) bad(where, fmt::format("a row of '{}' is no object", name));
    auto& line = cells.emplace_back(columns.size());
    for (const auto& [key, value] : row.items()) {
      if (value.is_structured() && !(value.is_array() && !value.empty() && value.front().is_number())) continue;
      const auto [place, fresh] = index.emplace(key, columns.size());
      if (fresh) {
        columns.push_back({key, ""});
        line.emplace_back();
      }
      line[place->second] = cell_of(value, where);
    }
  }
  Table table{name, columns};
  for (auto& line : cells) {
    line.resize(columns.size());
    table.add(std::move(line));
  }
  return table;
}

Table table_from_csv(const std::string& name, std::string_view text, const std::string& where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // that spreadsheets write
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  CsvLines lines{text, where};
  std::vector<Column> columns;
  if (lines.more()) {
    for (auto& field : lines.next()) columns.push_back({field, ""});
  }
  Table table{name, columns};
  for (std::size_t line = 2; lines.more(); ++line) {
    std::vector<Cell> row;
    for (const auto& field : lines.next()) row.push_back(cell_of_csv(field));
    if (row.size() != columns.size()) {
      bad(where, fmt::format("record {} has {} fields, but the header has {}", line, row.size(), columns.size()));
    }
    table.add(std::move(row));
  }
  return table;
}

bool has_column(const Table& table, std::string_view column) {
  return column_of(table, column) < table.columns().size();
}

std::optional<double> number_at(const Table& table, std::size_t row, std::string_view column) {
  const std::size_t place = column_of(table, column);
  if (place == table.columns().size()) return std::nullopt;
  const Cell& cell = table.rows()[row][place];
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&cell)) return *real;
  return std::nullopt;
}

std::string text_at(const Table& table, std::size_t row, std::string_view column) {
  const std::size_t place = column_of(table, column);
  return place == table.columns().size() ? std::string{} : to_text(table.rows()[row][place]);
}

Table selected(const Table& table, const std::vector<std::string>& columns, const std::vector<std::size_t>& rows) {
  std::vector<Column> heads;
  std::vector<std::size_t> places;
  for (const auto& column : columns) {
    places.push_back(column_of(table, column));
    const bool there = places.back() < table.columns().size();
    heads.push_back({column, there ? table.columns()[places.back()].meaning : ""});
  }
  Table out{table.name(), heads};
  for (const std::size_t row : rows) {
    std::vector<Cell> line;
    line.reserve(places.size());
    for (const std::size_t place : places)
      line.push_back(place < table.columns().size() ? table.rows()[row][place] : Cell{});
    out.add(std::move(line));
  }
  return out;
}

void expect_known_schema(const Table& table, const std::string& where) {
  for (std::size_t i = 0; i < table.rows().size(); ++i) {
    const auto schema = number_at(table, i, "schema_version");
    if (schema && *schema >= 1.0 && *schema <= kBenchSchema && *schema == std::floor(*schema)) continue;
    bad(where, fmt::format("row {} is of schema version {}; this gradtool reads 1 to {}", i + 1,
                           text_at(table, i, "schema_version"), kBenchSchema));
  }
}

BenchRecord read_bench(Table table, const Json* json_rows, const std::string& where) {
  expect_known_schema(table, where);
  BenchRecord record;
  std::map<std::string, int> measured_ranks;  // by run
  std::map<std::string, std::string> seeds;   // the first of each run
  for (std::size_t i = 0; i < table.rows().size(); ++i) {
    const RowReader cells{table, i, where};
    if (cells.text("tensor") != "all") continue;
    // The first of several seeds is drawn: charts have a place for a codec, not for each of its draws.
    const std::string seed = cells.text("seed");
    if (!seed.empty() && seeds.try_emplace(cells.text("run_id"), seed).first->second != seed) continue;
    if (!is_known(cells.text("codec"))) {
      if (std::find(record.unknown_codecs.begin(), record.unknown_codecs.end(), cells.text("codec")) ==
          record.unknown_codecs.end())
        record.unknown_codecs.push_back(cells.text("codec"));
      continue;
    }
    for (const char* error : {"nmse", "cumulative_nmse", "worst_nmse", "update_nmse"}) {
      if (cells.number(error).value_or(0.0) < 0.0) bad(where, fmt::format("row {}: {} is negative", i + 1, error));
    }
    try {
      ResultRow row = result_row(cells);
      if (!row.modelled())
        measured_ranks[row.run_id] = row.ranks;
      else if (measured_ranks.contains(row.run_id))
        row.measured_ranks = measured_ranks[row.run_id];
      if (json_rows != nullptr) {
        read_windows(json_rows->at(i), cells, row);
        for (const Json& unit : json_rows->at(i).value("units", Json::array())) row.units.push_back(unit_profile(unit));
      }
      record.rows.push_back(std::move(row));
      record.place.push_back(i);
    } catch (const Json::exception&) {
      bad(where, fmt::format("row {}: its units or windows are not as bench writes them", i + 1));
    } catch (const Error& error) {
      if (error.fault() == Fault::data) throw;
      bad(where, fmt::format("row {}: {}", i + 1, error.what()));  // a codec or network as no bench writes it
    }
  }
  record.table = std::move(table);
  return record;
}

}  // namespace gradtool
