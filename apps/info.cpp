#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/bench/readiness.hpp"
#include "lib/bench/windows.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/json.hpp"
#include "lib/report/outputs.hpp"
#include "lib/report/progress.hpp"
#include "lib/report/table.hpp"

namespace gradtool::app {
namespace {

struct InfoArguments {
  std::string file, json, csv;
  bool quick = false, scan = false, all = false;
};

/// Tensors that the terminal shows unless --all: a mixture of experts has tens of thousands.
constexpr std::size_t kShown = 200;
/// Values that are read without --scan to count those that are not finite: 1 GiB as float32, which is a second's work.
constexpr std::uint64_t kMostScanned = std::uint64_t{1} << 28;

/// The facts about a file that every output format shows.
struct Summary {
  const GradientReader& reader;
  std::uintmax_t bytes = 0;
  bool scanned = false;
  std::vector<NonFinite> non_finite;

  [[nodiscard]] std::uint64_t non_finite_count() const {
    return std::accumulate(non_finite.begin(), non_finite.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const NonFinite& entry) { return sum + entry.count; });
  }
};

std::uint64_t values_of(const GradientReader& reader) {
  return reader.elements() * reader.workers() * reader.steps().size();
}

Summary summarize(const GradientReader& reader, bool scans) {
  std::error_code error;
  auto bytes = std::filesystem::file_size(reader.path(), error);
  for (const auto& source : reader.sources()) {
    if (!error) bytes += std::filesystem::file_size(source, error);
  }
  Summary summary{reader, error ? 0 : bytes, scans, {}};
  if (!scans) return summary;
  Progress progress{"reading", values_of(reader)};
  summary.non_finite = find_non_finite(reader, [&](std::uint64_t done, std::uint64_t) { progress.update(done); });
  return summary;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "scalar" : joined(shape, "x");
}

/// Everything of the tensors; the terminal shows some of these columns.
Table tensor_table(const Summary& summary) {
  Table table{"tensors",
              {{"tensor", "position in forward order, from 0"},
               {"name", "the parameter's name"},
               {"kind", "conv, linear, expert, router, embedding, recurrent, norm, bias or other"},
               {"shape", "extents, separated by x"},
               {"layout", "what the extents mean, e.g. OIHW"},
               {"elements", "product of the shape"},
               {"dtype", "how the gradient is stored"},
               {"second_moment", "whether the file has it"},
               {"weight", "whether the file has it"},
               {"non_finite", "gradient values that are NaN or infinite, over all steps and workers"}}};
  const auto& tensors = summary.reader.tensors();
  std::vector<std::int64_t> counts(tensors.size());
  for (const NonFinite& entry : summary.non_finite) counts[entry.tensor] = static_cast<std::int64_t>(entry.count);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    table.add({static_cast<std::int64_t>(t), tensors[t].name, tensors[t].kind, shape_text(tensors[t].shape),
               tensors[t].layout, static_cast<std::int64_t>(tensors[t].elements),
               std::string{name_of(tensors[t].dtype)}, tensors[t].has_second_moment, tensors[t].has_weight,
               summary.scanned ? Cell{counts[t]} : Cell{}});
  }
  return table;
}

double mean_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

nlohmann::ordered_json steps_json(const std::vector<StepInfo>& steps) {
  auto list = nlohmann::ordered_json::array();
  for (const StepInfo& step : steps) {
    nlohmann::ordered_json row{{"iteration", step.iteration}};
    if (step.epoch) row["epoch"] = to_json(Cell{*step.epoch});
    if (step.learning_rate) row["learning_rate"] = to_json(Cell{*step.learning_rate});
    for (const float loss : step.loss) row["loss"].push_back(to_json(Cell{double{loss}}));
    for (const double seconds : step.compute_seconds) row["compute_seconds"].push_back(to_json(Cell{seconds}));
    for (const std::uint8_t overflow : step.overflow) row["overflow"].push_back(overflow);
    for (const double weight : step.batch_weight) row["batch_weight"].push_back(to_json(Cell{weight}));
    list.push_back(std::move(row));
  }
  return list;
}

