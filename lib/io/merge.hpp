#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

struct MergeOptions {
  std::vector<std::string> files;  ///< gradient files of one job, each with the values of one rank or more
  std::string out;
  bool copy = false;   ///< write the values too, instead of a view of the files
  bool force = false;  ///< replace `out`
  std::string command;
};

struct MergeReport {
  std::vector<std::string> files;  ///< in the order in which their workers now stand
  std::size_t steps = 0, workers = 0, tensors = 0;
  std::uint64_t bytes = 0;         ///< of `out`
  std::vector<std::string> notes;  ///< what was left out or could not be kept: clauses without a full stop
  bool interrupted = false;        ///< the user stopped it: `out` has `steps` until then; one that was there stays
};

/// Makes one gradient file of the files of ranks: the workers of the first file, then those of the second, and so on.
/// Their order is that of the attribute `rank` where all files have it, else as given. Steps are matched by their
/// iteration; those that not all files have are left out. Weights are those of the first file.
///
/// Without `copy` the values stay where they are and `out` refers to them (virtual data sets), so that it takes
/// kilobytes; it must lie in the files' folder, and they must not be views themselves.
///
/// Throws Fault::data when a file does not conform or the files do not belong together, Fault::usage when `out` is
/// there or lies elsewhere, Fault::backend when it cannot be written. Then no file is left behind. `progress` is called
/// as by find_non_finite(), with `copy` alone.
MergeReport merge_gradient_files(const MergeOptions& options, const ReadProgress& progress = {});

}  // namespace gradtool
