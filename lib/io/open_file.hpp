#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"
#include "lib/io/load.hpp"

namespace gradtool::hdf5 {

/// A gradient file that is open for reading and was checked completely. Of a merged view the source files are open too,
/// and its virtual data sets read from theirs.
struct OpenedFile {
  std::string path;
  File file;
  std::unique_ptr<RawFile> raw;  ///< of the same file, for tensors that are read without HDF5
  FileInfo info;
  std::vector<StoredTensor> tensors;
  std::vector<StepInfo> steps;
  std::optional<Readiness> readiness;
  std::vector<std::unique_ptr<OpenedFile>> sources;  ///< in the order of workers; empty unless it is a merged view
};

/// Opens and checks `path`. Throws Fault::data with one sentence that names the file, the object and the problem.
[[nodiscard]] OpenedFile open_gradient_file(std::string path);

}  // namespace gradtool::hdf5
