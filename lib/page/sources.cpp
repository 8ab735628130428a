#include "lib/page/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lib/core/files.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The tables of analyze, and columns that no other table has together.
const std::vector<std::pair<std::string, std::vector<std::string>>> analysis_tables{
    {"spectrum", {"fft_share_01"}},
    {"spectrum_bands", {"from_nyquist"}},
    {"transforms", {"native_identity_15"}},
    {"compaction", {"basis", "energy_share"}},
    {"spectra", {"estimate"}},
    {"autocorrelation", {"autocorrelation"}},
    {"fft_errors", {"theta", "quantile"}},
    {"spectrum_steps", {"low_share"}},
    {"correlation", {"worker_pearson_mean", "slice_order"}},
    {"eigenvalues", {"cumulative_share", "eigenvalue"}},
    {"steps", {"step_lag_1"}},
    {"step_lags", {"lag", "pearson"}},
    {"gradiveq", {"basis_samples"}},
    {"gradiveq_lambda", {"lambda"}},
    {"gradiveq_loss", {"basis", "age"}},
    {"gradiveq_curve", {"later_share"}},
    {"low_rank", {"rank_1_share"}},
    {"subspaces", {"largest_angle"}},
    {"singular_values", {"cumulative_share", "energy_share"}},
    {"variance", {"ratio_q50", "micro_batches"}},
    {"certainty", {"chance_majority"}},
    {"unambiguous", {"alpha", "pass_share"}},
    {"noise_steps", {"signal", "iteration"}},
    {"noise", {"signal", "status"}},
    {"losses", {"lost_smallest_10"}},
    {"packets", {"lost", "which"}},
    {"importance", {"importance_q50", "iteration"}},
    {"distribution", {"byte_entropy"}},
    {"fits", {"fit", "distance"}},
    {"formats", {"vanish_share"}},
    {"prediction", {"predicted_nmse"}}};

struct Candidate {
  fs::path path;
  bool named = false;  ///< on the command line, not found in a folder
};

std::vector<Candidate> candidates(std::span<const std::string> paths) {
  std::vector<Candidate> found;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (!fs::exists(status)) throw_error(Fault::usage, "'{}' is not there", path);
    if (!fs::is_directory(status)) {
      found.push_back({path, true});
      continue;
    }
    std::vector<Candidate> inside;
    auto entry = fs::recursive_directory_iterator{path, fs::directory_options::skip_permission_denied, error};
    for (; !error && entry != fs::recursive_directory_iterator{}; entry.increment(error)) {
      const auto extension = entry->path().extension();
      std::error_code gone;
      if (entry->is_regular_file(gone) && (extension == ".json" || extension == ".csv"))
        inside.push_back({entry->path()});
    }
    if (error) throw_error(Fault::data, "{}: cannot be read ({})", path, error.message());
    std::sort(inside.begin(), inside.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
    found.insert(found.end(), inside.begin(), inside.end());
  }
  // Records first, so that their CSV copies are known for what they are.
  std::stable_partition(found.begin(), found.end(), [](const auto& each) { return each.path.extension() == ".json"; });
  return found;
}

/// Makes U+2028 and U+2029 U+FFFD. JSON allows them within strings, but in Vega's expressions they end a line, and with
/// it the drawing of the page.
void replace_line_separators(std::string& text) {
  for (std::size_t at = text.find("\xe2\x80"); at != std::string::npos; at = text.find("\xe2\x80", at + 1)) {
    const std::string_view character = std::string_view{text}.substr(at, 3);
    if (character == "\u2028" || character == "\u2029") text.replace(at, 3, "\ufffd");
  }
}

std::string string_at(const Json& json, const std::string& key) {
  if (!json.is_object() || !json.contains(key) || json.at(key).is_null() || json.at(key).is_structured()) return {};
  return json.at(key).is_string() ? json.at(key).get<std::string>() : json_text(json.at(key));
}

