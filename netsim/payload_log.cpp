#include "netsim/payload_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "lib/core/throw_error.hpp"

namespace gradtool::netsim {
namespace {

namespace fs = std::filesystem;

/// A row of CSV (RFC 4180) as lib/report writes it; false at the end of the file.
bool read_row(std::istream& in, std::vector<std::string>& fields) {
  fields.assign(1, "");
  bool quoted = false, any = false;
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    any = true;
    const char letter = static_cast<char>(c);
    if (quoted) {
      if (letter != '"') {
        fields.back() += letter;
      } else if (in.peek() == '"') {
        fields.back() += static_cast<char>(in.get());
      } else {
        quoted = false;
      }
    } else if (letter == '"') {
      quoted = true;
    } else if (letter == ',') {
      fields.emplace_back();
    } else if (letter == '\n') {
      return true;
    } else {
      fields.back() += letter;
    }
  }
  return any;
}

struct Row {
  std::uint64_t step = 0, unit = 0, bytes = 0;
  std::string call;
};

class RankFile {
 public:
  explicit RankFile(std::string path) : path_{std::move(path)} {
    std::ifstream in{path_, std::ios::binary};
    std::vector<std::string> fields;
    if (!in.is_open() || !read_row(in, fields)) fail("cannot be read");
    for (std::size_t i = 0; i < fields.size(); ++i) columns_[fields[i]] = i;
    for (const char* name : {"codec", "params", "step", "unit", "call", "bytes"}) {
      if (!columns_.contains(name))
        fail(fmt::format("has no column {}; gradtool bench --payloads writes such a table", name));
    }
    const std::size_t width = fields.size();
    for (std::size_t line = 2; read_row(in, fields); ++line) {
      if (fields.size() != width)
        fail(fmt::format("has {} fields instead of {} in line {}", fields.size(), width, line));
      const auto text = [&](const char* name) -> const std::string& { return fields[columns_[name]]; };
      const auto number = [&](const char* name) {
        std::uint64_t value = 0;
        const auto* end = text(name).data() + text(name).size();
        const auto result = std::from_chars(text(name).data(), end, value);
        constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
        if (result.ec != std::errc{} || result.ptr != end || value > kMost)
          fail(fmt::format("has '{}' as {} in line {}", text(name), name, line));
        return value;
      };
      if (columns_.contains("level") && text("level") != "whole") {
        fail(
            fmt::format("was written by {} in two levels, and only collectives among all ranks can be played: log a "
                        "codec in one level, without --levels, or qgz:node=1",
                        text("codec")));
      }
      rows.push_back({.step = number("step"), .unit = number("unit"), .bytes = number("bytes"), .call = text("call")});
      codec = text("codec");
      params = text("params");
    }
    if (rows.empty()) fail("has no messages");
  }

  [[noreturn]] void fail(const std::string& why) const { throw_error(Fault::data, "{}: {}", path_, why); }

  std::vector<Row> rows;
  std::string codec, params;

 private:
  std::string path_;
  std::map<std::string, std::size_t> columns_;
};

std::uint64_t scaled(std::uint64_t bytes, double scale) {
  return static_cast<std::uint64_t>(std::round(static_cast<double>(bytes) * scale));
}

bool is_known(const std::string& call) {
  for (const char* name : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "exchange"}) {
    if (call.starts_with(name)) return true;
  }
  return false;
}

}  // namespace

PayloadLog read_payload_log(const std::string& folder) {
  std::vector<RankFile> files;
  for (int r = 0; fs::is_regular_file(fs::path{folder} / fmt::format("rank{}.csv", r)); ++r)
    files.emplace_back((fs::path{folder} / fmt::format("rank{}.csv", r)).string());
  if (files.size() < 2) {
    throw_error(Fault::usage, "'{}' has no rank0.csv and rank1.csv; write the folder of gradtool bench --payloads",
                folder);
  }
  PayloadLog log{.codec = files.front().codec,
                 .params = files.front().params,
                 .ranks = static_cast<int>(files.size()),
                 .steps = {}};
  for (std::size_t i = 0; i < files.front().rows.size(); ++i) {
    const Row& row = files.front().rows[i];
    if (!is_known(row.call)) files.front().fail(fmt::format("names a collective '{}' that is not known", row.call));
    if (i == 0 || row.step != files.front().rows[i - 1].step) log.steps.emplace_back();
    auto& units = log.steps.back().units;
    if (units.empty() || row.unit != files.front().rows[i - 1].unit) units.emplace_back();
    LoggedCall call{.name = row.call, .bytes = {}};
    for (const auto& file : files) {
      if (i >= file.rows.size() || file.rows[i].call != row.call || file.rows[i].step != row.step ||
          file.rows[i].unit != row.unit || file.rows.size() != files.front().rows.size())
        file.fail("does not list the same collectives as rank0.csv");
      call.bytes.push_back(file.rows[i].bytes);
    }
    units.back().calls.push_back(std::move(call));
  }
  return log;
}

void append_call(Schedule& schedule, const LoggedCall& call, double scale, int unit) {
  const std::uint64_t most = *std::max_element(call.bytes.begin(), call.bytes.end());
  std::vector<std::uint64_t> sizes;
  sizes.reserve(call.bytes.size());
  for (const std::uint64_t bytes : call.bytes) sizes.push_back(scaled(bytes, scale));
  const std::size_t element = call.name.ends_with("f16") ? 2 : 4;  // bf16 too
  if (call.name.starts_with("all_reduce")) {
    schedule.all_reduce(scaled(most, scale) / element, element, unit);
  } else if (call.name.starts_with("reduce_scatter")) {
    schedule.reduce_scatter(scaled(most, scale) / element, element, unit);
  } else if (call.name.starts_with("all_gather")) {
    schedule.all_gather(sizes, unit);
  } else if (call.name.starts_with("all_to_all")) {
    for (auto& size : sizes) size /= call.bytes.size();  // the log has all parts, the rank's own too
    schedule.all_to_all(sizes, unit);
  } else if (call.name == "broadcast") {
    const auto root = std::max_element(call.bytes.begin(), call.bytes.end()) - call.bytes.begin();
    schedule.broadcast(scaled(most, scale), static_cast<int>(root), unit);
  } else {
    schedule.hop(sizes, unit);
  }
}

double modelled_seconds(const LoggedStep& step, double scale, const Network& network, int ranks) {
  double seconds = 0.0;
  for (const auto& unit : step.units) {
    CollectiveUses uses = no_uses();
    for (const auto& call : unit.calls) {
      const double sum =
          scale * static_cast<double>(std::accumulate(call.bytes.begin(), call.bytes.end(), std::uint64_t{0}));
      const double p = ranks;
      // RecordingCommunicator counts in the same way: a broadcast's whole view, and the part of an all-to-all that goes
      // to other ranks.
      const double bytes = call.name == "broadcast"              ? sum
                           : call.name.starts_with("all_to_all") ? sum / p * (p - 1.0) / p
                                                                 : sum / p;
      add_use(uses, call.name, bytes, false, true);
    }
    seconds += model_step(uses, network, ranks, ranks).seconds;
  }
  return seconds;
}

}  // namespace gradtool::netsim
