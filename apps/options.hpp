#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/advice/acceptance.hpp"
#include "lib/bench/options.hpp"
#include "lib/bench/result.hpp"
#include "lib/capture/capture.hpp"
#include "lib/core/files.hpp"

namespace gradtool::app {

/// The width of help and of lists, in characters.
inline constexpr std::size_t kWidth = 80;
/// The last heading of a command's help, with what every command has.
inline constexpr const char* kGeneral = "General";

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

/// The lists of `gradtool list`.
[[nodiscard]] const std::vector<std::string>& list_names();

/// The words that an option takes: those of its check, or the codecs, networks, models and so on that its type names.
/// Empty where it takes anything else.
[[nodiscard]] std::vector<std::string> words_of(const CLI::Option& option);

/// The long flag of `parser`, or the subcommand of the root, that `word` was probably meant to be; empty for none.
[[nodiscard]] std::string nearest_flag(const CLI::App& parser, const std::string& word);

/// Throws Fault::usage when an output is one of the files that a merged view refers to.
void expect_outputs_spare_sources(const std::vector<std::string>& sources, const std::vector<NamedPath>& outputs);

// Options that capture and train share: --model to --micro-batches, and --steps to --seed.
void add_data_options(CLI::App& app, CaptureOptions& options);
void add_training_options(CLI::App& app, CaptureOptions& options);

// Parsers of options that bench, train and tune share. Each throws Fault::usage for text that is not valid.

/// --baseline-dtype, and what it says: empty for captured.
void add_baseline_dtype(CLI::App& app, std::string& dtype);
[[nodiscard]] std::optional<Dtype> parse_baseline_dtype(const std::string& text);
/// --reduce and --all-reduce.
void add_reduce_options(CLI::App& app, std::string& scheme, std::string& all_reduce);
/// Checks that the text is one of these names; udp may have options behind a colon.
[[nodiscard]] CLI::Validator one_of_comms(const std::vector<std::string>& names);
/// --comm: the name, and the options of udp.
[[nodiscard]] ProcessComm parse_comm(const std::string& text);
/// --codec as often as given. `all` := whether the whole registry is among them.
[[nodiscard]] std::vector<CodecSpec> parse_codecs(const std::vector<std::string>& lists, bool& all);
/// --network as often as given, each once.
[[nodiscard]] std::vector<Network> parse_networks(const std::vector<std::string>& texts);
[[nodiscard]] std::uint64_t parse_seed(const std::string& text);
/// --steps: "10:60".
[[nodiscard]] IterationRange parse_iterations(const std::string& text);
/// --seeds: several, each once, with commas.
[[nodiscard]] std::vector<std::uint64_t> parse_seeds(const std::string& text);
/// --trained, as often as given.
void add_trained(CLI::App& app, std::vector<std::string>& files);
/// Which errors the advice accepts, by --max-nmse and --trained. Throws as read_own_trial().
[[nodiscard]] Acceptance parse_acceptance(std::optional<double> max_nmse, const std::vector<std::string>& trained);
/// --library and --codec-speed: what carries the collectives of modelled networks, and whose codec times they have.
/// set_carriers() throws as CodecSpeed::parse().
void add_carriers(CLI::App& app, std::optional<std::string>& library, std::optional<std::string>& codec_speed);
void set_carriers(const std::optional<std::string>& library, const std::optional<std::string>& codec_speed,
                  BenchOptions& bench);
/// --compute-ms and --overlap.
void set_iteration(const std::optional<std::string>& compute, const std::string& overlap, BenchOptions& bench);

}  // namespace gradtool::app
