// Options that every subcommand has: --config, which reads others from a file, and --color.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <sstream>

#include "apps/options.hpp"
#include "lib/capture/capture.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/files.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/model/network.hpp"
#include "lib/report/color.hpp"

namespace gradtool::app {
namespace {

/// The options that a file may set: all with a long name but those of the command line itself.
std::vector<std::string> keys_of(const CLI::App& command) {
  std::vector<std::string> keys;
  for (const auto* option : command.get_options()) {
    if (!option->get_configurable()) continue;
    for (const auto& name : option->get_lnames()) keys.push_back(name);
    if (option->get_positional() && option->get_lnames().empty()) keys.push_back(option->get_name(true, false));
  }
  return keys;
}

/// Gives `option` the values of the file, unless the command line has it.
void set_from_file(CLI::Option& option, const CLI::ConfigItem& item, const std::string& path) {
  if (option.count() > 0) return;
  try {
    if (option.get_expected_min() == 0) {
      if (item.inputs.size() != 1) throw CLI::ConversionError::TooManyInputsFlag(item.name);
      const std::string value = CLI::detail::to_lower(item.inputs.front());
      constexpr std::array kAnswers{"true", "false", "on", "off", "yes", "no", "1", "0"};
      if (std::find(kAnswers.begin(), kAnswers.end(), value) == kAnswers.end())
        throw_error(Fault::usage, "{}: {} = {} is not valid; write true or false", path, item.name, printable(value));
      option.add_result(option.get_flag_value(item.name, item.inputs.front()));
    } else {
      option.add_result(item.inputs);
    }
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    throw_error(Fault::usage, "{}: {}", path, error.what());
  }
}

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

/// Refuses what CLI11's reader takes no notice of, lines of one or two bytes, and what it takes gigabytes for, sections
/// in sections. Leaves `text` at its beginning.
void expect_readable(std::istringstream& text, const std::string& path) {
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find('\0') != std::string::npos) throw_error(Fault::usage, "{}: line {} has a zero byte", path, number);
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#' || line[first] == ';') continue;
    const std::string word = line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
    const bool nested = word.front() == '[' && std::count(word.begin(), word.end(), '.') > 1;
    const bool says_something = word.size() > 2 || std::none_of(word.begin(), word.end(), is_word_character);
    if (says_something && !nested) continue;  // "]" alone ends an array
    throw_error(Fault::usage, "{}: line {} is '{}'; valid are 'option = value', '[command]' and '# comment'", path,
                number, printable(word.substr(0, 40)));
  }
  text.clear();
  text.seekg(0);
}

void read_config(CLI::App& command, const std::string& path) {
  remember_input({"--config", path});
  constexpr std::uint64_t kMostBytes = 1 << 20;
  std::string bytes = read_file(path, kMostBytes, "--config " + path);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
  std::istringstream text{bytes};
  expect_readable(text, path);
  const std::vector<CLI::ConfigItem> items = CLI::ConfigTOML{}.from_config(text);
  std::vector<std::string> sections;
  for (const auto* each : command.get_parent()->get_subcommands({})) sections.push_back(each->get_name());
  const auto keys = keys_of(command);
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::set<std::string> seen;
  for (const auto& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // a section begins or ends
    const std::string section = item.parents.empty() ? command.get_name() : item.parents.front();
    if (item.parents.size() > 1 || !has(sections, section)) {
      throw_error(Fault::usage, "{}: there is no section [{}]; sections are commands: {}", path,
                  joined(item.parents, "."), joined(sections, ", "));
    }
    if (section != command.get_name()) continue;  // of another command, for which the file is as well
    if (!has(keys, item.name)) {
      const std::string near = nearest(item.name, keys);
      throw_error(
          Fault::usage, "{}: there is no option '{}' of gradtool {}; {}", path, item.name, command.get_name(),
          near.empty() ? fmt::format("there are {}", joined(keys, ", ")) : fmt::format("did you mean '{}'?", near));
    }
    if (!seen.insert(item.name).second) {
      throw_error(Fault::usage, "{}: '{}' is there twice; several values are a list: {} = [\"A\", \"B\"]", path,
                  item.name, item.name);
    }
    CLI::Option* option = command.get_option_no_throw("--" + item.name);
    set_from_file(option != nullptr ? *option : *command.get_option(item.name), item, path);
  }
}

}  // namespace

void add_general_options(CLI::App& command) {
  command.get_help_ptr()->group(kGeneral);
  command
      .add_option_function<std::string>(
          "--config", [&command](const std::string& path) { read_config(command, path); },
          "Take options from this TOML or INI file: keys are their long names, alone or under [" + command.get_name() +
              "]; what the command line has counts more")
      ->type_name("FILE")
      ->configurable(false)
      ->group(kGeneral);
  command
      .add_option_function<std::string>(
          "--color",
          [](const std::string& when) {
            choose_color(when == "always"  ? ColorChoice::always
                         : when == "never" ? ColorChoice::never
                                           : ColorChoice::automatic);
          },
          "auto (on a terminal, unless NO_COLOR is set), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->default_str("auto")
      ->group(kGeneral);
}

void add_codec_names(std::vector<std::string>& words) {
  for (const auto* codec : codecs()) words.emplace_back(codec->name);
  for (const Preset& preset : presets()) words.emplace_back(preset.name);
}

std::vector<std::string> words_of(const CLI::Option& option) {
  std::vector<std::string> words;
  const std::string type = option.get_type_name();
  if (type == "CODEC") {
    words.emplace_back("all");
    add_codec_names(words);
    return words;
  }
  if (type == "NAME") {  // of gradtool list
    words = list_names();
    add_codec_names(words);
    return words;
  }
  if (type == "MODEL") return model_names();
  if (type == "DATASET") return dataset_names();
  if (type == "OPTIMIZER") return optimizer_names();
  if (type == "NETWORK") {
    for (const auto& profile : network_profiles()) words.emplace_back(profile.name);
    return words;
  }
  const auto open = type.find('{');  // CLI::IsMember says what it accepts
  const auto close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return words;
  for (const std::string_view word : split(std::string_view{type}.substr(open + 1, close - open - 1), ','))
    words.emplace_back(word);
  return words;
}

std::string nearest_flag(const CLI::App& parser, const std::string& word) {
  std::vector<std::string> names;
  for (const auto* option : parser.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const auto* sub : parser.get_subcommands({})) names.push_back(sub->get_name());
  return nearest(word.substr(0, word.find('=')), names);
}

}  // namespace gradtool::app
