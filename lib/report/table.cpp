#include "lib/report/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <unordered_set>

#include "lib/core/throw_error.hpp"

namespace gradtool {

void Table::add(std::vector<Cell> row) {
  expects(row.size() == columns_.size(), "a row of a table does not have one cell for every column");
  rows_.push_back(std::move(row));
}

std::size_t Table::index_of(std::string_view column) const {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].name == column) return i;
  }
  throw_error(Fault::internal, "table {} has no column {}", name_, column);
}

const std::string* Text::shared(std::string_view text) {
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view value) const { return std::hash<std::string_view>{}(value); }
  };
  static std::mutex lock;
  static auto& texts = *new std::unordered_set<std::string, Hash, std::equal_to<>>;  // never destroyed: cells are
  const std::scoped_lock held{lock};
  const auto found = texts.find(text);
  return &*(found != texts.end() ? found : texts.emplace(text).first);
}

std::string to_text(const Cell& cell) {
  struct Printer {
    std::string operator()(std::monostate) const { return {}; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
    std::string operator()(double value) const { return std::isnan(value) ? "nan" : fmt::format("{}", value); }
    std::string operator()(const Text& value) const { return value.str(); }
  };
  return std::visit(Printer{}, cell);
}

std::string format_rows(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                        const std::vector<bool>& align_right, std::size_t max_cell) {
  const auto shown = [max_cell](const std::string& cell) {
    return cell.size() <= max_cell ? cell : cell.substr(0, max_cell - 3) + "...";
  };
  std::vector<std::size_t> width(header.size());
  for (std::size_t c = 0; c < header.size(); ++c) width[c] = header[c].size();
  for (const auto& row : rows) {
    for (std::size_t c = 0; row.size() > 1 && c < row.size(); ++c) width[c] = std::max(width[c], shown(row[c]).size());
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string cell = shown(row[c]);
      const std::string pad(width[c] - cell.size(), ' ');
      if (c > 0) line += "  ";
      line += align_right[c] ? pad + cell : cell + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  append(header);
  for (const auto& row : rows) {
    if (row.size() == 1)
      out += row.front() + '\n';
    else
      append(row);
  }
  return out;
}

std::string markdown_rows(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                          const std::vector<bool>& align_right) {
  std::string out;
  const auto append = [&](const std::vector<std::string>& row) {
    for (std::size_t c = 0; c < header.size(); ++c) {
      out += "| ";
      for (const char character : c < row.size() ? row[c] : std::string{}) {
        if (character == '|') out += '\\';
        out += character;
      }
      out += ' ';
    }
    out += "|\n";
  };
  append(header);
  for (std::size_t c = 0; c < header.size(); ++c) out += align_right[c] ? "| ---: " : "| --- ";
  out += "|\n";
  for (const auto& row : rows) append(row);
  return out;
}

}  // namespace gradtool
