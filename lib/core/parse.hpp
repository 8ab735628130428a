#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace gradtool {

/// The parts of a text between separators, empty ones too. An empty text has none. They are views into `text`.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (std::size_t end = text.find(separator); end != text.npos; end = text.find(separator)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

/// The decimal number that all of a text is; nothing where it is anything else or no value of the type.
template <class Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, status] = std::from_chars(text.data(), end, number);
  if (status != std::errc{} || stopped != end) return std::nullopt;
  return number;
}

}  // namespace gradtool
