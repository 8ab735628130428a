#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/data_set.hpp"
#include "lib/io/gradient_file.hpp"

// The parts of opening a gradient file: each function checks one part of it and throws Fault::data, naming the place
// and the problem, when it does not conform.
namespace gradtool::hdf5 {

/// The data sets of one tensor, as /tensors/<number> has them.
struct StoredTensor {
  std::string number;  ///< its name in /tensors, as it stands there
  TensorInfo info;
  DataSet gradient;
  Dtype gradient_dtype;
  std::optional<DataSet> second_moment, weight;
  Dtype second_moment_dtype = Dtype::f32, weight_dtype = Dtype::f32;
};

/// The columns of /steps.
struct StoredSteps {
  DataSet iteration;
  std::optional<DataSet> epoch, learning_rate, loss, compute_seconds, overflow, batch_weight;
};

/// Reads the attributes of the root. Format and version are checked before anything else.
[[nodiscard]] FileInfo load_root(hid_t file, const Place& root);

/// Opens the columns of /steps and checks them against `workers`; does not compare their lengths yet.
[[nodiscard]] StoredSteps open_steps(hid_t file, const Place& root, std::int64_t workers);

/// Opens every tensor in forward order and checks that shapes, types and `workers` agree and that names are unique.
/// `raw` reads the same file, and must outlive the tensors.
[[nodiscard]] std::vector<StoredTensor> open_tensors(hid_t file, const Place& root, std::int64_t workers, RawFile& raw);

/// The number of steps S. In a complete file all data sets have the same number of steps. In an incomplete one the
/// shortest counts, and no other may be more than one step longer, because one step may be unfinished.
[[nodiscard]] std::size_t settle_steps(const StoredSteps& steps, const std::vector<StoredTensor>& tensors,
                                       bool complete);

/// Checks that the values of every data set exist in a file of `file_bytes` bytes; see DataSet::expect_stored.
void expect_stored(const StoredSteps& steps, const std::vector<StoredTensor>& tensors, std::uint64_t file_bytes,
                   bool complete);

/// Reads the first `count` rows of the columns.
[[nodiscard]] std::vector<StepInfo> load_steps(const StoredSteps& steps, std::size_t count, std::size_t workers);

}  // namespace gradtool::hdf5
