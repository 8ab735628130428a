#include "tests/fuzz/command_line_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "apps/subcommands.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool::fuzz {
namespace {

constexpr std::array kHostile{"-1",   "",           "nan",  "inf",     "-inf",   "1e999", "99999999999999999999",
                              "0x10", "2.5",        "0",    "a",       "--csv",  " 1",    "9223372036854775807",
                              "1 ",   "\xff\xfe",   "1,,2", "1e-320",  "é",      "%s%n",  "18446744073709551615",
                              "[",    "0.1,0.2,,,", "a:b=", "=,=:=,=", "\x1b[m", "[1,2",  "a\nb"};

/// Values that are right, or nearly. What is not listed takes hostile values alone. --comm mpi is left out: MPI can be
/// started once in a process. 'all' codecs take too long.
const std::map<std::string, std::vector<std::string>, std::less<>>& plausible_values() {
  static const std::map<std::string, std::vector<std::string>, std::less<>> values{
      {"all-reduce", {"ring", "doubling", "auto"}},
      {"check", {"0", "1", "true", "false"}},
      {"comm", {"threads", "loopback", "nccl"}},
      {"comm-timeout", {"100", "1000000"}},
      {"compute-ms", {"120", "captured", "1e-9", "1e9"}},
      {"device", {"cpu", "cuda:999", "gpu"}},
      {"granularity", {"tensor", "model", "bucket:25MB", "bucket:1", "bucket:8B", "bucket:1EB"}},
      {"iters", {"1", "2"}},
      {"layers", {"tensor", "tensor0", "[", "(", "^$", ".*", "(t|e)+", "[[:alpha:]]", "\\", "a{2,1}"}},
      {"maxbytes", {"4", "1K", "40", "1025GiB"}},
      {"max-nmse", {"0.1", "1e-30", "0"}},
      {"max-noise", {"0.5", "0", "1e300"}},
      {"minbytes", {"4", "1K", "17"}},
      {"min-samples", {"1", "2"}},
      {"network",
       {"10gbe", "wan", "ndr", "100gbe:node=8,inner=nvlink", "x:alpha=5us,beta=12.5GBps", "x:alpha=0us,beta=1Bps",
        "x:alpha=1e300s,beta=1e300GBps", "1gbe:node=0,inner=1gbe"}},
      {"nodes", {"2", "1", "2,4,...,4096", "2,4,...,3", "4,2,...,1", "1,1,...,1", "1,2,...,99999999999", "1000000"}},
      {"only", {"spectrum", "correlation,variance", "spectrum,,"}},
      {"overlap", {"bucket", "none"}},
      {"pipeline", {"off", "1", "2", "64", "65"}},
      {"ranks", {"1", "2", "3"}},
      {"reduce", {"auto", "sum", "gather", "hop", "alltoall"}},
      {"op", {"all-reduce", "reduce-scatter", "all-gather", "all-to-all"}},
      {"levels", {"node=2", "node=1", "node=x", "2"}},
      {"codec-inner", {"bf16", "none", "noop"}},
      {"rounds", {"1", "2", "1000"}},
      {"samples", {"2", "128", "1024"}},
      {"seed", {"1", "18446744073709551615"}},
      {"stepbytes", {"4", "1K"}},
      {"stepfactor", {"2", "4", "1"}},
      {"synthetic",
       {"4", "1kB", "1K:4K:x2", "8:20:+4", "4:40", "20:4", "4:4:x1", "1025GiB", "4:1K:x1.0000000000000002"}},
      {"steps", {"0", "0:1", ":", "1:", ":0", "1:0", "0:9", "::"}},
      {"taps", {"0", "3", "1048576"}},
      {"threads", {"1", "2"}},
      {"timeout", {"0"}},
      {"timing", {"isolated", "concurrent", "both"}},
      {"warmup-iters", {"0", "1"}},
      {"what", {"codecs", "comm", "columns"}},
  };
  return values;
}

template <class List>
std::string one_of(const List& list, Choices& choices) {
  return std::string{list[choices.any(static_cast<unsigned>(list.size()))]};
}

std::string parameter_value(const ParamInfo& info, Choices& choices) {
  switch (choices.any(5)) {
    case 0:
      return fmt::format("{}", info.min);
    case 1:
      return fmt::format("{}", info.max);
    case 2:
      return std::string{info.choices.substr(0, info.choices.find('|'))};
    case 3:
      return one_of(kHostile, choices);
    default:
      return std::string{info.default_value};
  }
}

std::string codec_value(Choices& choices) {
  const CodecDescriptor& codec = *codecs()[choices.any(static_cast<unsigned>(codecs().size()))];
  std::string text{codec.name};
  const char* separator = ":";
  for (unsigned i = choices.any(3); i > 0 && !codec.params.empty(); --i) {
    const ParamInfo& info = codec.params[choices.any(static_cast<unsigned>(codec.params.size()))];
    text += fmt::format("{}{}={}", separator, info.name, parameter_value(info, choices));
    separator = ",";
  }
  if (choices.any(4) == 1) {
    constexpr std::array kFeedback{"on", "off", "ef21", "ef21m"};
    text += fmt::format("{}ef={}", separator, kFeedback[choices.any(kFeedback.size())]);
  }
  if (choices.odd(1) != 0) text += "," + codec_value(choices);
  return text;
}

std::string output_path(const std::string& folder, const std::string& option, Choices& choices) {
  switch (choices.odd(9)) {
    case 1:
      return "-";
    case 2:
      return folder;
    case 3:
      return folder + "/in.h5";
    case 4:
      return folder + "/in.h5/below";
    case 5:
      return "/dev/full";
    case 6:
      return "/dev/null";
    case 7:
      return folder + "/new/../" + option;
    case 8:
      return folder + "/" + std::string(300, 'x');
    case 9:
      return folder + "/shared";
    default:
      return folder + "/" + option;
  }
}

std::string input_path(const std::string& folder, Choices& choices) {
  switch (choices.odd(5)) {
    case 1:
      return folder + "/absent.h5";
    case 2:
      return folder;
    case 3:
      return "/dev/null";
    case 4:
      return "";
    case 5:
      return folder + "/./in.h5";
    default:
      return folder + "/in.h5";
  }
}

bool is_output(std::string_view name) {
  constexpr std::array kOutputs{"csv", "json", "steps-csv", "reconstruction", "payloads", "out"};
  return std::find(kOutputs.begin(), kOutputs.end(), name) != kOutputs.end();
}

/// The longest way to write it, without dashes.
std::string name_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_single_name() : option.get_lnames().front();
}

