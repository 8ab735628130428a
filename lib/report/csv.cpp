#include "lib/report/csv.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

void write_field(std::ostream& out, const std::string& field) {
  if (field.find_first_of(",\"\r\n") == std::string::npos) {
    out << field;
    return;
  }
  out << '"';
  for (const char c : field) {
    if (c == '"') out << '"';
    out << c;
  }
  out << '"';
}

}  // namespace

void write_csv(std::ostream& out, const Table& table) {
  const char* separator = "";
  for (const auto& column : table.columns()) {
    out << separator << column.name;
    separator = ",";
  }
  out << '\n';
  for (const auto& row : table.rows()) {
    separator = "";
    for (const auto& cell : row) {
      out << separator;
      write_field(out, to_text(cell));
      separator = ",";
    }
    out << '\n';
  }
}

void save_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    return;
  }
  const std::filesystem::path target{path};
  std::error_code status;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), status);
  const std::string part = path + ".part";
  std::ofstream file{part, std::ios::binary | std::ios::trunc};
  file << text;
  file.close();
  if (!file) throw Error{Fault::backend, path + ": cannot be written; check that the folder exists and has room"};
  std::filesystem::rename(part, target, status);
  if (status) throw Error{Fault::backend, path + ": cannot be written: " + status.message()};
}

void expect_writable(const std::string& path) {
  const std::filesystem::path target{path};
  std::error_code status;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), status);
  const std::string part = path + ".part";
  const bool folder = std::filesystem::is_directory(target, status);
  if (folder || !std::ofstream{part, std::ios::binary | std::ios::trunc}) {
    throw Error{Fault::backend, folder ? path + ": cannot be written: it is a folder"
                                       : path + ": cannot be written; check that the folder exists and has room"};
  }
  std::filesystem::remove(part, status);
}

void save_csv(const std::string& path, const Table& table) {
  std::ostringstream text;
  write_csv(text, table);
  save_text(path, text.str());
}

}  // namespace gradtool