/// Adds the machine from the record's `provenance`, in words.
void add_machine(const Json& record, SourceFile& file) {
  if (!record.contains("provenance")) return;
  const Json& machine = record.at("provenance");
  const auto add = [&](const char* label, const std::string& text) {
    if (!text.empty()) file.facts.emplace_back(label, text);
  };
  add("gradtool", fmt::format("{} ({}, {})", string_at(machine, "gradtool_version"), string_at(machine, "commit"),
                              string_at(machine, "build_type")));
  add("machine", fmt::format("{}, {} cores, {}", string_at(machine, "cpu"), string_at(machine, "cores"),
                             string_at(machine, "memory")));
  add("compiler", string_at(machine, "compiler"));
  add("written", string_at(machine, "created"));
  if (machine.contains("communicator")) {
    add("communicator", fmt::format("{}: {}", string_at(machine.at("communicator"), "name"),
                                    string_at(machine.at("communicator"), "detail")));
  }
}

/// Whether two tables print alike. JSON and CSV differ in what they call a whole number.
bool same_text(const Table& a, const Table& b) {
  if (a.columns().size() != b.columns().size() || a.rows().size() != b.rows().size()) return false;
  for (std::size_t i = 0; i < a.rows().size(); ++i) {
    for (std::size_t j = 0; j < a.columns().size(); ++j) {
      if (a.columns()[j].name != b.columns()[j].name || to_text(a.rows()[i][j]) != to_text(b.rows()[i][j]))
        return false;
    }
  }
  return true;
}

class Reader {
 public:
  void read(const Candidate& candidate) {
    const std::string path = candidate.path.string();
    std::string text = read_file(path, kMostRecordBytes);
    Sha256 hash;
    hash.update(std::as_bytes(std::span{text}));
    replace_line_separators(text);
    file_ = {.path = path, .sha256 = hash.hex(), .kind = "", .facts = {}};
    bool known = false;
    try {
      known = candidate.path.extension() == ".csv" ? read_csv(text) : read_json(text, candidate.named);
    } catch (const Json::exception& error) {
      // A member that is there, but of another kind: only somebody else's hand or a damaged disk writes it.
      throw_error(Fault::data, "{}: is no record as this gradtool writes it ({})", path, error.what());
    }
    if (known) {
      if (!file_.kind.empty()) out_.files.push_back(std::move(file_));
    } else if (candidate.named) {
      throw_error(Fault::data, "{}: neither a record nor a table of gradtool's capture, info, analyze, bench or train",
                  path);
    } else {
      out_.ignored.push_back(path + " was not written by capture, info, analyze, bench or train");
    }
  }
  /// Also reads the tables of steps, which go with a bench whose table may have come later.
  [[nodiscard]] Sources take() {
    for (const auto& [file, text] : steps_) {
      file_ = file;
      read_steps_csv(text);
      if (!file_.kind.empty()) out_.files.push_back(file_);
    }
    return std::move(out_);
  }

 private:
  bool read_json(const std::string& text, bool named) {
    Json json = parse_json(text);
    if (json.is_discarded()) {
      if (!named) return false;
      throw_error(Fault::data,
                  "{}: no valid JSON, which it has to be, at most {} levels deep; it may have been cut off", file_.path,
                  kMostJsonDepth);
    }
    if (!json.is_object()) return false;
    if (string_at(json, "format") == "gradtool.bench") return read_bench_record(std::move(json));
    if (string_at(json, "format") == "gradtool.train") return read_training(json);
    if (string_at(json, "format") == "gradtool.train.settings") return true;  // the record has them, too
    if (json.contains("summary") && json.contains("file_sha256")) return read_analysis_record(json);
    if (json.contains("step_list") && json.contains("tensor_list")) return read_capture(json, "capture, by info");
    if (json.contains("capture_seconds") && json.contains("accuracy")) return read_capture(json, "capture");
    return false;
  }

