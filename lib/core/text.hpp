#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gradtool {

/// The elements as fmt writes them, with `separator` between them. fmt::join would compile the formatting of numbers
/// again in every source that uses it.
template <class List>
[[nodiscard]] std::string joined(const List& list, std::string_view separator) {
  std::string out;
  bool first = true;
  for (const auto& element : list) {
    if (!first) out += separator;
    first = false;
    if constexpr (std::is_convertible_v<decltype(element), std::string_view>)
      out += std::string_view{element};
    else
      out += fmt::format("{}", element);
  }
  return out;
}

/// The candidate with the smallest edit distance to `word`; empty when none is similar enough to be what was meant.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Parses a size such as "25MB", "4MiB", "512K", "1.5GB" or "1000" and returns the number of bytes. MB is 1e6 and MiB
/// is 2^20; K, M and G without B are powers of two, as in nccl-tests. A fraction of a byte is dropped. Throws
/// Fault::usage naming `what` for any other text, and for sizes below 1 byte or above 2^62 bytes.
[[nodiscard]] std::uint64_t parse_bytes(std::string_view text, std::string_view what);

/// A size in three significant digits with a decimal prefix, for example "12.3 kB" or "4.20 MB".
[[nodiscard]] std::string human_bytes(double bytes);
/// A duration for people, for example "12.3 us", "4.20 ms", "1.5 s" or "3 min 20 s".
[[nodiscard]] std::string human_seconds(double seconds);

/// The text in lines of at most `width` bytes, each with its line end, broken at spaces and, where a word is longer
/// than a line, inside of it. All lines but the first begin with `indent`.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t width, std::string_view indent = "  ");

/// True when `pattern` (ECMAScript regular expression) is found in `text`. The time grows with no more than a power of
/// the two lengths. Throws Fault::usage for a pattern that is malformed, refers back to a group (\\1), or has more than
/// 1000 bytes.
[[nodiscard]] bool matches(const std::string& pattern, const std::string& text);

}  // namespace gradtool
