#pragma once

#include <string>

#include "lib/page/page.hpp"

namespace gradtool {

/// Writes every chart of the page into `folder` for papers: <id>.vl.json (the specification with its numbers),
/// <id>.csv, and <id>.svg or <id>.png as `format` says, 640 pixels wide, drawn by the Python package vl-convert-python.
/// Returns the number of charts. Throws Fault::unavailable where no Python here has the package; then nothing is
/// written.
std::size_t render_charts(const Page& page, const std::string& format, const std::string& folder);

}  // namespace gradtool
