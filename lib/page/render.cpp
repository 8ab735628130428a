#include "lib/page/render.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "lib/core/throw_error.hpp"
#include "lib/page/assets.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

/// The exit status of the program, 127 where it could not be started.
int run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, arguments.front(), nullptr, nullptr, arguments.data(), environ) != 0) return 127;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

/// A Python that has the package: the one named by GRADTOOL_CHARTS_PYTHON, python3, or the one that the build used.
std::string find_python() {
  const char* named = std::getenv("GRADTOOL_CHARTS_PYTHON");
  std::vector<std::string> candidates;
  if (named != nullptr && *named != '\0')
    candidates.emplace_back(named);
  else
    candidates = {"python3", GRADTOOL_BUILD_PYTHON};
  for (const auto& candidate : candidates) {
    if (run({candidate, "-c", std::string{asset("render.py")}, "svg", ".", "{}"}) == 0) return candidate;
  }
  throw_error(Fault::unavailable,
              "--format svg and png need a Python with vl-convert-python, and {} has it not; install it with pip, "
              "or name another one in GRADTOOL_CHARTS_PYTHON; the page (--format html) needs no Python",
              candidates.front());
}

}  // namespace

std::size_t render_charts(const Page& page, const std::string& format, const std::string& folder) {
  const std::string python = find_python();
  std::vector<std::string> words{python, "-c",   std::string{asset("render.py")},
                                 format, folder, std::string{asset("theme.json")}};
  const std::size_t first = words.size();
  const std::filesystem::path out{folder};
  for (const auto& section : page.sections) {
    for (const Chart& chart : section.figures.charts) {
      save_text((out / (chart.id + ".vl.json")).string(), json_text(whole_spec(chart), 1) + "\n");
      save_csv((out / (chart.id + ".csv")).string(), chart.table);
      words.push_back(chart.id);
    }
  }
  const std::size_t charts = words.size() - first;
  if (charts > 0 && run(std::move(words)) != 0)
    throw_error(Fault::backend, "{} could not draw the charts in {}; what it said stands above", python, folder);
  return charts;
}

}  // namespace gradtool
