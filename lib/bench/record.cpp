#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lib/bench/bench.hpp"
#include "lib/comm/launch.hpp"
#include "lib/report/json.hpp"
#include "lib/report/terminal.hpp"

namespace gradtool {
namespace {

std::string shown(const Table& table, std::size_t row, std::string_view column, const char* format) {
  const Cell& cell = table.at(row, column);
  if (const auto* value = std::get_if<double>(&cell)) return fmt::format(fmt::runtime(format), *value);
  if (const auto* value = std::get_if<std::int64_t>(&cell))
    return fmt::format(fmt::runtime(format), static_cast<double>(*value));
  return "-";
}

double total_of(const Table& table, std::size_t row) {
  const Cell& cell = table.at(row, "total_us_median");
  const auto* value = std::get_if<double>(&cell);
  return value == nullptr ? 1e300 : *value;
}

/// The text in lines of at most `width` characters, broken at spaces, all but the first indented.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::string_view rest = text;
  while (rest.size() + (out.empty() ? 0 : 2) > width) {
    const std::size_t room = width - (out.empty() ? 0 : 2);
    const std::size_t space = rest.rfind(' ', room);
    const std::size_t cut = space == std::string_view::npos || space == 0 ? room : space;
    out += fmt::format("{}{}\n", out.empty() ? "" : "  ", rest.substr(0, cut));
    rest.remove_prefix(std::min(rest.size(), cut + (cut == space ? 1 : 0)));
  }
  return out + fmt::format("{}{}\n", out.empty() ? "" : "  ", rest);
}

std::vector<std::string> clauses_of(const std::string& message) {
  std::vector<std::string> clauses;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t end = std::min(message.find("; ", at), message.size());
    clauses.push_back(message.substr(at, end - at));
    at = end + 2;
  }
  return clauses;
}

bool contains(const std::vector<std::string>& clauses, const std::string& clause) {
  return std::find(clauses.begin(), clauses.end(), clause) != clauses.end();
}

/// Remarks of the rows that are ok, by clauses; what all of them say is said once.
class Remarks {
 public:
  void add(const std::string& who, const std::string& message) {
    all_.emplace_back(who, clauses_of(message));
    common_ = all_.size() == 1 ? all_.front().second : in_both(common_, all_.back().second);
  }
  [[nodiscard]] std::string text() const {
    std::string text;
    const bool several = all_.size() > 1;
    for (const auto& [who, clauses] : all_) {
      std::vector<std::string> own;
      for (const auto& clause : clauses) {
        if (!several || !contains(common_, clause)) own.push_back(clause);
      }
      if (!own.empty()) text += wrapped(fmt::format("{}: {}", who, fmt::join(own, "; ")), 100);
    }
    if (several && !common_.empty()) text += wrapped(fmt::format("all: {}", fmt::join(common_, "; ")), 100);
    return text;
  }

 private:
  static std::vector<std::string> in_both(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    std::vector<std::string> both;
    std::copy_if(a.begin(), a.end(), std::back_inserter(both), [&](auto& clause) { return contains(b, clause); });
    return both;
  }

  std::vector<std::pair<std::string, std::vector<std::string>>> all_;
  std::vector<std::string> common_;
};

}  // namespace

std::string short_name(const Table& table, std::size_t row) {
  std::string codec = to_text(table.at(row, "codec"));
  const std::string params = to_text(table.at(row, "params"));
  const std::string defaults = parse_codec(codec).params_text();
  if (params == defaults) return codec;
  std::string changed;
  std::size_t at = 0;
  while (at < params.size()) {
    const auto end = std::min(params.find(',', at), params.size());
    const std::string part = params.substr(at, end - at);
    if (("," + defaults + ",").find("," + part + ",") == std::string::npos)
      changed += (changed.empty() ? "" : ",") + part;
    at = end + 1;
  }
  return codec + ":" + changed;
}

