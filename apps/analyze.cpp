#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/analysis/analysis.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/analysis/noise_scale.hpp"
#include "lib/analysis/prediction.hpp"
#include "lib/analysis/study.hpp"
#include "lib/analysis/summary.hpp"
#include "lib/bench/windows.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/compare/compare.hpp"
#include "lib/core/device.hpp"
#include "lib/core/files.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/usable_steps.hpp"
#include "lib/page/records.hpp"
#include "lib/report/color.hpp"
#include "lib/report/json.hpp"
#include "lib/report/outputs.hpp"
#include "lib/report/progress.hpp"

namespace gradtool::app {
namespace {

struct AnalyzeArguments {
  std::string file, out = "analysis", layers, steps, measured, json, csv, device = "cpu";
  std::vector<std::string> only;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::size_t samples = 128, taps = 0;
};

constexpr std::uint64_t kGpuPartBytes = std::uint64_t{1} << 30;  // the same on every card: it decides last digits
/// In the order of their tables.
const std::vector<std::string> analysis_names{"spectrum", "transforms", "correlation", "steps",
                                              "gradiveq", "low_rank",   "variance",    "certainty",
                                              "noise",    "losses",     "distribution"};
/// Names of all tables that an analysis may write.
constexpr std::array kTableNames{
    "spectrum",        "spectrum_bands",  "transforms",    "compaction",     "spectra",  "autocorrelation",
    "fft_errors",      "spectrum_steps",  "correlation",   "eigenvalues",    "steps",    "step_lags",
    "gradiveq",        "gradiveq_lambda", "gradiveq_loss", "gradiveq_curve", "low_rank", "subspaces",
    "singular_values", "variance",        "certainty",     "unambiguous",    "noise",    "noise_steps",
    "losses",          "packets",         "importance",    "distribution",   "fits",     "formats",
    "prediction"};

std::string path_of_table(const AnalyzeArguments& options, const std::string& table) {
  return (std::filesystem::path{options.out} / (table + ".csv")).string();
}

/// "FIRST:LAST", both ends included and each may be left out; "N" is one step.
void select_steps(const std::string& text, std::size_t steps, Scope& scope) {
  scope.first_step = 0;
  scope.last_step = steps - 1;
  if (text.empty()) return;
  const auto bad = [&] {
    return Error{
        Fault::usage,
        fmt::format("--steps '{}': expected FIRST:LAST with 0 <= FIRST <= LAST <= {}, the positions of captured steps",
                    text, steps - 1)};
  };
  const auto position = [&](const std::string& digits, std::size_t otherwise) {
    if (digits.empty()) return otherwise;
    if (digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) throw bad();
    return static_cast<std::size_t>(std::stoull(digits));
  };
  const auto colon = text.find(':');
  scope.first_step = position(text.substr(0, colon), 0);
  scope.last_step = colon == std::string::npos ? scope.first_step : position(text.substr(colon + 1), steps - 1);
  if (scope.first_step > scope.last_step || scope.last_step >= steps) throw bad();
}

std::vector<std::size_t> select_tensors(const GradientSource& reader, const std::string& layers, Scope& scope) {
  std::vector<std::size_t> chosen;
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    if (!layers.empty() && !matches(layers, reader.tensors()[t].name)) continue;
    chosen.push_back(t);
    scope.tensors.push_back(reader.tensors()[t]);
  }
  if (chosen.empty()) {
    throw_error(Fault::usage, "--layers '{}' matches none of the {} tensors in {}; the first is '{}'", layers,
                reader.tensors().size(), reader.path(), reader.tensors().front().name);
  }
  return chosen;
}

std::vector<std::unique_ptr<Analysis>> make_analyses(const AnalyzeArguments& options, const Scope& scope,
                                                     const std::shared_ptr<AnalysisGpu>& gpu) {
  const auto wanted = [&](const std::string& name) {
    return options.only.empty() || std::find(options.only.begin(), options.only.end(), name) != options.only.end();
  };
  if ((wanted("spectrum") || wanted("transforms")) && !gpu && !spectrum_available()) {
    const std::string missing = "frequency spectra are not available: this gradtool was built without FFTW";
    if (!options.only.empty()) throw Error{Fault::unavailable, missing};
    print_warning(missing + "; spectrum.csv has the values' shares only, and transforms.csv is left out");
  }
  std::vector<std::unique_ptr<Analysis>> analyses;
  std::vector<std::string> missing;
  const auto on_cpu = [&](const std::string& name, auto make) {
    if (!wanted(name)) return;
    if (gpu)
      missing.push_back(name);
    else
      analyses.push_back(make(scope));
  };
  if (wanted("spectrum")) analyses.push_back(make_spectrum(scope, gpu));
  if (gpu || spectrum_available()) on_cpu("transforms", make_transforms);
  if (wanted("correlation")) analyses.push_back(make_correlation(scope, options.samples, options.taps, gpu));
  on_cpu("steps", make_steps);
  on_cpu("gradiveq", [&](const Scope& studied) { return make_gradiveq(studied, options.samples, options.taps); });
  on_cpu("low_rank", make_low_rank);
  if (wanted("variance")) analyses.push_back(make_variance(scope, gpu));
  on_cpu("certainty", make_certainty);
  on_cpu("noise", make_noise);
  on_cpu("losses", make_losses);
  on_cpu("distribution", make_distribution);
  if (!missing.empty()) {
    const std::string message = fmt::format("not computed on GPUs, --device cpu has them: {}", joined(missing, ", "));
    if (!options.only.empty()) throw Error{Fault::unavailable, message};
    print_warning(message);
  }
  return analyses;
}

std::string heading(const GradientSource& reader, const Scope& scope) {
  const auto& info = reader.info();
  std::string what = info.model.empty() ? "unnamed model" : printable(info.model);
  if (!info.dataset.empty()) what += " on " + printable(info.dataset);
  std::uint64_t elements = 0;
  for (const auto& tensor : scope.tensors) elements += tensor.elements;
  return fmt::format("{}: {}, {} worker{}, captured steps {}-{} (iterations {}-{}), {} tensors, {} elements\n",
                     reader.path(), what, scope.workers, scope.workers == 1 ? "" : "s", scope.first_step,
                     scope.last_step, reader.steps()[scope.first_step].iteration,
                     reader.steps()[scope.last_step].iteration, scope.tensors.size(), elements);
}

/// Nothing where this build lacks it.
std::optional<CodecSpec> codec_if_there(const std::string& text) {
  try {
    return parse_recorded_codec(text);
  } catch (const Error&) {
    return {};
  }
}

/// Sets the errors that a bench of the same file measured beside those that are predicted.
void add_measured(Table& predictions, const std::string& path, const std::string& file) {
  const BenchRun bench = read_bench_run(path);
  const std::string name = std::filesystem::path{file}.filename().string();
  std::size_t matched = 0;
  for (std::size_t p = 0; p < predictions.rows().size(); ++p) {
    const auto codec = codec_if_there(to_text(predictions.at(p, "codec")));
    if (!codec) continue;
    for (std::size_t r = 0; r < bench.table.rows().size(); ++r) {
      const auto is = [&](std::string_view column, std::string_view wanted) {
        return text_at(bench.table, r, column) == wanted;
      };
      const std::string params = codec->params_text();
      const auto nmse = number_at(bench.table, r, "nmse");
      if (!nmse || !is("codec", codec->name()) || !is("params", params.empty() ? "default" : params)) continue;
      if (!is("tensor", "all") || !is("granularity", "tensor") || !is("time_source", "measured") || !is("file", name))
        continue;
      set_measured(predictions, p, *nmse);
      ++matched;
      break;
    }
  }
  if (matched == 0) {
    print_warning(fmt::format("{} has no row of {} with --granularity tensor and a codec that is predicted, such as {}",
                              path, name, to_text(predictions.at(0, "codec"))));
  }
}

std::string record_text(const UsableSteps& reader, const std::vector<std::string>& sources,
                        const std::vector<Table>& tables, const Table& summary) {
  nlohmann::ordered_json record;
  record["schema_version"] = 1;
  record["command"] = command_line();
  record["provenance"] = provenance();
  record["file"] = reader.path();
  record["file_sha256"] = sha256_of_file(reader.path());
  if (reader.left_out() > 0) record["overflowed_steps"] = reader.left_out();
  for (const auto& source : sources)
    record["sources"].push_back({{"path", source}, {"sha256", sha256_of_file(source)}});
  record["summary"] = to_json(summary);
  for (const auto& table : tables) record[table.name()] = to_json(table);
  return json_text(record, 2) + "\n";
}

/// Averages over the chosen tensors, where nothing compresses them: in the type in which the job reduces, else each in
/// its own.
double sent_bytes_per_element(const GradientSource& reader, const std::vector<std::size_t>& tensors) {
  double bytes = 0.0, elements = 0.0;
  for (const std::size_t t : tensors) {
    const TensorInfo& info = reader.tensors()[t];
    const auto n = static_cast<double>(info.elements);
    elements += n;
    bytes += n * static_cast<double>(size_of(reader.info().reduce_dtype.value_or(info.dtype)));
  }
  return elements > 0.0 ? bytes / elements : sizeof(float);
}

int analyze(const AnalyzeArguments& options) {
  std::vector<NamedPath> outputs{{"--csv", options.csv}, {"--json", options.json}, {"--out", options.out}};
  for (const char* table : kTableNames) outputs.push_back({"--out", path_of_table(options, table)});
  expect_separate_files(std::vector<NamedPath>{{"FILE", options.file}, {"--measured", options.measured}}, outputs);
  const DeviceChoice device = parse_device(options.device);
  const auto gpu = device.cuda ? open_analysis_gpu(device.index) : nullptr;
  auto file = std::make_unique<GradientReader>(options.file);
  const std::vector<std::string> sources = file->sources();
  expect_outputs_spare_sources(sources, outputs);
  const UsableSteps reader{std::move(file)};
  if (reader.left_out() > 0) print_warning(left_out_warning(reader.path(), reader.left_out()));
  if (const auto warning =
          averaged_warning(worker_likeness(reader, static_cast<int>(reader.workers())), reader.info().averaged);
      !warning.empty())
    print_warning(fmt::format("{}: {}", reader.path(), warning));
  Scope scope;
  scope.file = options.file;
  scope.model = reader.info().model;
  scope.workers = reader.workers();
  scope.micro_batches = reader.info().micro_batches;
  scope.batch_size = reader.info().batch_size.value_or(0);
  for (const StepInfo& step : reader.steps()) scope.iterations.push_back(step.iteration);
  const auto windows = windows_of(reader.steps(), reader.steps().size());
  for (std::size_t w = 0; w < windows.size(); ++w) scope.window_of.resize(windows[w].end, w);
  select_steps(options.steps, reader.steps().size(), scope);
  const auto tensors = select_tensors(reader, options.layers, scope);
  const auto analyses = make_analyses(options, scope, gpu);

  StudyOptions study_options;
  study_options.threads = options.threads;
  study_options.gpu = gpu;
  if (gpu) study_options.part_bytes = kGpuPartBytes;
  {
    Progress progress{"analyze", 100};
    study_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(static_cast<std::uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
      return !interrupted();
    };
    if (!study(reader, tensors, analyses, study_options)) {
      fmt::print(stderr, "gradtool: interrupted before every tensor was analysed; nothing was written\n");
      return kInterrupted;
    }
  }

  std::vector<Table> tables;
  for (const auto& analysis : analyses) {
    for (auto& table : analysis->tables()) tables.push_back(std::move(table));
  }
  const Table summary = summarise(tables);
  Table predictions = predict(tables, sent_bytes_per_element(reader, tensors));
  if (!options.measured.empty()) add_measured(predictions, options.measured, options.file);
  const std::string promises = describe_predictions(predictions);
  if (!promises.empty()) tables.push_back(std::move(predictions));
  std::string wrote;
  Outputs saved;
  std::size_t count = 0;  // of what was written
  for (const auto& table : tables) {
    expects(std::find(kTableNames.begin(), kTableNames.end(), table.name()) != kTableNames.end(),
            "an analysis writes a table whose path was not checked");
    const std::string path = path_of_table(options, table.name());
    saved.csv(path, table);
    if (saved.written().size() == count) continue;
    if (count++ == 0) wrote = fmt::format("wrote to {}:", printable(options.out));
    wrote += " " + table.name() + ".csv";
  }
  saved.csv(options.csv, summary);
  if (!options.json.empty()) saved.text(options.json, record_text(reader, sources, tables, summary));
  for (; count < saved.written().size(); ++count) {
    wrote += (wrote.empty() ? "wrote " : "; and ") + printable(saved.written()[count]);
  }
  // Data on standard output must stay alone there.
  std::FILE* people = options.json == "-" || options.csv == "-" ? stderr : stdout;
  fmt::print(people, "{}{}{}{}", heading(reader, scope), describe(summary), promises,
             wrote.empty() ? "" : wrapped(wrote, 100));
  std::fflush(people);
  saved.finish();
  return 0;
}

}  // namespace

