#include "lib/codecs/params.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// "one of max, l2" or "an integer from 2 to 8" or "a number from 0 to 1, or auto".
std::string valid_values(const ParamInfo& info) {
  std::string words;
  for (const auto word : split(info.choices, '|')) words += fmt::format("{}{}", words.empty() ? "" : ", ", word);
  if (info.kind == ParamInfo::Kind::choice) return "one of " + words;
  const std::string range = fmt::format(
      "{} from {} to {}", info.kind == ParamInfo::Kind::integer ? "an integer" : "a number", info.min, info.max);
  return words.empty() ? range : range + ", or " + words;
}

/// The value as texts have it, so that a codec has one name whatever digits a number was given in: 1e-2 is 0.01.
/// Nothing where it is not valid.
std::optional<std::string> value_text(const ParamInfo& info, std::string_view value) {
  for (const auto word : split(info.choices, '|')) {
    if (value == word) return std::string{value};
  }
  const auto number = info.kind == ParamInfo::Kind::choice ? std::nullopt : number_of<double>(value);
  if (!number || (info.kind == ParamInfo::Kind::integer && *number != std::floor(*number))) return std::nullopt;
  if (!(*number >= info.min && *number <= info.max)) return std::nullopt;
  if (*number == number_of<double>(info.default_value)) return std::string{info.default_value};
  if (info.kind == ParamInfo::Kind::integer) return fmt::format("{}", static_cast<std::int64_t>(*number));
  std::string text = fmt::format("{}", *number + 0.0);  // no -0
  if (const auto exponent = text.find("e-0"); exponent != std::string::npos) text.erase(exponent + 2, 1);
  return text;
}

}  // namespace

Params::Params(std::string_view codec, std::span<const ParamInfo> infos, std::string_view text) {
  for (const auto& info : infos) values_.emplace(info.name, info.default_value);
  std::map<std::string_view, bool> given;
  for (const auto part : split(text, ',')) {
    const auto equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const ParamInfo* found = nullptr;
    std::vector<std::string> names;
    for (const auto& info : infos) {
      names.emplace_back(info.name);
      if (info.name == key) found = &info;
    }
    if (found == nullptr || equals == std::string_view::npos) {
      std::string message = fmt::format("codec {}: '{}' is not one of its parameters", codec, part);
      if (found != nullptr)
        message = fmt::format("codec {}: parameter '{}' needs a value, {}", codec, key, valid_values(*found));
      else if (names.empty())
        message += "; it takes none";
      else if (const auto near = nearest(key, names); !near.empty())
        message += fmt::format("; did you mean '{}'?", near);
      else
        message += fmt::format("; it takes {}", joined(names, ", "));
      throw Error{Fault::usage, message};
    }
    const std::string_view value = part.substr(equals + 1);
    if (given[key]) throw_error(Fault::usage, "codec {}: parameter '{}' is given twice", codec, key);
    given[key] = true;
    const auto known = value_text(*found, value);
    if (!known)
      throw_error(Fault::usage, "codec {}: {}={} is not valid; {} is {}", codec, key, value, key, valid_values(*found));
    values_.find(key)->second = *known;
  }
  for (const auto& info : infos) {
    if (word(info.name) != info.default_value && !counts(info)) {
      const auto other = info.condition.substr(0, info.condition.find('='));
      throw_error(Fault::usage, "codec {}: {} counts only with {}, and {} is {}", codec, info.name, info.condition,
                  other, word(other));
    }
  }
  for (const auto& info : infos) text_ += fmt::format("{}{}={}", text_.empty() ? "" : ",", info.name, word(info.name));
}

bool Params::counts(const ParamInfo& info) const {
  const auto equals = info.condition.find('=');
  return info.condition.empty() || word(info.condition.substr(0, equals)) == info.condition.substr(equals + 1);
}

const std::string& Params::word(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw_error(Fault::usage, "no parameter '{}' was declared", name);
  return found->second;
}

double Params::real(std::string_view name) const {
  return number_of<double>(word(name)).value_or(std::nan(""));
}

std::int64_t Params::integer(std::string_view name) const {
  return static_cast<std::int64_t>(real(name));
}

}  // namespace gradtool
