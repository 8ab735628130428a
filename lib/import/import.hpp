#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/import/array_file.hpp"
#include "lib/import/kinds.hpp"

namespace gradtool {

struct ImportOptions {
  std::string pattern;  ///< of the files, see match_files()
  std::string out;
  bool force = false;               ///< replace `out`
  std::optional<Element> raw = {};  ///< the files are values without any header, of this type
  std::string shapes;               ///< of raw files: the list of their arrays
  bool difference = false;          ///< of each step and the next one, instead of the values themselves
  bool negate = false;              ///< the difference the other way round
  std::string quantity;             ///< empty: what `difference` and `negate` say, else gradient
  std::optional<std::int64_t> inner_steps = {};
  bool averaged = false;
  std::vector<KindRule> kinds;
  std::string layers, skip;  ///< regular expressions of names to take and to leave out; empty for all and none
  std::string model, command;
};

struct ImportReport {
  std::size_t files = 0, steps = 0, workers = 0, tensors = 0;
  std::uint64_t elements = 0, bytes = 0;  ///< of one worker's step; of `out`
  std::vector<std::string> notes;         ///< what the user should know: clauses without a full stop
  bool interrupted = false;  ///< the user stopped it: `out` has `steps` until then; one that was there stays
};

/// Makes a gradient file of files of arrays: safetensors, .npy, .npz, or raw values. Types are kept but for f64, which
/// is rounded to f32; differences are computed in f64 and stored as f32. Memory does not grow with the files, but for
/// arrays in Fortran order.
///
/// Throws Fault::usage for options that do not fit, Fault::data for files that do not conform or do not fit each other,
/// Fault::backend when `out` cannot be written. Then no file is left behind. `progress` is called with (values written,
/// values in all).
ImportReport import_arrays(const ImportOptions& options,
                           const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace gradtool