Subcommand add_analyze(CLI::App& root) {
  auto* app =
      root.add_subcommand("analyze", "Study a gradient file: frequencies, correlations, certainty, distribution");
  auto options = std::make_shared<AnalyzeArguments>();
  app->add_option("FILE", options->file, "Gradient file (gradtool capture, or any tool that writes the format)")
      ->required()
      ->type_name("FILE");
  app->add_option("-o,--out", options->out, "Folder for the CSV files; made if it is not there")->capture_default_str();
  app->add_option("--only", options->only, fmt::format("Of {}: those to run", joined(analysis_names, ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember{analysis_names});
  app->add_option("--layers", options->layers, "Only tensors whose name contains a match of this regular expression");
  app->add_option("--steps", options->steps, "FIRST:LAST positions of captured steps, from 0, both included");
  app->add_option("--threads,-t", options->threads, "Computing threads; results do not depend on it")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app->add_option("--device", options->device, "cpu, cuda or cuda:INDEX; a GPU finds the same numbers but for rounding")
      ->capture_default_str();
  app->add_option("--samples", options->samples,
                  "Steps that enter the eigenvalues at most: the first of those selected")
      ->capture_default_str()
      ->check(CLI::Range(2, 1024));
  app->add_option("--taps", options->taps, "Taps of a convolution in one slice; 0: one row of its kernel")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--measured", options->measured,
                  "What bench wrote of the same file (--granularity tensor): its errors beside those predicted")
      ->type_name("FILE");
  app->add_option("--csv", options->csv, "Also write the summary, one row for each tensor, to this file or - (stdout)");
  app->add_option("--json", options->json, "Also write the full record to this file or - (stdout)");
  for (const char* file : {"--csv", "--json"}) app->get_option(file)->type_name("FILE");
  app->get_option("--out")->type_name("FOLDER");
  set_groups(*app, {{"What is studied", {"--only", "--layers", "--steps", "--samples", "--taps", "--measured"}},
                    {"Computing", {"--threads", "--device"}},
                    {"Output", {"--out", "--csv", "--json"}}});
  app->footer(
      "Each analysis writes NAME.csv, with one row for each tensor, and longer tables of its own, whose columns "
      "docs/analysis.md explains. Memory is bounded by the largest tensor, not by the file.\n"
      "Examples:\n"
      "  gradtool analyze lenet5.h5\n"
      "  gradtool analyze resnet20.h5 --out analysis/ --layers 'conv' --steps 10:19\n"
      "  gradtool analyze resnet20.h5 --only spectrum --csv - | column -s, -t");
  return {app, [app, options] {
            for (const char* setting : {"--samples", "--taps"}) {
              const auto& only = options->only;
              const auto runs = [&](const char* name) {
                return std::find(only.begin(), only.end(), name) != only.end();
              };
              if (app->count(setting) == 0 || only.empty() || runs("correlation") || runs("gradiveq")) continue;
              throw_error(Fault::usage, "{} is for the analyses correlation and gradiveq, of which --only has none",
                          setting);
            }
            return analyze(*options);
          }};
}

}  // namespace gradtool::app
