#pragma once

#include <iosfwd>
#include <string>

#include "lib/report/table.hpp"

namespace gradtool {

/// RFC 4180 with "\n" line ends: one header line, no comments. A field is quoted when it holds a comma, quote or line
/// end. Bytes that are no UTF-8, as file names may have, become U+FFFD, because readers of CSV refuse the whole file.
void write_csv(std::ostream& out, const Table& table);

/// A file of that name is always whole, see OutputFile; "-" is standard output. Throws Fault::backend when it cannot be
/// written. Parent folders are made.
void save_csv(const std::string& path, const Table& table);

/// Throws Fault::backend when save_csv or save_text could not write there: a folder of that name, a parent that is not
/// one, no permission. Leaves nothing behind, and does not open devices and pipes.
void expect_writable(const std::string& path);

/// Writes any text, in the way of save_csv.
void save_text(const std::string& path, const std::string& text);

}  // namespace gradtool
