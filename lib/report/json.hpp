#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "lib/report/table.hpp"

namespace gradtool {

// Every source that parses or writes JSON by itself compiles the parser or the writer again: some seconds each.

/// A value that is_discarded() where the text is no valid JSON, or is nested more than kMostJsonDepth deep: nothing
/// that this program writes is, and what copies or prints a value calls itself once for each level.
[[nodiscard]] nlohmann::ordered_json parse_json(std::string_view text);
inline constexpr int kMostJsonDepth = 100;

/// In lines indented by `indent` spaces a level, or in one line where that is negative. Bytes that are no UTF-8, as
/// file names may have, become U+FFFD, since JSON cannot hold them.
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

/// One cell: null for "not measured"; infinities and NaN become the strings "inf", "-inf", "nan", which JSON cannot
/// say.
[[nodiscard]] nlohmann::ordered_json to_json(const Cell& cell);

/// An array with one object per row, keys in column order.
[[nodiscard]] nlohmann::ordered_json to_json(const Table& table);

/// Version, commit, compiler, machine (CPU, cores, memory), date and an allow-list of the environment. Never all of it.
[[nodiscard]] nlohmann::ordered_json provenance();
/// The CPU's name, as Linux has it; empty where it has none.
[[nodiscard]] std::string processor_name();

}  // namespace gradtool
