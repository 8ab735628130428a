// Help texts: at most 80 columns wide, options in groups.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/options.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"

namespace gradtool::app {
namespace {

constexpr std::size_t kColumn = 26;  // where descriptions begin

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string out = make_description(app) + make_usage(app, std::move(name)) + make_positionals(app);
    std::vector<std::string> groups = app->get_groups();
    std::stable_partition(groups.begin(), groups.end(), [](const std::string& group) { return group != kGeneral; });
    for (const auto& group : groups) {
      const auto options = app->get_options([&group](const CLI::Option* option) {
        return option->get_group() == group && option->nonpositional() && !group.empty();
      });
      if (!options.empty()) out += make_group(group, false, options);
    }
    return out + make_subcommands(app, mode) + "\n" + make_footer(app);
  }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    // CLI11 writes every name, the check and the default into the left column; they would fill most of a line.
    std::string name = positional ? option->get_name(true, false) : option->get_name(false, true);
    const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));
    if (!positional && option->get_type_size() != 0 && !type.empty()) name += " " + type;
    std::string text = option->get_description();
    std::string value = option->get_type_size() != 0 ? option->get_default_str() : "";
    if (value.starts_with('[')) value = value.substr(1, value.size() - 2);  // a list
    if (!value.empty()) text += fmt::format(" [{}]", value);
    return entry(name, text);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), kWidth, "");
  }

  std::string make_footer(const CLI::App* app) const override {
    std::string out, footer = app->get_footer();
    if (footer.ends_with('\n')) footer.pop_back();
    for (const std::string_view line : split(footer, '\n')) out += wrapped(line, kWidth, "");
    return out;
  }

 private:
  static std::string entry(const std::string& name, const std::string& text) {
    const std::string margin(kColumn, ' ');
    std::string line = "  " + name;
    const bool fits = line.size() + 2 <= kColumn;
    if (fits) line.resize(kColumn, ' ');
    if (text.empty()) return line + "\n";
    return (fits ? "" : wrapped(line, kWidth, "      ")) + wrapped((fits ? line : margin) + text, kWidth, margin);
  }
};

}  // namespace

void set_groups(CLI::App& command, std::initializer_list<OptionGroup> groups) {
  for (const auto& group : groups) {
    for (const char* name : group.options) command.get_option(name)->group(group.heading);
  }
}

void set_help_format(CLI::App& root) {
  root.formatter(std::make_shared<HelpFormatter>());
  root.get_help_ptr()->group(kGeneral);
}

}  // namespace gradtool::app
