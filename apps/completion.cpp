// gradtool completion: scripts for shells, written from the tree of options, so that they know what the program knows.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/core/text.hpp"

namespace gradtool::app {
namespace {

/// An option or a positional argument, as a shell needs it.
struct Argument {
  std::vector<std::string> shorts, longs;  ///< without dashes; both empty for a positional argument
  std::vector<std::string> words;          ///< that it may be; empty where it is free
  bool takes_value = false, takes_path = false;
  std::string text;  ///< what it is, short enough for a menu

  [[nodiscard]] bool positional() const { return shorts.empty() && longs.empty(); }
  [[nodiscard]] std::vector<std::string> flags() const {
    std::vector<std::string> flags;
    for (const auto& name : shorts) flags.push_back("-" + name);
    for (const auto& name : longs) flags.push_back("--" + name);
    return flags;
  }
};

struct Command {
  std::string name, text;
  std::vector<Argument> arguments;

  [[nodiscard]] std::string flags() const {
    std::vector<std::string> all;
    for (const auto& argument : arguments) {
      const auto flags = argument.flags();
      all.insert(all.end(), flags.begin(), flags.end());
    }
    return joined(all, " ");
  }
};

/// The description up to its first stop, and without what shells read as more than text.
std::string menu_text(const std::string& description) {
  std::string text = description.substr(0, std::min(description.find_first_of(";:("), std::size_t{60}));
  std::replace(text.begin(), text.end(), '[', '(');
  std::replace(text.begin(), text.end(), ']', ')');
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == '\'' || c == '"' || c == '\\'; }),
             text.end());
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

Command command_of(const CLI::App& app) {
  Command command{app.get_name(), menu_text(app.get_description()), {}};
  for (const auto* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool positional = option->get_positional();
    command.arguments.push_back({.shorts = positional ? std::vector<std::string>{} : option->get_snames(),
                                 .longs = positional ? std::vector<std::string>{} : option->get_lnames(),
                                 .words = words_of(*option),
                                 .takes_value = option->get_type_size() != 0,
                                 .takes_path = type == "FILE" || type == "FOLDER",
                                 .text = menu_text(option->get_description())});
  }
  return command;
}

std::vector<Command> commands_of(const CLI::App& root) {
  std::vector<Command> commands;
  for (const auto* app : root.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(command_of(*app));
  return commands;
}

std::string joined_names(const std::vector<Command>& commands, const char* separator) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const auto& command : commands) names.push_back(command.name);
  return joined(names, separator);
}

std::string bash_script(const Command& root, const std::vector<Command>& commands) {
  std::string values, words;
  for (const auto& command : commands) {
    words += fmt::format("    '{} -'*) words='{}' ;;\n", command.name, command.flags());
    for (const auto& argument : command.arguments) {
      const std::string list = joined(argument.words, " ");
      if (argument.positional()) {
        if (!list.empty()) words += fmt::format("    '{} '*) words='{}' ;;\n", command.name, list);
      } else if (argument.takes_value) {
        std::vector<std::string> cases;
        for (const auto& flag : argument.flags()) cases.push_back(fmt::format("'{} {}'", command.name, flag));
        values +=
            fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n", joined(cases, "|"), list);
      }
    }
  }
  // Bash proposes file names (-o default) when this function proposes nothing.
  return fmt::format(R"(# Completion of gradtool for bash: in ~/.bashrc write  source <(gradtool completion bash)
_gradtool() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command='' words='' word
  # bash makes a word of the = in --codec=topk
  if [[ $prev == = ]]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  if [[ $cur == = ]]; then cur=''; fi
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in {names}) command="$word"; break ;; esac
  done
  case "$command $prev" in
{values}  esac
  case "$command $cur" in
    ' '*) words='{commands} {flags}' ;;
{words}  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _gradtool gradtool
)",
                     fmt::arg("names", joined_names(commands, "|")), fmt::arg("commands", joined_names(commands, " ")),
                     fmt::arg("flags", root.flags()), fmt::arg("values", values), fmt::arg("words", words));
}