std::string value_of(const std::string& name, const std::string& folder, CommandLine& line, Choices& choices) {
  if (is_output(name)) {
    line.outputs.push_back(output_path(folder, name, choices));
    return line.outputs.back();
  }
  // A hostile size may be one that the machine has, and that takes it minutes.
  const bool size = name == "synthetic" || name.ends_with("bytes");
  if (!size && choices.odd(1) != 0) return one_of(kHostile, choices);
  if (name == "codec") return codec_value(choices);
  const auto found = plausible_values().find(name);
  return found == plausible_values().end() ? one_of(kHostile, choices) : one_of(found->second, choices);
}

struct Tree {
  CLI::App root;
  std::vector<CLI::App*> commands;
};

/// Parsers of its own, read for what options there are, never run.
const Tree& tree() {
  static const auto made = [] {
    auto all = std::make_unique<Tree>();
    for (const auto& add : {app::add_info, app::add_validate, app::add_analyze, app::add_bench, app::add_list})
      all->commands.push_back(add(all->root).parser);
    return all;
  }();
  return *made;
}

}  // namespace

CommandLine build_command_line(const std::string& folder, Choices& choices) {
  CommandLine line;
  const CLI::App& command = *tree().commands[choices.any(static_cast<unsigned>(tree().commands.size()))];
  line.arguments.push_back(command.get_name());
  const auto options = command.get_options();
  std::vector<std::string> given;
  for (unsigned i = choices.any(6); i > 0; --i) {
    const CLI::Option& option = *options[choices.any(static_cast<unsigned>(options.size()))];
    const std::string name = name_of(option);
    if (option.get_positional() && name != "what") continue;
    if (name == "baseline") continue;  // starts a program of that name
    given.push_back(name);
    if (!option.get_positional()) line.arguments.push_back("--" + name);
    if (option.get_type_size() > 0) line.arguments.push_back(value_of(name, folder, line, choices));
  }
  const auto has = [&](const char* name) { return std::find(given.begin(), given.end(), name) != given.end(); };
  const auto add = [&](const char* name, const std::string& value) {
    if (!has(name)) line.arguments.insert(line.arguments.end(), {std::string{"--"} + name, value});
  };
  if (command.get_name() == "bench") {
    add("codec", codec_value(choices));
    add("iters", "1");
  }
  if (command.get_name() == "analyze") {
    add("out", folder + "/out");
    if (!has("out")) line.outputs.push_back(folder + "/out");
  }
  // Without a file and without a size the first size would be 32 MB.
  const bool made_up = has("synthetic") || has("minbytes");
  if ((has("maxbytes") || has("stepfactor") || has("stepbytes")) && !has("synthetic")) add("minbytes", "4");
  if (choices.odd(1) != 0) line.arguments.push_back(one_of(kHostile, choices));
  if (made_up && choices.odd(1) == 0) return line;
  if (command.get_name() != "list") line.arguments.push_back(input_path(folder, choices));
  return line;
}

}  // namespace gradtool::fuzz
