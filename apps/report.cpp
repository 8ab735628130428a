#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/page/assets.hpp"
#include "lib/page/page.hpp"
#include "lib/page/render.hpp"
#include "lib/report/csv.hpp"

namespace gradtool::app {
namespace {

struct ReportArguments {
  std::vector<std::string> paths;
  std::string out, format = "html";
  std::vector<std::string> networks;
  std::optional<std::string> nodes;
  std::optional<double> max_nmse;
  std::vector<std::string> trained;
};

/// The advice for every run of the bench, and what trainings came to.
std::string text_of(const Page& page) {
  std::string text;
  for (const auto& section : page.sections) {
    const BenchFigures& figures = section.figures;
    std::string own = figures.text.answer + figures.text.reasons;
    if (section.kind == "training") {
      for (const auto& sentence : figures.basis) own += wrapped(sentence, 80, "  ");
    }
    if (!own.empty()) text += fmt::format("{}{}:\n{}", text.empty() ? "" : "\n", section.title, own);
  }
  if (text.empty())
    throw Error{Fault::usage,
                "--format text is the advice for networks and the accuracy of trainings: give a record of gradtool "
                "bench or train"};
  return text;
}

int run(const ReportArguments& options) {
  if (!charts_available()) static_cast<void>(asset("vega.js"));  // says what to install
  std::vector<NamedPath> inputs;
  for (const auto& path : options.paths) inputs.push_back({"input", path});
  for (const auto& text : options.networks) inputs.push_back({"--network", network_file(text)});
  for (const auto& trained : options.trained) inputs.push_back({"--trained", trained});
  const bool html = options.format == "html", words = options.format == "text";
  const std::string out = !options.out.empty() ? options.out : html ? "report.html" : words ? "-" : "charts";
  if (!html && !words && out == "-")
    throw_error(Fault::usage, "--format {} writes a folder; name it with --out", options.format);
  if (html || words) expect_separate_files(inputs, std::vector<NamedPath>{{"--out", out}});
  if (options.max_nmse && !(*options.max_nmse >= 0.0 && *options.max_nmse <= 1e300))
    throw_error(Fault::usage, "--max-nmse {} is not valid; an error is 0 or more", *options.max_nmse);
  FigureOptions figures{.acceptance = parse_acceptance(options.max_nmse, options.trained), .networks = {}, .nodes = {}};
  for (const auto& text : options.networks) figures.networks.push_back(Network::from_option(text));
  if (options.nodes) figures.nodes = parse_node_counts(*options.nodes);
  if (html || words) expect_writable(out);
  const Page page = make_page(options.paths, figures, command_line());
  const bool about_codecs = options.max_nmse || options.nodes || !options.networks.empty() || !options.trained.empty();
  if (about_codecs && std::none_of(page.sections.begin(), page.sections.end(),
                                   [](const auto& section) { return section.kind == "bench"; })) {
    throw Error{Fault::usage,
                "--network, --nodes, --max-nmse and --trained are about records of gradtool bench, and none is among "
                "the inputs"};
  }
  if (words) {
    save_text(out, text_of(page));
    if (out != "-") fmt::print(stderr, "wrote {}\n", out);
    return 0;
  }
  if (!html) {
    const std::size_t drawn = render_charts(page, options.format, out);
    fmt::print(stderr, "wrote {} charts to {}: {}, CSV and specification of each\n", drawn, out, options.format);
    return 0;
  }
  // Records that were found in a folder are inputs as those that were named.
  for (const auto& file : page.files) inputs.push_back({"input", file.path});
  expect_separate_files(inputs, std::vector<NamedPath>{{"--out", out}});
  expect_same_kind({"--out", out}, OutputKind::page);
  if (options.out.empty() && std::filesystem::exists(out) &&
      !shows_same_files(read_file(out, kMostRecordBytes), page)) {
    throw_error(Fault::usage,
                "'{}' is there, and no page of these files; give the page a name with --out (--out {} replaces it)",
                out, out);
  }
  save_text(out, html_of(page));
  std::size_t charts = 0, missing = 0;
  for (const auto& section : page.sections) {
    charts += section.figures.charts.size();
    missing += section.figures.missing.size();
  }
  fmt::print(stderr, "wrote {}: {} charts of {} file{}{}\n", out, charts, page.files.size(),
             page.files.size() == 1 ? "" : "s",
             missing == 0 ? "" : fmt::format("; {} more would need other files, which the page names", missing));
  return 0;
}

}  // namespace

Subcommand add_report(CLI::App& root) {
  auto* app = root.add_subcommand("report", "Make one page of charts and verdicts from what bench and analyze wrote");
  auto options = std::make_shared<ReportArguments>();
  app->add_option(
         "INPUT", options->paths,
         "JSON records of bench, train, analyze, capture and info, their CSV files, or folders with such files")
      ->required();
  app->add_option("-o,--out", options->out,
                  "The page, one HTML file that opens without a network, or - for standard output [report.html]; with "
                  "text a file [standard output], with another --format a folder [charts]");
  app->add_option("--format", options->format,
                  "html; text: the advice and the accuracies alone; for papers svg or png: a file for each chart, with "
                  "its CSV and its Vega-Lite specification")
      ->check(CLI::IsMember({"html", "text", "svg", "png"}))
      ->capture_default_str();
  app->add_option("--network", options->networks,
                  "Model this network, as bench --network does, instead of those of the record; repeatable [those of "
                  "the record, else 1gbe, 10gbe and 100gbe]")
      ->take_all()
      ->expected(1)
      ->type_name("NETWORK");
  app->add_option("--nodes", options->nodes, "Machines in it: 2,4,8 or 2,4,...,4096 [as in the record, else 32]");
  app->add_option("--max-nmse", options->max_nmse, "Largest error of a codec that is advised, as bench --max-nmse");
  add_trained(*app, options->trained);
  set_groups(*app, {{"Output", {"--out", "--format"}},
                    {"Networks and advice", {"--network", "--nodes", "--max-nmse", "--trained"}}});
  app->footer(
      "A page from bench --json has all charts of codecs, one from bench --csv those that need no collectives.\n"
      "Examples:\n"
      "  gradtool report bench.json -o report.html\n"
      "  gradtool report reports/quickstart -o report.html\n"
      "  gradtool report bench.json --format svg -o figures/\n"
      "  gradtool report bench.json --trained run --format text\n"
      "  gradtool report bench.json analysis/ --network 25gbe --nodes 8,64");
  return {app, [options] { return run(*options); }};
}

}  // namespace gradtool::app
