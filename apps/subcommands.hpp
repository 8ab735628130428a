#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace gradtool::app {

/// A subcommand: its options in `parser`, and what to do once they are parsed. `run` returns the exit status.
struct Subcommand {
  CLI::App* parser;
  std::function<int()> run;
};

// One file for each. A command of a part that is not built in says so (exit 77) instead of being absent.
Subcommand add_analyze(CLI::App& root);
Subcommand add_bench(CLI::App& root);
Subcommand add_capture(CLI::App& root);
Subcommand add_info(CLI::App& root);
Subcommand add_list(CLI::App& root);
Subcommand add_validate(CLI::App& root);

/// The command line as given, for provenance. Set by main before anything runs.
[[nodiscard]] const std::string& command_line();

}  // namespace gradtool::app
