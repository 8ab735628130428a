#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsim/results.hpp"

namespace gradtool::netsim {

/// The whole program: parses, runs and prints errors. Returns the exit status.
[[nodiscard]] int run_program(int argc, char** argv);

/// A subcommand's parser and what it does once its options are read; `run` returns the exit status.
struct Command {
  CLI::App* parser = nullptr;
  std::function<int()> run;
};
[[nodiscard]] Command add_iterations(CLI::App& root);
[[nodiscard]] Command add_replay(CLI::App& root);
[[nodiscard]] Command add_queue(CLI::App& root);

/// The options that describe the fabric and what runs on it, as text where numbers have units.
struct SettingOptions {
  FabricOptions fabric;
  double rate_gbit = 100.0, uplink_gbit = 400.0, delay_us = 1.0;
  std::string buffer = "1MB", threshold = "300KB", pfabric_buffer = "200KB";
  std::vector<std::string> transports{"dlcp", "dctcp", "pfabric"};
  std::string routing = "auto";
  std::vector<double> background{0.0};
  double min_rto_ms = 10.0;
  DlcpOptions dlcp;
  std::string ablate = "none";
  std::string seed = "1";
};
/// Adds them under the headings Fabric and Transport.
void add_fabric_options(CLI::App& app, SettingOptions& options);
void add_transport_options(CLI::App& app, SettingOptions& options);

/// Every chosen transport under every chosen load. Each throws Fault::usage for what is not valid.
[[nodiscard]] FabricOptions checked_fabric(const SettingOptions& options);
[[nodiscard]] std::vector<Setting> checked_settings(const SettingOptions& options);
[[nodiscard]] std::uint64_t checked_seed(const std::string& text);

/// The options under these headings, for the help.
[[nodiscard]] const std::vector<const char*>& fabric_option_names();
[[nodiscard]] const std::vector<const char*>& transport_option_names();

/// To standard output or `path`; a table for people where no path is given.
void write_table(const std::string& path, const Table& table, const std::vector<std::string>& shown);

}  // namespace gradtool::netsim
