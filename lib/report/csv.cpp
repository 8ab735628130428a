#include "lib/report/csv.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "lib/core/error.hpp"
#include "lib/core/files.hpp"

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
    out << separator;
    write_field(out, column.name);  // a network's parameters, which have commas, may be part of it
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
  std::ostringstream text;
  write_csv(text, table);
  save_text(path, text.str());
}

}  // namespace gradtool
