#include "lib/io/merge.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/report/progress.hpp"

namespace gradtool::app {
namespace {

int run(MergeOptions options) {
  std::vector<NamedPath> inputs;
  for (const auto& file : options.files) inputs.push_back({"FILE", file});
  expect_separate_files(inputs, std::vector<NamedPath>{{"--out", options.out}});
  if (is_stream(options.out)) {
    throw Error{Fault::usage, "--out " + options.out + ": a gradient file cannot be written to a device or a pipe"};
  }
  options.command = command_line();
  std::optional<Progress> bar;
  const MergeReport report = merge_gradient_files(options, [&bar](std::uint64_t done, std::uint64_t all) {
    if (!bar) bar.emplace("copying", all);
    bar->update(done);
  });
  bar.reset();
  for (const auto& note : report.notes) fmt::print(stderr, "{}\n", note);
  for (std::size_t i = 0; i < report.files.size(); ++i) fmt::print("  file {}: {}\n", i, printable(report.files[i]));
  if (report.interrupted && report.steps == 0) {
    fmt::print(stderr, "interrupted: nothing written\n");
    return kInterrupted;
  }
  fmt::print("Wrote {}: {} step{}{}, {} worker{}, {} tensors, {}{}\n", printable(options.out), report.steps,
             report.steps == 1 ? "" : "s", report.interrupted ? " (stopped early: not complete)" : "", report.workers,
             report.workers == 1 ? "" : "s", report.tensors, human_bytes(static_cast<double>(report.bytes)),
             options.copy ? "" : "; it refers to these files: keep them beside it");
  return report.interrupted ? kInterrupted : 0;
}

}  // namespace

Subcommand add_merge(CLI::App& root) {
  auto* app = root.add_subcommand("merge", "Make one gradient file of the files that the ranks of a job wrote");
  const auto options = std::make_shared<MergeOptions>();
  app->add_option("FILES", options->files, "Gradient files, one of each rank")->required()->type_name("FILE");
  app->add_option("-o,--out", options->out, "Gradient file to write (HDF5)")->required()->type_name("FILE");
  app->add_flag("--copy", options->copy, "Copy the values, instead of referring to the files");
  app->add_flag("--force", options->force, "Replace the file if it exists");
  set_groups(*app, {{"Output", {"--out", "--copy", "--force"}}});
  app->footer(
      "Workers are in the order of the files' attribute `rank`, or as given where a file lacks it. Steps are matched "
      "by iteration, and those that not all files have are left out. Without --copy the file takes a few kilobytes and "
      "refers to the others, which must stay in its folder.\n"
      "Examples:\n"
      "  gradtool merge run/rank*.h5 -o run/all.h5\n"
      "  gradtool merge run/rank*.h5 --copy -o whole.h5");
  return {app, [options] { return run(*options); }};
}

}  // namespace gradtool::app
