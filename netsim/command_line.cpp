#include "netsim/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/csv.hpp"

namespace gradtool::netsim {
namespace {

void expect_within(double value, double least, double most, const char* option, const char* unit) {
  if (value >= least && value <= most) return;
  throw_error(Fault::usage, "{} {} is not valid; write {} to {}{}", option, value, least, most, unit);
}

Protocol parse_protocol(const std::string& text) {
  for (const Protocol protocol : {Protocol::dlcp, Protocol::dctcp, Protocol::tcp, Protocol::pfabric}) {
    if (text == name_of(protocol)) return protocol;
  }
  throw_error(Fault::usage, "--transport '{}' is not valid; there are dlcp, dctcp, tcp, pfabric", text);
}

}  // namespace

void add_fabric_options(CLI::App& app, SettingOptions& o) {
  app.add_option("--leaves", o.fabric.leaves, "Leaf switches")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--spines", o.fabric.spines, "Spine switches")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--hosts-per-leaf", o.fabric.hosts_per_leaf, "Hosts of each leaf")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rate", o.rate_gbit, "Of a host's link, Gbit/s")->capture_default_str();
  app.add_option("--uplink", o.uplink_gbit, "Of a link between leaf and spine, Gbit/s")->capture_default_str();
  app.add_option("--delay", o.delay_us, "Of every link, microseconds")->capture_default_str();
  app.add_option("--buffer", o.buffer, "Of a port")->type_name("SIZE")->capture_default_str();
  app.add_option("--threshold", o.threshold,
                 "Waiting bytes of a port above which ECN-capable packets are marked and others dropped")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--pfabric-buffer", o.pfabric_buffer, "Of a port under pfabric")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--payload", o.fabric.payload, "Bytes of data in a packet, a multiple of 4")
      ->check(CLI::Range(64, 8960))
      ->capture_default_str();
}

const std::vector<const char*>& fabric_option_names() {
  static const std::vector<const char*> names{"--leaves",         "--spines", "--hosts-per-leaf", "--rate",
                                              "--uplink",         "--delay",  "--buffer",         "--threshold",
                                              "--pfabric-buffer", "--payload"};
  return names;
}

void add_transport_options(CLI::App& app, SettingOptions& o) {
  app.add_option("--transport", o.transports, "dlcp, dctcp, tcp (CUBIC, no ECN), pfabric; repeatable, commas between")
      ->delimiter(',')
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--routing", o.routing,
                 "Path through the spines: ecmp (one for each flow), spray (one for each packet), auto (spray for dlcp "
                 "and pfabric, ecmp for TCP)")
      ->check(CLI::IsMember({"auto", "ecmp", "spray"}))
      ->capture_default_str();
  app.add_option("--background", o.background,
                 "Load of other traffic, share of the hosts' links, 0 to 0.95; repeatable, commas between")
      ->delimiter(',')
      ->type_name("LOAD")
      ->capture_default_str();
  app.add_option("--min-rto-ms", o.min_rto_ms, "TCP's smallest retransmission timeout, milliseconds")
      ->capture_default_str();
  app.add_option("--dlcp-start", o.dlcp.start, "Rate of a new dlcp connection, share of the link's")
      ->capture_default_str();
  app.add_option("--dlcp-increase", o.dlcp.increase,
                 "Of a dlcp connection's rate with each report without marks, share of the link's")
      ->capture_default_str();
  app.add_option("--dlcp-without", o.ablate,
                 "Leaves out a part of dlcp: marking (no packet is dropped early), priorities (of layers), both")
      ->check(CLI::IsMember({"none", "marking", "priorities", "both"}))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of paths and background traffic")->capture_default_str();
}

const std::vector<const char*>& transport_option_names() {
  static const std::vector<const char*> names{"--transport",  "--routing",       "--background",   "--min-rto-ms",
                                              "--dlcp-start", "--dlcp-increase", "--dlcp-without", "--seed"};
  return names;
}

std::uint64_t checked_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (text.empty() || result.ec != std::errc{} || result.ptr != text.data() + text.size())
    throw_error(Fault::usage, "--seed '{}' is not valid; write a whole number from 0 to 2^64 - 1", text);
  return seed;
}

