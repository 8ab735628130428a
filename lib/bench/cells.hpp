#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lib/report/table.hpp"

namespace gradtool {

/// A cell as a number; nothing where it holds none.
[[nodiscard]] inline std::optional<double> number(const Table& table, std::size_t row, std::string_view column) {
  const Cell& cell = table.at(row, column);
  if (const auto* value = std::get_if<double>(&cell)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*value);
  return std::nullopt;
}

/// A cell as it is printed.
[[nodiscard]] inline std::string text(const Table& table, std::size_t row, std::string_view column) {
  return to_text(table.at(row, column));
}

}  // namespace gradtool
