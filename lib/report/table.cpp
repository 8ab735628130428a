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

std::string cut_in_the_middle(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  const auto inside = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  std::size_t head = (most - 3) * 2 / 5;
  std::size_t tail = text.size() - (most - 3 - head);
  while (head > 0 && inside(head)) --head;
  while (tail < text.size() && inside(tail)) ++tail;
  return text.substr(0, head) + "..." + text.substr(tail);
}

std::string format_rows(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                        const std::vector<bool>& align_right, std::size_t max_cell) {
  // A name that is cut might be that of another row, so it stands above the row's other cells.
  const auto stands_above = [&](const std::vector<std::string>& row, std::size_t c) {
    return row[c].size() > max_cell && !align_right[c] && c + 1 < row.size();
  };
  const auto shown = [&](const std::vector<std::string>& row, std::size_t c) {
    return row[c].size() <= max_cell ? row[c] : row[c].substr(0, max_cell - 3) + "...";
  };
  std::vector<std::size_t> width(header.size());
  for (std::size_t c = 0; c < header.size(); ++c) width[c] = header[c].size();
  for (const auto& row : rows) {
    for (std::size_t c = 0; row.size() > 1 && c < row.size(); ++c) {
      if (!stands_above(row, c)) width[c] = std::max(width[c], shown(row, c).size());
    }
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    std::size_t column = 0;  // where the next cell begins
    const auto end_line = [&] {
      line.erase(line.find_last_not_of(' ') + 1);
      if (!line.empty()) out += line + '\n';
    };
    for (std::size_t c = 0; c < row.size(); ++c) {
      column += width[c] + 2;
      if (stands_above(row, c)) {
        line += row[c];
        end_line();
        line.assign(column, ' ');
        continue;
      }
      const std::string cell = shown(row, c);
      const std::string pad(width[c] - cell.size(), ' ');
      line += (align_right[c] ? pad + cell : cell + pad) + "  ";
    }
    end_line();
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
