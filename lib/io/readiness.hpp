#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lib/io/gradient_file.hpp"
#include "lib/io/hdf5.hpp"

// The group /readiness of a gradient file (docs/gradient-file.md).
namespace gradtool::hdf5 {

/// Reads and checks it; nothing where the file lacks it. `file_bytes` and `complete` are those of the file. Throws
/// Fault::data, naming the data set, where an extent is another one than [workers, tensors] or a value is no share.
[[nodiscard]] std::optional<Readiness> load_readiness(hid_t file, const Place& root, std::uint64_t workers,
                                                      std::uint64_t tensors, std::uint64_t file_bytes, bool complete);

/// Its data sets in a file that is written. They have their place in the file from the beginning, filled with NaN, so
/// that writing them later needs no room on the disk and changes nothing else in the file.
class ReadinessSets {
 public:
  ReadinessSets(hid_t file, std::uint64_t workers, std::uint64_t tensors);
  /// Throws Fault::internal where the sizes are others than those given above.
  void write(const Readiness& readiness);

 private:
  std::uint64_t workers_, tensors_;
  Dataset ready_, backward_share_;
};

}  // namespace gradtool::hdf5