  bool read_bench_record(Json json) {
    file_.kind = "bench record";
    file_.facts.emplace_back("command", string_at(json, "command"));
    if (json.contains("file")) {
      file_.facts.emplace_back("capture", string_at(json.at("file"), "path"));
      file_.facts.emplace_back("SHA-256 of the capture", string_at(json.at("file"), "sha256"));
    }
    add_machine(json, file_);
    if (!json.contains("rows")) throw_error(Fault::data, "{}: a bench record without rows", file_.path);
    BenchSource source{.origin = {file_.path, string_at(json, "command")}, .record = {}, .json = {}, .steps = {}};
    source.record = read_bench(table_from_json("bench", json.at("rows"), file_.path), &json.at("rows"), file_.path);
    if (json.contains("job_trace")) source.trace = job_trace_of(json.at("job_trace"));
    source.json = std::move(json);
    out_.benches.push_back(std::move(source));
    return true;
  }

  bool read_training(const Json& json) {
    file_.kind = "training record";
    file_.facts.emplace_back("command", string_at(json, "command"));
    const Json settings = json.value("settings", Json::object());
    for (const auto& [what, value] : settings.items()) {
      if (value.is_string()) file_.facts.emplace_back(what, value.get<std::string>());
    }
    add_machine(json, file_);
    if (!json.contains("rows") || !json.contains("summary"))
      throw_error(Fault::data, "{}: a training record without rows or without a summary", file_.path);
    constexpr int kSchema = 1;
    if (const Json& version = json.value("schema_version", Json{}); version != kSchema) {
      throw_error(Fault::data, "{}: a training record of schema version {}; this gradtool reads version {}", file_.path,
                  json_text(version), kSchema);
    }
    TrainingSource source{.origin = {file_.path, string_at(json, "command")}};
    source.title = fmt::format("{} on {}, {} workers", string_at(settings, "--model"), string_at(settings, "--dataset"),
                               string_at(settings, "--workers"));
    source.text = string_at(settings, "--dataset") == "text";
    source.steps_per_epoch = json.value("steps_per_epoch", std::int64_t{0});
    source.rows = table_from_json("train", json.at("rows"), file_.path);
    source.summary = table_from_json("summary", json.at("summary"), file_.path);
    for (const auto& run : json.value("runs", Json::array())) {
      const std::string note = string_at(run, "note");
      std::string text = fmt::format("{}: {}", string_at(run, "codec"), note);
      if (!note.empty() && std::find(source.notes.begin(), source.notes.end(), text) == source.notes.end())
        source.notes.push_back(std::move(text));
    }
    out_.trainings.push_back(std::move(source));
    return true;
  }

  bool read_analysis_record(const Json& json) {
    file_.kind = "analysis record";
    const std::string command = string_at(json, "command");
    file_.facts.emplace_back("command", command);
    file_.facts.emplace_back("capture", string_at(json, "file"));
    file_.facts.emplace_back("SHA-256 of the capture", string_at(json, "file_sha256"));
    add_machine(json, file_);
    for (const auto& [name, column] : analysis_tables) {
      if (json.contains(name))
        add_analysis_table(name, string_at(json, "file"), command, table_from_json(name, json.at(name), file_.path));
    }
    return true;
  }

  bool read_capture(const Json& json, const std::string& kind) {
    file_.kind = kind;
    file_.facts.emplace_back("command", string_at(json, "command"));
    for (const char* key : {"file", "out", "model", "dataset", "optimizer", "workers", "batch_size", "steps", "tensors",
                            "elements", "created"}) {
      if (const auto text = string_at(json, key); !text.empty()) file_.facts.emplace_back(key, text);
    }
    add_machine(json, file_);
    return true;
  }

