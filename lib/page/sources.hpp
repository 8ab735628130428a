#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/bench/job_trace.hpp"
#include "lib/page/chart.hpp"
#include "lib/page/records.hpp"

namespace gradtool {

/// A file that the page is made of, for its section on provenance.
struct SourceFile {
  std::string path;    ///< as named on the command line, or found in a folder that was
  std::string sha256;  ///< of its bytes
  std::string kind;    ///< "bench record", "analysis", "capture", ...
  std::vector<std::pair<std::string, std::string>>
      facts;  ///< command, machine, capture, version: what it says of itself
};

/// One run of the bench.
struct BenchSource {
  Origin origin;
  BenchRecord record;
  std::optional<nlohmann::ordered_json> json;  ///< the whole record; empty where there is a CSV only
  std::optional<Table> steps;                  ///< of --steps-csv, where there is no record
  std::optional<JobTrace> trace = {};          ///< of the user's job, where the bench was given one
};

/// One run of analyze: its tables by name (spectrum, spectrum_bands, correlation, eigenvalues, variance).
struct AnalysisSource {
  std::string capture;  ///< the gradient file as that run named it
  std::map<std::string, std::pair<Origin, Table>> tables;
};

/// One command of gradtool train.
struct TrainingSource {
  Origin origin;
  std::string title = {};  ///< "resnet20 on cifar10, 4 workers"
  std::int64_t steps_per_epoch = 0;
  bool text = false;  ///< it learnt to continue a text, not to name images
  Table rows{"train", {}}, summary{"summary", {}};
  std::vector<std::string> notes = {};  ///< what codecs said of their runs
};

struct Sources {
  std::vector<BenchSource> benches;
  std::vector<AnalysisSource> analyses;
  std::vector<TrainingSource> trainings;
  std::vector<SourceFile> files;
  std::vector<std::string>
      ignored;  ///< sentences: files in folders that no subcommand wrote, and tables of a bench that its record has
};

/// Reads what gradtool wrote: JSON records of capture, info, analyze, bench and train, and the CSV files of analyze and
/// bench; those of train have nothing that its record has not.
/// A folder stands for all .json and .csv files in it and below it. A CSV with the rows of a record that is read as
/// well is left out. Throws Fault::data for a named file that is none of these and for files that are broken,
/// Fault::usage for a path that is not there and where nothing is found.
[[nodiscard]] Sources read_sources(std::span<const std::string> paths);

}  // namespace gradtool
