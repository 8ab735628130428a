#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace gradtool::app {

/// The exit status of a command that Ctrl-C ended, as shells report it.
constexpr int kInterrupted = 130;

/// A subcommand: its options in `parser`, and what to do once they are parsed. `run` returns the exit status.
struct Subcommand {
  CLI::App* parser;
  std::function<int()> run;
};

// One file for each. A command of a part that is not built in says so (exit 77) instead of being absent.
Subcommand add_analyze(CLI::App& root);
Subcommand add_bench(CLI::App& root);
Subcommand add_capture(CLI::App& root);
Subcommand add_compare(CLI::App& root);
Subcommand add_completion(CLI::App& root);
Subcommand add_import(CLI::App& root);
Subcommand add_info(CLI::App& root);
Subcommand add_list(CLI::App& root);
Subcommand add_merge(CLI::App& root);
Subcommand add_probe(CLI::App& root);
Subcommand add_report(CLI::App& root);
Subcommand add_train(CLI::App& root);
Subcommand add_tune(CLI::App& root);
Subcommand add_validate(CLI::App& root);

/// bench --baseline: runs that program and this one with the arguments of this process by turns, ABBA, as often as
/// `cycles` says, and prints how their runs compare. Returns the exit status. Throws Fault::usage for a program that
/// cannot be started or writes no record, and Fault::backend for one that
/// fails.
int bench_against(const std::string& baseline, int cycles, const std::string& json, bool markdown);

/// The command line as given, for provenance. Set by main before anything runs.
[[nodiscard]] const std::string& command_line();

}  // namespace gradtool::app
