#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"
#include "lib/io/growing_set.hpp"

// Lays out an empty gradient file. What is not made here cannot be made later: HDF5's single-writer mode adds no
// objects.
namespace gradtool::hdf5 {

/// The columns of /steps; absent where WriterOptions has them switched off.
struct WritableSteps {
  GrowingSet iteration;
  std::optional<GrowingSet> epoch, learning_rate, loss, compute_seconds;
};

/// The data sets of one tensor.
struct WritableTensor {
  std::uint64_t elements;
  ValueSet gradient;
  std::optional<ValueSet> second_moment, weight;
};

/// Fault::usage when a file of these options would not conform. Before anything is created, so that a mistake leaves no
/// file behind.
void check_options(const WriterOptions& options);

/// Creates `path` with the attributes of the root. Fault::usage when it exists, Fault::backend when it cannot be made.
/// `error` is that of kill_safe_access.
[[nodiscard]] File create_file(const std::string& path, const FileInfo& info, int& error);
[[nodiscard]] WritableSteps create_steps(hid_t file, const WriterOptions& options);
[[nodiscard]] std::vector<WritableTensor> create_tensors(hid_t file, const WriterOptions& options);

}  // namespace gradtool::hdf5
