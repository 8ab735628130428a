#include "lib/report/csv.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/core/utf8.hpp"

namespace gradtool {
namespace {

void append_field(std::string& out, std::string_view field) {
  if (!is_utf8(field)) return append_field(out, as_utf8(field));
  if (field.find_first_of(",\"\r\n") == std::string_view::npos) {
    out += field;
    return;
  }
  out += '"';
  for (const char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

void append_cell(std::string& out, const Cell& cell) {
  if (const auto* text = std::get_if<Text>(&cell)) return append_field(out, text->str());
  if (const auto* real = std::get_if<double>(&cell); real != nullptr && !std::isnan(*real)) {
    fmt::format_to(std::back_inserter(out), "{}", *real);
  } else if (const auto* integer = std::get_if<std::int64_t>(&cell)) {
    fmt::format_to(std::back_inserter(out), "{}", *integer);
  } else {
    out += to_text(cell);
  }
}

/// Calls write(text) with the table's text, part by part: a table of gigabytes is not held a second time.
template <class Write>
void each_part(const Table& table, Write write) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  std::string text;
  const char* separator = "";
  for (const auto& column : table.columns()) {
    text += separator;
    append_field(text, column.name);  // a network's parameters, which have commas, may be part of it
    separator = ",";
  }
  text += '\n';
  for (const auto& row : table.rows()) {
    separator = "";
    for (const auto& cell : row) {
      text += separator;
      append_cell(text, cell);
      separator = ",";
    }
    text += '\n';
    if (text.size() < kPart) continue;
    write(text);
    text.clear();
  }
  write(text);
}

}  // namespace

void write_csv(std::ostream& out, const Table& table) {
  each_part(table, [&](const std::string& text) { out << text; });
}

void save_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size() || std::fflush(stdout) != 0) {
      throw Error{Fault::backend,
                  std::string{"output is lost: standard output cannot be written: "} + std::strerror(errno)};
    }
    return;
  }
  OutputFile file{path};
  file.write(text);
  file.commit();
}

void expect_writable(const std::string& path) {
  if (!is_stream(path)) {
    namespace fs = std::filesystem;
    fs::path folder = fs::absolute(follow_links(path)).parent_path();
    if (fs::exists(folder)) {
      const OutputFile file{path};
      return;
    }
    // Folders are made when the file is written. Making them now would be in vain where another option is not valid.
    while (!fs::exists(folder)) folder = folder.parent_path();
    const int error = !fs::is_directory(folder) ? ENOTDIR : access(folder.c_str(), W_OK | X_OK) != 0 ? errno : 0;
    if (error != 0) throw Error{Fault::backend, path + ": cannot be written: " + std::strerror(error)};
  } else if (path != "-" && access(path.c_str(), W_OK) != 0) {  // opening a pipe would wait for its reader
    throw Error{Fault::backend, path + ": cannot be written: " + std::strerror(errno)};
  }
}

void save_csv(const std::string& path, const Table& table) {
  if (path == "-") return each_part(table, [&](const std::string& text) { save_text(path, text); });
  OutputFile file{path};
  each_part(table, [&](const std::string& text) { file.write(text); });
  file.commit();
}

}  // namespace gradtool
