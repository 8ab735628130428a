#include "lib/compare/compare.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/core/files.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/json.hpp"
#include "lib/report/outputs.hpp"

namespace gradtool::app {
namespace {

struct CompareArguments {
  CompareOptions compare;
  std::string a, b, json, markdown;
  bool all = false, no_times = false;
};

int run(CompareArguments& o) {
  expect_separate_files(std::vector<NamedPath>{{"A", o.a}, {"B", o.b}},
                        std::vector<NamedPath>{{"--json", o.json}, {"--markdown", o.markdown}});
  if (!(o.compare.margin > 0.0 && o.compare.margin <= 1.0))
    throw_error(Fault::usage, "--margin {} is not valid; write a share above 0 up to 1", o.compare.margin);
  if (!(o.compare.tolerance >= 0.0 && o.compare.tolerance < 1.0))
    throw_error(Fault::usage, "--tolerance {} is not valid; write a share from 0, such as 1e-6", o.compare.tolerance);
  o.compare.times = !o.no_times;
  const BenchRun a = read_bench_run(o.a), b = read_bench_run(o.b);
  const Comparison comparison = compare_runs(a, b, o.compare);
  if (comparison.rows == 0) {
    const std::string& other = comparison.other_capture;
    throw_error(Fault::usage, "{} and {} have no row in common: they are of {}", o.a, o.b,
                other.empty() ? "other codecs, parameters, granularities, ranks or captures" : other);
  }
  Outputs outputs;
  if (!o.json.empty()) outputs.text(o.json, json_text(to_json(comparison, o.compare), 1) + "\n");
  if (!o.markdown.empty()) outputs.text(o.markdown, to_markdown(comparison, o.all));
  if (o.json != "-" && o.markdown != "-") fmt::print("{}", to_text(comparison, o.all));
  std::fflush(stdout);
  outputs.finish();
  return comparison.regression() ? static_cast<int>(Fault::check) : 0;
}

}  // namespace

Subcommand add_compare(CLI::App& root) {
  auto* app = root.add_subcommand("compare", "Compare two runs of bench: before and after, two versions, two machines");
  auto o = std::make_shared<CompareArguments>();
  app->add_option("A", o->a, "What bench wrote, --json or --csv; only a record has the samples")
      ->required()
      ->type_name("FILE");
  app->add_option("B", o->b, "The same of the other run")->required()->type_name("FILE");
  app->add_option("--margin", o->compare.margin,
                  "A difference in time that would have been seen where the verdict is SAME; else it is UNCLEAR")
      ->capture_default_str();
  app->add_option(
         "--tolerance", o->compare.tolerance,
         "Relative difference of errors that passes, for machines whose libraries round differently; bytes have none")
      ->capture_default_str();
  app->add_flag("--no-times", o->no_times, "Compare bytes and errors alone");
  app->add_flag("--all", o->all, "Show the times that are the same, too");
  for (const char* times : {"--margin", "--all"}) app->get_option(times)->excludes("--no-times");
  app->add_option("--json", o->json, "Write every difference; - for standard output");
  app->add_option("--markdown", o->markdown, "Write the comparison for a pull request; - for standard output");
  for (const char* file : {"--json", "--markdown"}) app->get_option(file)->type_name("FILE");
  set_groups(*app, {{"What counts as the same", {"--margin", "--tolerance", "--no-times"}},
                    {"Output", {"--all", "--json", "--markdown"}}});
  app->footer(
      "Bytes and errors must be the same to the last digit. A time is SLOWER or FASTER where chance alone would hardly "
      "make such a difference in any row, SAME where a difference of --margin would have been seen, else UNCLEAR.\n"
      "Ends with status 1 on a regression: a changed byte or error, a row that is gone, a time that is slower.\n"
      "Examples:\n"
      "  gradtool compare before.json after.json\n"
      "  gradtool compare laptop.json server.json --no-times --tolerance 1e-6");
  return {app, [o] { return run(*o); }};
}

}  // namespace gradtool::app
