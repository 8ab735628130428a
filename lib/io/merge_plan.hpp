#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"
#include "lib/io/merge.hpp"

namespace gradtool {

/// Consecutive steps of a merged file that are consecutive steps of a source, too.
struct MergeRun {
  std::size_t step, source_step, count;
};

/// One of the files, and where its workers and steps go.
struct MergePart {
  std::unique_ptr<GradientReader> reader;
  std::size_t first_worker = 0;
  std::vector<std::size_t> steps;  ///< for each step of the merged file, the position in this one

  [[nodiscard]] const std::string& path() const { return reader->path(); }
  [[nodiscard]] const FileInfo& info() const { return reader->info(); }
  [[nodiscard]] std::vector<MergeRun> runs() const;
  /// Throws Fault::data: the file's path and the problem.
  [[noreturn]] void refuse(const std::string& problem) const;
};

/// The contents of a merged file, before anything of it is written.
struct MergePlan {
  std::vector<MergePart> parts;  ///< in the order of their workers
  WriterOptions layout;          ///< attributes, tensors and columns
  std::vector<StepInfo> steps;
  std::optional<Readiness> readiness = {};

  [[nodiscard]] const FileInfo& info() const { return layout.info; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return parts.front().reader->tensors(); }
};

/// Opens the files and says how they become one; `notes` gets a clause for whatever is left out. Throws Fault::data
/// where a file does not conform or the files do not belong together, Fault::usage where one is given twice.
[[nodiscard]] MergePlan plan_merge(const MergeOptions& options, std::vector<std::string>& notes);

}  // namespace gradtool