  bool read_csv(const std::string& text) {
    const std::string header = text.substr(0, text.find('\n'));
    const auto has = [&](const std::string& column) {
      return ("," + header + ",").find("," + column + ",") != std::string::npos;
    };
    if (has("run_id") && has("time_source")) return read_bench_csv(text);
    if (has("run_id") && has("iteration") && has("cumulative_nmse")) {
      steps_.emplace_back(file_, text);
      return true;
    }
    for (const auto& [name, columns] : analysis_tables) {
      if (!has("schema_version") || !std::all_of(columns.begin(), columns.end(), has)) continue;
      Table table = table_from_csv(name, text, file_.path);
      file_.kind = name + " table";
      if (table.rows().empty()) return true;  // of which capture, it does not say
      const std::string capture = text_at(table, 0, "file");
      add_analysis_table(name, capture, "", std::move(table));
      return true;
    }
    // The tables of train, whose record has them.
    if ((has("wire_ratio") && has("diverged_seeds")) || (has("test_accuracy") && has("train_loss"))) {
      file_.kind.clear();
      return true;
    }
    // The table of tensors that info writes, and the summary of analyze, which repeats columns of its tables.
    if (has("tensor") && (has("second_moment") || has("gradiveq_ratio") || has("pass_share_1"))) {
      file_.kind.clear();
      return true;
    }
    return false;
  }

  bool read_bench_csv(const std::string& text) {
    Table table = table_from_csv("bench", text, file_.path);
    if (!table.rows().empty() && has_run(text_at(table, 0, "run_id"))) {
      out_.ignored.push_back(file_.path + " has the rows of a record that is read as well");
      return true;
    }
    file_.kind = "bench table";
    BenchSource source{.origin = {file_.path, ""}, .record = {}, .json = {}, .steps = {}};
    source.record = read_bench(std::move(table), nullptr, file_.path);
    out_.benches.push_back(std::move(source));
    return true;
  }

  void read_steps_csv(const std::string& text) {
    Table table = table_from_csv("steps", text, file_.path);
    const std::string run = table.rows().empty() ? "" : text_at(table, 0, "run_id");
    for (BenchSource& bench : out_.benches) {
      if (bench.json || !has_run(bench, run)) continue;
      bench.steps = std::move(table);
      file_.kind = "errors of each step";
      return;
    }
    out_.ignored.push_back(file_.path + (has_run(run) ? " has the steps of a record that is read as well"
                                                      : " belongs to a bench whose table is not read"));
  }

  static bool has_run(const BenchSource& bench, const std::string& run) {
    return !bench.record.table.rows().empty() && text_at(bench.record.table, 0, "run_id") == run;
  }
  [[nodiscard]] bool has_run(const std::string& run) const {
    return std::any_of(out_.benches.begin(), out_.benches.end(),
                       [&](const auto& bench) { return has_run(bench, run); });
  }

  /// A table that is there already, from the record of the same run, is not shown twice.
  void add_analysis_table(const std::string& name, const std::string& capture, const std::string& command,
                          Table table) {
    const auto lacks = [&](const AnalysisSource& one) { return one.capture == capture && !one.tables.contains(name); };
    const auto same = [&](const AnalysisSource& one) {
      return one.capture == capture && one.tables.contains(name) && same_text(one.tables.at(name).second, table);
    };
    if (std::any_of(out_.analyses.begin(), out_.analyses.end(), same)) {
      if (command.empty()) file_.kind.clear();  // a CSV beside its record: nothing is lost by leaving it out
      return;
    }
    auto place = std::find_if(out_.analyses.begin(), out_.analyses.end(), lacks);
    if (place == out_.analyses.end()) place = out_.analyses.insert(place, AnalysisSource{capture, {}});
    place->tables.emplace(name, std::pair{Origin{file_.path, command}, std::move(table)});
  }

  Sources out_;
  SourceFile file_;  ///< being read; its kind stays empty where nothing of it is shown
  std::vector<std::pair<SourceFile, std::string>> steps_;
};

}  // namespace

Sources read_sources(std::span<const std::string> paths) {
  Reader reader;
  for (const auto& candidate : candidates(paths)) reader.read(candidate);
  Sources sources = reader.take();
  if (sources.files.empty()) {
    throw_error(Fault::usage,
                "nothing to report in '{}': no JSON or CSV of capture, info, analyze, bench "
                "or train; gradtool bench CAPTURE --json bench.json writes one",
                paths.empty() ? "" : paths.front());
  }
  return sources;
}

}  // namespace gradtool