/// An empty text becomes null in JSON: the file does not state it.
nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}
nlohmann::ordered_json or_null(const std::optional<std::int64_t>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

/// The group /readiness, with null for what is not known.
nlohmann::ordered_json readiness_json(const GradientReader& reader) {
  if (!reader.readiness()) return nullptr;
  const std::size_t tensors = reader.tensors().size();
  nlohmann::ordered_json json;
  for (std::size_t w = 0; w < reader.workers(); ++w) {
    auto& row = json["ready"].emplace_back();
    for (std::size_t t = 0; t < tensors; ++t) row.push_back(to_json(Cell{reader.readiness()->ready[w * tensors + t]}));
    json["backward_share"].push_back(to_json(Cell{reader.readiness()->backward_share[w]}));
  }
  return json;
}

nlohmann::ordered_json summary_json(const Summary& summary) {
  const FileInfo& info = summary.reader.info();
  nlohmann::ordered_json json{
      {"file", summary.reader.path()},
      {"schema_version", info.schema_version},
      {"complete", info.complete},
      {"interrupted", info.interrupted},
      {"steps", summary.reader.steps().size()},
      {"workers", summary.reader.workers()},
      {"tensors", summary.reader.tensors().size()},
      {"elements", summary.reader.elements()},
      {"first_iteration", summary.reader.steps().front().iteration},
      {"last_iteration", summary.reader.steps().back().iteration},
      {"file_bytes", nullptr},
      {"non_finite", nullptr},
      {"producer", or_null(info.producer)},
      {"created", or_null(info.created)},
      {"model", or_null(info.model)},
      {"dataset", or_null(info.dataset)},
      {"optimizer", or_null(info.optimizer)},
      {"library", or_null(info.library)},
      {"reduce_dtype", or_null(std::string{info.reduce_dtype ? name_of(*info.reduce_dtype) : ""})},
      {"seed", or_null(info.seed)},
      {"batch_size", or_null(info.batch_size)},
      {"micro_batches", info.micro_batches},
      {"quantity", info.quantity},
      {"inner_steps", or_null(info.inner_steps)},
      {"averaged", info.averaged},
      {"rank", or_null(info.rank)},
      {"ranks", or_null(info.ranks)},
      {"command", or_null(info.command)}};
  json["sources"] = summary.reader.sources();
  if (summary.bytes > 0) json["file_bytes"] = summary.bytes;
  if (summary.scanned) json["non_finite"] = summary.non_finite_count();
  json["readiness"] = readiness_json(summary.reader);
  json["stride"] = stride_of(summary.reader.steps(), summary.reader.steps().size());
  for (const IterationRange& window : window_iterations_of(summary.reader.steps(), summary.reader.steps().size()))
    json["windows"].push_back({{"first_iteration", window.first}, {"last_iteration", window.last}});
  json["step_list"] = steps_json(summary.reader.steps());
  json["tensor_list"] = to_json(tensor_table(summary));
  for (std::size_t t = 0; t < summary.reader.tensors().size(); ++t) {
    json["tensor_list"][t]["shape"] = summary.reader.tensors()[t].shape;
  }
  return json;
}

std::string or_unknown(const std::string& text) {
  return text.empty() ? "not stated" : printable(text);
}

/// "f32", or "f32 and bf16".
std::string dtypes_text(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string_view> names;
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const auto has = [dtype](const TensorInfo& tensor) { return tensor.dtype == dtype; };
    if (std::any_of(tensors.begin(), tensors.end(), has)) names.push_back(name_of(dtype));
  }
  return joined(names, " and ");
}

/// The steps that overflowed, behind the range of iterations.
std::string overflow_text(const std::vector<StepInfo>& steps) {
  if (steps.front().overflow.empty()) return "";
  const auto count = std::count_if(steps.begin(), steps.end(), [](const StepInfo& step) { return step.overflowed(); });
  return fmt::format("; {} overflowed", count);
}

/// "24 (iterations 15 to 22, 153 to 160 and 292 to 299: 3 windows of the training)", "20 (iteration 0 to 19: one phase
/// of the training)", or "20 (iteration 0 to 190, one of every 10)", which may be of one phase or of all.
std::string steps_text(const std::vector<StepInfo>& steps) {
  const auto windows = window_iterations_of(steps, steps.size());
  const std::int64_t stride = stride_of(steps, steps.size());
  const std::string every = stride > 1 ? fmt::format(", one of every {}", stride) : "";
  std::string phases = stride > 1 ? "" : ": one phase of the training";
  if (windows.size() > 1) phases = fmt::format(": {} windows of the training", windows.size());
  if (windows.size() > 1 && !are_phases(windows.front(), windows.back())) phases += ", all in one phase";
  return fmt::format("{} (iteration{} {}{}{}{})", steps.size(), windows.size() > 1 ? "s" : "", ranges_text(windows),
                     every, phases, overflow_text(steps));
}

std::string loss_text(const std::vector<StepInfo>& steps) {
  if (steps.front().loss.empty()) return "not stated";
  return fmt::format("{:.4g} at the first step, {:.4g} at the last (mean over workers)", mean_of(steps.front().loss),
                     mean_of(steps.back().loss));
}

