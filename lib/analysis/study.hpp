#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/analysis/analysis.hpp"

namespace gradtool {

struct StudyOptions {
  int threads = 1;
  /// Bytes of working memory, for each thread, of the analyses that take ranges of elements. It decides where tensors
  /// are cut, and so it can change the last digits of results; the number of threads cannot.
  std::uint64_t part_bytes = std::uint64_t{32} << 20;
  /// The GPU for which the analyses were made, or null. On a GPU one part at a time is open, and `threads` has no
  /// effect.
  std::shared_ptr<AnalysisGpu> gpu;
  /// Called with values read so far and in all. Returning false stops the study.
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress = [](auto, auto) { return true; };
};

/// Feeds a gradient file to analyses. `tensors[i]` is the file's number of the tensor that the analyses' scope calls i;
/// all analyses have the same scope. One thread reads (HDF5 allows no more), `threads` compute.
///
/// The file is read once for the analyses that take ranges of elements and once for those that take whole gradients.
/// Each thread needs `part_bytes` or a little more of memory for the former, and ten times the float32 size of the
/// largest tensor for the latter; PearsonSums keeps about 64 MiB for the current tensor. Memory does not
/// depend on the size of the file. Returns false when `progress` stopped the study; the analyses then hold no usable
/// results.
[[nodiscard]] bool study(const GradientSource& reader, std::span<const std::size_t> tensors,
                         std::span<const std::unique_ptr<Analysis>> analyses, const StudyOptions& options);

}  // namespace gradtool
