#include "lib/core/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <regex>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string format(const char* pattern, double value, const char* unit) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), pattern, value, unit);
  return buffer.data();
}

/// In bytes. Compiling calls itself once for every parenthesis, and the stack is not endless.
constexpr std::size_t kLongestPattern = 1000;

const char* three_digits(double value) {
  return value < 9.995 ? "%.2f %s" : value < 99.95 ? "%.1f %s" : "%.0f %s";
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 2) + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

std::uint64_t parse_bytes(std::string_view text, std::string_view what) {
  double number = 0.0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit{end, static_cast<std::size_t>(text.data() + text.size() - end)};
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array kUnits{Unit{"", 1.0},     Unit{"B", 1.0},      Unit{"K", 0x1p10},   Unit{"M", 0x1p20},
                              Unit{"G", 0x1p30}, Unit{"KB", 1e3},     Unit{"kB", 1e3},     Unit{"MB", 1e6},
                              Unit{"GB", 1e9},   Unit{"KiB", 0x1p10}, Unit{"MiB", 0x1p20}, Unit{"GiB", 0x1p30}};
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == unit; });
  const double bytes = found == kUnits.end() ? -1.0 : number * found->bytes;
  if (status != std::errc{} || !(bytes >= 1.0) || bytes > 0x1p62) {
    throw Error{Fault::usage, std::string{what} + ": '" + std::string{text} +
                                  "' is not a size; write for example 25MB, 4MiB or 65536"};
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string human_bytes(double bytes) {
  if (bytes < 999.5) return format("%.0f %s", bytes, "B");
  constexpr std::array kUnits{"kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (bytes /= 1000.0; bytes >= 999.5 && unit + 1 < kUnits.size(); bytes /= 1000.0) ++unit;
  return format(three_digits(bytes), bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 999.5e-6) return format(three_digits(seconds * 1e6), seconds * 1e6, "us");
  if (seconds < 0.9995) return format(three_digits(seconds * 1e3), seconds * 1e3, "ms");
  if (seconds < 119.95) return format("%.1f %s", seconds, "s");
  const double rounded = std::round(seconds);  // before the division, or 179.7 s would read "2 min 60 s"
  return format("%.0f min", std::floor(rounded / 60.0), "") + format(" %.0f %s", std::fmod(rounded, 60.0), "s");
}

std::string wrapped(std::string_view text, std::size_t width, std::string_view indent) {
  std::string out;
  while (text.size() + (out.empty() ? 0 : indent.size()) > width) {
    const std::size_t room = width - (out.empty() ? 0 : indent.size());
    const std::size_t space = text.rfind(' ', room);
    // Spaces at the beginning belong to the line: they are how its writer indents it.
    const bool breakable = space != std::string_view::npos && text.find_first_not_of(' ') < space;
    const std::size_t cut = breakable ? space : room;
    out.append(out.empty() ? "" : indent).append(text.substr(0, cut)).append("\n");
    text.remove_prefix(cut + (breakable ? 1 : 0));
  }
  return out.append(out.empty() ? "" : indent).append(text).append("\n");
}

bool matches(const std::string& pattern, const std::string& text) {
  auto syntax = std::regex::ECMAScript;
#ifdef __GLIBCXX__
  // Without it a pattern such as (a*)*b takes time that doubles with every letter of the text.
  syntax |= std::regex_constants::__polynomial;
#endif
  if (pattern.size() > kLongestPattern) {
    throw Error{Fault::usage, "'" + pattern + "' is too long for a regular expression; write at most " +
                                  std::to_string(kLongestPattern) + " characters"};
  }
  try {
    return std::regex_search(text, std::regex{pattern, syntax});
  } catch (const std::regex_error& error) {
    throw Error{Fault::usage, "'" + pattern + "' is not a regular expression: " + error.what()};
  }
}

}  // namespace gradtool