FabricOptions checked_fabric(const SettingOptions& o) {
  FabricOptions fabric = o.fabric;
  expect_within(o.rate_gbit, 0.1, 1600, "--rate", " Gbit/s");
  expect_within(o.uplink_gbit, 0.1, 1600, "--uplink", " Gbit/s");
  expect_within(o.delay_us, 0.0, 1e5, "--delay", " microseconds");
  if (fabric.leaves * fabric.hosts_per_leaf < 2)
    throw Error{Fault::usage, "one leaf with one host makes no network; enlarge --leaves or --hosts-per-leaf"};
  if (fabric.payload % 4 != 0)
    throw_error(Fault::usage, "--payload {} is not valid; write a multiple of 4", fabric.payload);
  fabric.rate = 1e9 * o.rate_gbit;
  fabric.uplink = 1e9 * o.uplink_gbit;
  fabric.delay = 1e-6 * o.delay_us;
  const auto bytes = [&](const std::string& text, const char* option) {
    const auto value = static_cast<double>(parse_bytes(text, option));
    const double least = 4.0 * (fabric.payload + kPacketOverhead);
    if (!(value >= least && value <= 4e9))
      throw_error(Fault::usage, "{} {} is not valid; write {} bytes (four packets) to 4GB", option, text, least);
    return value;
  };
  fabric.buffer = bytes(o.buffer, "--buffer");
  fabric.threshold = bytes(o.threshold, "--threshold");
  fabric.pfabric_buffer = bytes(o.pfabric_buffer, "--pfabric-buffer");
  if (fabric.threshold > fabric.buffer)
    throw_error(Fault::usage, "--threshold {} is beyond the buffer of a port, {}; write less", o.threshold, o.buffer);
  return fabric;
}

std::vector<Setting> checked_settings(const SettingOptions& o) {
  Setting setting;
  setting.fabric = checked_fabric(o);
  expect_within(o.min_rto_ms, 0.5, 1000, "--min-rto-ms", " milliseconds");
  expect_within(o.dlcp.start, 0.001, 1.0, "--dlcp-start", " of the link's rate");
  expect_within(o.dlcp.increase, 1e-6, 1.0, "--dlcp-increase", " of the link's rate");
  setting.tcp.min_rto = 1e-3 * o.min_rto_ms;
  setting.dlcp = o.dlcp;
  setting.dlcp.marking = o.ablate != "marking" && o.ablate != "both";
  setting.dlcp.priorities = o.ablate != "priorities" && o.ablate != "both";
  setting.seed = checked_seed(o.seed);
  std::vector<Setting> settings;
  settings.reserve(o.transports.size() * o.background.size());
  for (const auto& name : o.transports) {
    setting.protocol = parse_protocol(name);
    setting.routing = o.routing == "auto"   ? routing_of(setting.protocol)
                      : o.routing == "ecmp" ? Routing::ecmp
                                            : Routing::spray;
    for (const double load : o.background) {
      expect_within(load, 0.0, 0.95, "--background", " of the links");
      setting.background = load;
      settings.push_back(setting);
    }
  }
  return settings;
}

void write_table(const std::string& path, const Table& table, const std::vector<std::string>& shown) {
  if (!path.empty()) return save_csv(path, table);
  std::vector<std::vector<std::string>> rows;
  rows.reserve(table.rows().size());
  for (std::size_t r = 0; r < table.rows().size(); ++r) {
    std::vector<std::string> row;
    row.reserve(shown.size());
    for (const auto& column : shown) {
      const Cell& cell = table.at(r, column);
      const auto* number = std::get_if<double>(&cell);
      row.push_back(number != nullptr ? fmt::format("{:.4g}", *number) : to_text(cell));
      if (number != nullptr && std::abs(*number) >= 1e4) row.back() = fmt::format("{:.0f}", *number);
    }
    rows.push_back(std::move(row));
  }
  std::vector<bool> right;
  right.reserve(shown.size());
  for (const auto& column : shown)
    right.push_back(!table.rows().empty() && !std::holds_alternative<Text>(table.at(0, column)));
  fmt::print("{}\n", format_rows(shown, rows, right));
}

}  // namespace gradtool::netsim
