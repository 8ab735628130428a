#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gradtool {

/// A text of a table. Equal texts share one copy, which stays until the program ends: the tables of a model with tens
/// of thousands of tensors name each in hundreds of rows. May be made in any thread.
class Text {
 public:
  template <class S>
  requires std::convertible_to<const S&, std::string_view> Text(const S& text) : shared_{shared(text)} {}

  [[nodiscard]] const std::string& str() const { return *shared_; }
  operator const std::string&() const { return *shared_; }
  friend bool operator==(const Text& a, const Text& b) { return a.shared_ == b.shared_; }

 private:
  [[nodiscard]] static const std::string* shared(std::string_view text);
  const std::string* shared_;
};

/// One value of a table. `monostate` means "not measured" and is printed as nothing, never as 0.
using Cell = std::variant<std::monostate, bool, std::int64_t, double, Text>;

/// Puts cells behind those of a row.
template <class... Cells>
void append(std::vector<Cell>& row, Cells&&... cells) {
  (row.emplace_back(std::forward<Cells>(cells)), ...);
}

/// A column: `name` is lower_snake with its unit at the end (`total_us_median`), `meaning` one line for the docs.
struct Column {
  std::string name;
  std::string meaning;
};

/// Rows of cells under named columns. Independent variables come first. Rows are appended whole.
class Table {
 public:
  Table(std::string name, std::vector<Column> columns) : name_{std::move(name)}, columns_{std::move(columns)} {}

  /// `row` has one cell for every column, else Fault::internal.
  void add(std::vector<Cell> row);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Column>& columns() const { return columns_; }
  [[nodiscard]] const std::vector<std::vector<Cell>>& rows() const { return rows_; }
  /// Position of the column. Throws Fault::internal when there is none of that name.
  [[nodiscard]] std::size_t index_of(std::string_view column) const;
  [[nodiscard]] const Cell& at(std::size_t row, std::string_view column) const {
    return rows_.at(row)[index_of(column)];
  }
  void set(std::size_t row, std::string_view column, const Cell& value) { rows_.at(row)[index_of(column)] = value; }

 private:
  std::string name_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// The shortest text that reads back to the same value; "inf", "nan" as pandas reads them; empty for monostate.
[[nodiscard]] std::string to_text(const Cell& cell);

/// `text` in at most `most` bytes, 5 or more: where it is longer, "..." stands for its middle, because the ends of a
/// tensor's name are what tells it from others. No character of UTF-8 is cut.
[[nodiscard]] std::string cut_in_the_middle(const std::string& text, std::size_t most);

/// A table for people: columns padded to their widest cell, those of `align_right` on the right. A name longer than
/// `max_cell`, on the left, is whole, and the row's other cells follow in the next line; other cells so long end in
/// "...". A row of one cell is a heading for those below it, as long as it is. The header is first, two spaces are
/// between columns, none at the end of a line.
[[nodiscard]] std::string format_rows(const std::vector<std::string>& header,
                                      const std::vector<std::vector<std::string>>& rows,
                                      const std::vector<bool>& align_right, std::size_t max_cell = 40);

/// The rows as a table of GitHub's Markdown, cells whole. A row may have fewer cells than the header.
[[nodiscard]] std::string markdown_rows(const std::vector<std::string>& header,
                                        const std::vector<std::vector<std::string>>& rows,
                                        const std::vector<bool>& align_right);

}  // namespace gradtool
