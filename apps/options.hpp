#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/bench/options.hpp"

namespace gradtool::app {

/// The headings under which a command's help lists its options, in this order.
struct OptionGroup {
  const char* heading;
  std::initializer_list<const char*> options;  ///< by their long names, "--codec"
};
void set_groups(CLI::App& command, std::initializer_list<OptionGroup> groups);

/// Makes the help of `root` and its subcommands at most 80 columns wide, with groups of options and wrapped
/// descriptions. Call before the subcommands are added.
void set_help_format(CLI::App& root);

/// Adds what every subcommand has: --config and --color.
void add_general_options(CLI::App& command);

/// The words that an option takes: those of its check, the codecs or the networks. Empty where it takes anything else.
[[nodiscard]] std::vector<std::string> words_of(const CLI::Option& option);

/// The long flag of `parser`, or the subcommand of the root, that `word` was probably meant to be; empty for none.
[[nodiscard]] std::string nearest_flag(const CLI::App& parser, const std::string& word);

// What bench and tune read alike. Each throws Fault::usage for text that is not valid.

[[nodiscard]] Scheme parse_scheme(const std::string& text);
[[nodiscard]] std::uint64_t parse_seed(const std::string& text);
/// --compute-ms and --overlap.
void set_iteration(const std::optional<std::string>& compute, const std::string& overlap, BenchOptions& bench);

}  // namespace gradtool::app
