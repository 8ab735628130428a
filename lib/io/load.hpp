#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/data_set.hpp"
#include "lib/io/gradient_file.hpp"

// The checks that stand between a file and a GradientReader. Each throws Fault::data with the place and the problem.
namespace gradtool::hdf5 {

/// The data sets of one tensor, as /tensors/<number> has them.
struct StoredTensor {
  TensorInfo info;
  DataSet gradient;
  Dtype gradient_dtype;
  std::optional<DataSet> second_moment, weight;
  Dtype second_moment_dtype = Dtype::f32, weight_dtype = Dtype::f32;
};

/// The columns of /steps.
struct StoredSteps {
  DataSet iteration;
  std::optional<DataSet> epoch, learning_rate, loss, compute_seconds;
};

/// Attributes of the root. Format and version are settled before anything else is looked at.
[[nodiscard]] FileInfo load_root(hid_t file, const Place& root);

/// Opens /steps; columns agree with `workers`, their lengths are not compared yet.
[[nodiscard]] StoredSteps open_steps(hid_t file, const Place& root, std::int64_t workers);

/// Opens every tensor in forward order; shapes, types and `workers` agree, names are unique.
[[nodiscard]] std::vector<StoredTensor> open_tensors(hid_t file, const Place& root, std::int64_t workers);

/// S. Where the file is complete all data sets have it; else the shortest counts, and none may be more than the one
/// unfinished step longer.
[[nodiscard]] std::size_t settle_steps(const StoredSteps& steps, const std::vector<StoredTensor>& tensors,
                                       bool complete);

/// Every data set's values exist in a file of `file_bytes`; see DataSet::expect_stored.
void expect_stored(const StoredSteps& steps, const std::vector<StoredTensor>& tensors, std::uint64_t file_bytes,
                   bool complete);

/// The first `count` rows of the columns.
[[nodiscard]] std::vector<StepInfo> load_steps(const StoredSteps& steps, std::size_t count, std::size_t workers);

}  // namespace gradtool::hdf5
