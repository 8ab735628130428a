#include "lib/report/table.hpp"

#include <fmt/format.h>

#include <cmath>

#include "lib/core/error.hpp"

namespace gradtool {

void Table::add(std::vector<Cell> row) {
  if (row.size() != columns_.size()) {
    throw Error{Fault::usage,
                fmt::format("table {}: a row has {} cells for {} columns", name_, row.size(), columns_.size())};
  }
  rows_.push_back(std::move(row));
}

std::size_t Table::index_of(std::string_view column) const {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].name == column) return i;
  }
  throw Error{Fault::usage, fmt::format("table {} has no column {}", name_, column)};
}

std::string to_text(const Cell& cell) {
  struct Printer {
    std::string operator()(std::monostate) const { return {}; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
    std::string operator()(double value) const { return std::isnan(value) ? "nan" : fmt::format("{}", value); }
    std::string operator()(const std::string& value) const { return value; }
  };
  return std::visit(Printer{}, cell);
}

}  // namespace gradtool