/// "by their batches: 12 to 512, a sum of 1038.5 a step (mean over steps)"; empty where all workers count alike.
std::string weight_text(const std::vector<StepInfo>& steps) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0.0;
  double sum = 0.0;
  std::size_t weighted = 0;
  for (const StepInfo& step : steps) {
    for (const double weight : step.batch_weight) {
      low = std::min(low, weight), high = std::max(high, weight);
      sum += weight;
    }
    weighted += step.batch_weight.empty() ? 0U : 1U;
  }
  if (weighted == 0) return "";
  std::string text = fmt::format("by their batches, of {:g} to {:g}, {:g} in a step (mean over steps)", low, high,
                                 sum / static_cast<double>(weighted));
  if (weighted < steps.size()) text += fmt::format("; alike in {} of {} steps", steps.size() - weighted, steps.size());
  return text;
}

std::string compute_text(const std::vector<StepInfo>& steps) {
  const auto seconds = captured_compute_time(steps);
  if (!seconds) return "not stated";
  return fmt::format("{} an iteration (slowest worker, median over steps of {} to {})", human_seconds(seconds->seconds),
                     human_seconds(seconds->low), human_seconds(seconds->high));
}

std::string readiness_text(const GradientReader& reader) {
  const auto timing = reader.readiness() ? captured_timing(*reader.readiness()) : std::nullopt;
  if (!timing) return "not stated: bench takes gradients to be ready in proportion to their elements";
  const auto first = std::min_element(timing->ready.begin(), timing->ready.end());
  return fmt::format("captured: the backward pass is {:.0f} % of the computation, and after {:.0f} % of it {} is ready",
                     100.0 * timing->share, 100.0 * *first,
                     reader.tensors()[static_cast<std::size_t>(first - timing->ready.begin())].name);
}

std::string non_finite_text(const Summary& summary) {
  if (!summary.scanned) return fmt::format("not counted: --scan reads all {} values for it", values_of(summary.reader));
  if (summary.non_finite.empty()) return "none";
  const NonFinite& first = summary.non_finite.front();
  return fmt::format("{} values in {} tensors, first in {} at iteration {}, worker {}", summary.non_finite_count(),
                     summary.non_finite.size(), summary.reader.tensors()[first.tensor].name,
                     summary.reader.steps()[first.first_step].iteration, first.first_worker);
}

/// "gradient", or "pseudo_gradient (of 500 local steps)".
std::string quantity_text(const FileInfo& info) {
  std::string text = info.quantity;
  if (info.inner_steps)
    text += fmt::format(" of {} local step{}", *info.inner_steps, *info.inner_steps == 1 ? "" : "s");
  return text + (info.averaged ? ", averaged over the workers before it was captured" : "");
}

/// The rank or the number of ranks that the file states.
std::string rank_text(const FileInfo& info) {
  const std::string of = info.ranks ? fmt::format(" of a job of {}", *info.ranks) : "";
  return info.rank ? fmt::format("rank {}{}", *info.rank, of) : fmt::format("of a job of {}", *info.ranks);
}

