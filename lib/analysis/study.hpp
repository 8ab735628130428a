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
  /// Working memory of the analyses that take ranges of elements, for each thread. Decides where tensors are cut, and
  /// so the last digits of results; the number of threads does not.
  std::uint64_t part_bytes = std::uint64_t{32} << 20;
  /// The GPU that the analyses were made for, or null. On a GPU one part at a time is open, and `threads` do nothing.
  std::shared_ptr<AnalysisGpu> gpu;
  /// Called with values read so far and in all. Returning false stops the study.
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress = [](auto, auto) { return true; };
};

/// Feeds a gradient file to analyses. `tensors[i]` is the file's number of the tensor that the analyses' scope calls i;
/// all analyses have the same scope. One thread reads (HDF5 allows no more), `threads` compute.
///
/// The file is read once for the analyses that take ranges of elements and once for those that take whole gradients.
/// Memory for each thread: `part_bytes` or a little more for the former; for the latter six times the float32 size of
/// the largest tensor. Besides, for every step of the tensor at hand, a few doubles (PearsonSums). Never the file.
/// False when `progress` stopped it; the analyses are then of no use.
[[nodiscard]] bool study(const GradientReader& reader, std::span<const std::size_t> tensors,
                         std::span<const std::unique_ptr<Analysis>> analyses, const StudyOptions& options);

}  // namespace gradtool