std::string zsh_script(const Command& root, const std::vector<Command>& commands) {
  const auto values_of = [](const Argument& argument) {
    return argument.words.empty() ? std::string{argument.takes_path || argument.positional() ? "_files" : " "}
                                  : fmt::format("({})", joined(argument.words, " "));
  };
  const auto specs_of = [&](const Command& command) {
    std::string specs;
    for (const auto& argument : command.arguments) {
      if (argument.positional()) specs += fmt::format(" \\\n        '*:{}:{}'", argument.text, values_of(argument));
      for (const auto& flag : argument.flags()) {
        specs += fmt::format(" \\\n        '*{}[{}]{}'", flag, argument.text,
                             argument.takes_value ? fmt::format(":value:{}", values_of(argument)) : "");
      }
    }
    return specs;
  };
  std::string menu, cases;
  for (const auto& command : commands) {
    menu += fmt::format(R"( {}\:"{}")", command.name, command.text);
    cases += fmt::format("    {})\n      _arguments{}\n      ;;\n", command.name, specs_of(command));
  }
  return fmt::format(R"(#compdef gradtool
# Completion of gradtool for zsh: write it to a file _gradtool in a folder of $fpath
_gradtool() {{
  local context state state_descr line
  typeset -A opt_args
  _arguments -C '1:command:(({menu}))' '*::argument:->rest'{specs}
  [[ $state == rest ]] || return
  case $line[1] in
{cases}  esac
}}
if [[ $funcstack[1] == _gradtool ]]; then _gradtool "$@"; else compdef _gradtool gradtool; fi
)",
                     fmt::arg("menu", menu), fmt::arg("specs", specs_of(root)), fmt::arg("cases", cases));
}

std::string fish_script(const Command& root, const std::vector<Command>& commands) {
  std::string out =
      "# Completion of gradtool for fish: gradtool completion fish > ~/.config/fish/completions/gradtool.fish\n";
  const auto add = [&out](const Command& command, const std::string& condition) {
    for (const auto& argument : command.arguments) {
      if (argument.positional() && argument.words.empty()) continue;  // a file, which fish proposes anyway
      out += fmt::format("complete -c gradtool -n '{}'", condition);
      for (const auto& name : argument.shorts) out += " -s " + name;
      for (const auto& name : argument.longs) out += " -l " + name;
      if (!argument.positional() && argument.takes_value) out += argument.takes_path ? " -r -F" : " -x";
      if (argument.positional()) out += " -f";
      if (!argument.words.empty()) out += fmt::format(" -a '{}'", joined(argument.words, " "));
      out += fmt::format(" -d '{}'\n", argument.text);
    }
  };
  add(root, "__fish_use_subcommand");
  for (const auto& command : commands) {
    out += fmt::format("complete -c gradtool -f -n __fish_use_subcommand -a {} -d '{}'\n", command.name, command.text);
    add(command, "__fish_seen_subcommand_from " + command.name);
  }
  return out;
}

}  // namespace

Subcommand add_completion(CLI::App& root) {
  auto* app = root.add_subcommand("completion", "Print a script that completes gradtool's words in a shell");
  auto shell = std::make_shared<std::string>();
  app->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app->footer(
      "Examples:\n"
      "  source <(gradtool completion bash)\n"
      "  gradtool completion zsh > ~/.zfunc/_gradtool\n"
      "  gradtool completion fish > ~/.config/fish/completions/gradtool.fish");
  return {app, [&root, shell] {
            const Command whole = command_of(root);
            const auto commands = commands_of(root);
            fmt::print("{}", *shell == "bash"  ? bash_script(whole, commands)
                             : *shell == "zsh" ? zsh_script(whole, commands)
                                               : fish_script(whole, commands));
            return 0;
          }};
}

}  // namespace gradtool::app