/// "of 4 files in its folder: rank0.h5, rank1.h5, ..."
std::string sources_text(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  names.reserve(paths.size());
  for (const auto& path : paths) names.push_back(std::filesystem::path{path}.filename().string());
  return fmt::format("of {} file{} in its folder: {}", paths.size(), paths.size() == 1 ? "" : "s", joined(names, ", "));
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

void print_summary(const Summary& summary, bool all) {
  const GradientReader& reader = summary.reader;
  const FileInfo& info = reader.info();
  const auto& steps = reader.steps();
  const auto line = [](const char* label, const std::string& text) { fmt::print("  {:<14}{}\n", label, text); };
  fmt::print("{}\n", printable(reader.path()));
  line("complete", info.complete ? "yes" : "no: " + why_incomplete(reader));
  line("schema", fmt::format("gradtool.gradients {}", info.schema_version));
  line("producer", or_unknown(info.producer));
  line("created", or_unknown(info.created));
  line("model", or_unknown(info.model));
  line("data set", or_unknown(info.dataset));
  line("optimizer", or_unknown(info.optimizer));
  line("seed", info.seed ? fmt::format("{}", *info.seed) : "not stated");
  line("command", or_unknown(info.command));
  line("quantity", quantity_text(info));
  if (info.rank || info.ranks) line("ranks", rank_text(info));
  if (!info.library.empty()) line("library", info.library);
  if (info.reduce_dtype) line("reduced in", std::string{name_of(*info.reduce_dtype)});
  line("workers", fmt::format("{} (batch size {}, {} micro-batch{})", info.workers,
                              info.batch_size ? fmt::format("{}", *info.batch_size) : "not stated", info.micro_batches,
                              info.micro_batches == 1 ? "" : "es"));
  if (const std::string weights = weight_text(steps); !weights.empty()) line("workers count", weights);
  line("steps", steps_text(steps));
  line("loss", loss_text(steps));
  line("computation", compute_text(steps));
  line("readiness", readiness_text(reader));
  line("tensors", fmt::format("{} with {} elements in all, {}", reader.tensors().size(), reader.elements(),
                              dtypes_text(reader.tensors())));
  if (const auto sources = reader.sources(); !sources.empty()) line("merged view", sources_text(sources));
  line("size on disk", summary.bytes > 0 ? human_bytes(static_cast<double>(summary.bytes)) : "not known");
  line("non-finite", non_finite_text(summary));

  std::vector<std::vector<std::string>> rows;
  const Table table = tensor_table(summary);
  const std::size_t shown = all ? table.rows().size() : std::min(kShown, table.rows().size());
  for (std::size_t t = 0; t < shown; ++t) {
    const auto text = [&](const char* column) { return to_text(table.at(t, column)); };
    const TensorInfo& tensor = reader.tensors()[t];
    std::string also = tensor.has_second_moment ? "second moment" : "";
    if (tensor.has_weight) also += also.empty() ? "weight" : ", weight";
    const auto name = [&](const char* column) { return cut_in_the_middle(printable(text(column)), 40); };
    rows.push_back({text("tensor"), name("name"), text("kind"), text("shape"), or_dash(name("layout")),
                    text("elements"), text("dtype"), or_dash(text("non_finite")), or_dash(also)});
  }
  fmt::print("\n{}", format_rows({"#", "name", "kind", "shape", "layout", "elements", "dtype", "non-finite", "also"},
                                 rows, {true, false, false, false, false, true, false, true, false}));
  if (shown < table.rows().size()) {
    fmt::print("... and {} more tensors; --all shows them here, --csv FILE writes them\n", table.rows().size() - shown);
  }
}

int run(const InfoArguments& options) {
  expect_separate_files(std::vector<NamedPath>{{"FILE", options.file}},
                        std::vector<NamedPath>{{"--json", options.json}, {"--csv", options.csv}});
  const GradientReader reader{options.file};
  expect_outputs_spare_sources(reader.sources(), {{"--json", options.json}, {"--csv", options.csv}});
  const Summary summary = summarize(reader, options.scan || (!options.quick && values_of(reader) <= kMostScanned));
  if (options.json != "-" && options.csv != "-") print_summary(summary, options.all);
  std::fflush(stdout);
  Outputs outputs;
  if (!options.json.empty()) outputs.text(options.json, json_text(summary_json(summary), 2) + "\n");
  if (!options.csv.empty()) outputs.csv(options.csv, tensor_table(summary));
  for (const auto& path : outputs.written()) fmt::print(stderr, "wrote {}\n", printable(path));
  outputs.finish();
  return 0;
}

}  // namespace

Subcommand add_info(CLI::App& root) {
  auto* app = root.add_subcommand("info", "Says what a gradient file holds");
  const auto options = std::make_shared<InfoArguments>();
  app->add_option("FILE", options->file, "Gradient file (HDF5)")->required()->type_name("FILE");
  app->add_option("--json", options->json, "Write everything as one JSON object to this file; - is standard output");
  app->add_option("--csv", options->csv, "Write the table of tensors as CSV to this file; - is standard output");
  auto* quick =
      app->add_flag("--quick", options->quick, "Do not read the gradients: leave non-finite values uncounted");
  app->add_flag("--scan", options->scan,
                "Count non-finite values also where there are more than 2^28 values to read for it (1 GiB as float32)")
      ->excludes(quick);
  app->add_flag("--all", options->all, "Show every tensor on the terminal, where there are more than 200");
  for (const char* file : {"--json", "--csv"}) app->get_option(file)->type_name("FILE");
  set_groups(*app, {{"Output", {"--json", "--csv", "--all"}}});
  app->footer(
      "Examples:\n"
      "  gradtool info lenet5.h5\n"
      "  gradtool info lenet5.h5 --json - | jq .steps\n"
      "  gradtool info lenet5.h5 --quick --csv tensors.csv");
  return {app, [options] { return run(*options); }};
}

}  // namespace gradtool::app