nlohmann::ordered_json record(const BenchOptions& options, const BenchReport& report) {
  nlohmann::ordered_json out;
  out["format"] = "gradtool.bench";
  out["schema_version"] = 1;
  out["command"] = options.command;
  out["provenance"] = provenance();
  // What the ranks met over, with the versions of NCCL or MPI, and the GPU with its driver.
  for (const auto& backend : comm_backends()) {
    if (backend.name == options.comm)
      out["provenance"]["communicator"] = {{"name", backend.name}, {"detail", backend.detail}};
  }
  out["file"] = {{"path", options.file}, {"sha256", report.file_sha256}};
  out["copy_gbps"] = report.copy_rate / 1e9;
  auto rows = to_json(report.rows);
  for (std::size_t row = 0; row < report.samples.size(); ++row) {
    if (report.samples[row].empty()) continue;
    auto& samples = rows[row]["samples_us"];
    const char* const names[] = {"encode", "comm", "decode"};
    for (std::size_t phase = 0; phase < 3; ++phase) {
      for (const auto& sample : report.samples[row]) samples[names[phase]].push_back(sample.phase[phase] * 1e6);
    }
    if (to_text(report.rows.at(row, "timing")) != "concurrent") continue;
    for (const auto& sample : report.samples[row]) samples["total"].push_back(sample.total * 1e6);
  }
  for (const auto& [row, units] : report.units) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      auto& unit = rows[row]["units"].emplace_back();
      unit = {{"ready", report.ready[u]}, {"encode_us", units[u].encode * 1e6}, {"decode_us", units[u].decode * 1e6}};
      for (const auto& use : units[u].uses) {
        if (use.calls > 0.0)
          unit["collectives"].push_back({{"kind", name_of(use.kind)}, {"calls", use.calls}, {"bytes", use.bytes}});
      }
    }
  }
  out["rows"] = std::move(rows);
  return out;
}

std::string terminal_table(const BenchReport& report) {
  const Table& table = report.rows;
  struct Line {
    std::size_t isolated, concurrent;
  };
  std::vector<Line> lines;  // one for each codec; both rows where both were taken
  const auto key = [&](std::size_t row) { return to_text(table.at(row, "codec")) + to_text(table.at(row, "params")); };
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    if (to_text(table.at(row, "tensor")) != "all" || to_text(table.at(row, "time_source")) == "modelled") continue;
    const bool concurrent = to_text(table.at(row, "timing")) == "concurrent";
    const auto same =
        std::find_if(lines.begin(), lines.end(), [&](const Line& l) { return key(l.isolated) == key(row); });
    if (same == lines.end())
      lines.push_back({row, row});
    else
      (concurrent ? same->concurrent : same->isolated) = row;
  }
  std::stable_sort(lines.begin(), lines.end(), [&](const Line& a, const Line& b) {
    return total_of(table, a.concurrent) < total_of(table, b.concurrent);
  });
  std::vector<std::vector<std::string>> rows;
  Remarks remarks;
  for (const auto& [isolated, concurrent] : lines) {
    const std::string status = to_text(table.at(isolated, "status"));
    const std::string message = to_text(table.at(isolated, "message"));
    if (status == "ok") remarks.add(short_name(table, isolated), message);
    const std::string other = to_text(table.at(concurrent, "message"));
    if (concurrent != isolated && to_text(table.at(concurrent, "status")) == "ok" && other != message &&
        !other.empty()) {
      const bool pipelined = to_text(table.at(concurrent, "pipeline")) != "1";
      remarks.add(fmt::format("{} {}", short_name(table, concurrent), pipelined ? "pipelined" : "concurrent"), other);
    }
    rows.push_back({short_name(table, isolated), shown(table, isolated, "payload_ratio", "{:.2f}"),
                    shown(table, isolated, "wire_ratio", "{:.2f}"), shown(table, isolated, "nmse", "{:.3g}"),
                    shown(table, isolated, "cumulative_nmse", "{:.3g}"),
                    shown(table, isolated, "encode_gbps", "{:.2f}"), shown(table, isolated, "decode_gbps", "{:.2f}"),
                    shown(table, concurrent, "total_us_median", "{:.0f}"),
                    shown(table, concurrent, "speedup_vs_none", "{:.2f}"),
                    shown(table, isolated, "breakeven_gbit_s", "{:.3g}"), status == "ok" ? "" : status});
  }
  return format_rows(
             {"codec", "payload", "wire", "nmse", "cum.nmse", "enc", "dec", "total", "speedup", "wins below", ""}, rows,
             {false, true, true, true, true, true, true, true, true, true, false}, 24) +
         "payload, wire: times smaller than fp32 and than its ring all-reduce; enc, dec: GB/s of raw bytes,\n"
         "one rank at a time; total: us a step, all ranks at once; wins below: Gbit/s network.\n" +
         remarks.text();
}

}  // namespace gradtool
