#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/page/bench_figures.hpp"
#include "lib/page/chart.hpp"

namespace gradtool {

/// The figures of all inputs, and what they were made from.
struct Page {
  std::string command;  ///< of this report
  struct Section {
    std::string kind;  ///< "bench", "training" or "analysis"
    std::string title;
    Origin origin;
    BenchFigures figures;  ///< of an analysis: charts, missing ones and notes only
  };
  std::vector<Section> sections;
  std::vector<SourceFile> files;
  std::vector<std::string> ignored;
};

/// All figures of what `paths` name. Throws what read_sources() throws.
[[nodiscard]] Page make_page(std::span<const std::string> paths, const FigureOptions& options,
                             const std::string& command);

/// Whether `html`, the text of a file, is a page of the same files as `page`.
[[nodiscard]] bool shows_same_files(const std::string& html, const Page& page);

/// One HTML file that needs nothing else: libraries, style, script, specifications and numbers are in it, and its
/// policy forbids the browser any request. Throws Fault::unavailable in a build without the charts' libraries.
[[nodiscard]] std::string html_of(const Page& page);

}  // namespace gradtool
