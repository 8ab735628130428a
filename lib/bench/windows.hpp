#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Captured steps that followed each other in the training at the capture's own distance, which is the smallest one
/// between two of its steps (capture --every). A residual of one window says nothing of the next, so a codec's state
/// begins anew with each.
struct StepWindow {
  std::size_t begin = 0, end = 0;  ///< positions of its steps in the file, the end excluded
};

/// The smallest number of iterations from one of the first `count` steps to the next; 1 for a single step.
[[nodiscard]] std::int64_t stride_of(const std::vector<StepInfo>& steps, std::size_t count);

/// The windows of the first `count` steps, in order; together they hold every one of these. A step whose gradients
/// overflowed and that was therefore left out (UsableSteps) ends no window, because the optimizer skipped it too.
[[nodiscard]] std::vector<StepWindow> windows_of(const std::vector<StepInfo>& steps, std::size_t count);

/// Training iterations, both ends included.
struct IterationRange {
  std::int64_t first = 0, last = 0;
};

/// The iterations of each of windows_of().
[[nodiscard]] std::vector<IterationRange> window_iterations_of(const std::vector<StepInfo>& steps, std::size_t count);

struct ResultRow;

/// "290 to 299", or "290" of one iteration.
[[nodiscard]] std::string range_text(const IterationRange& range);
/// "10 to 17, 150 to 157 and 290 to 299"; of more than four windows only the first and the last one.
[[nodiscard]] std::string ranges_text(const std::vector<IterationRange>& ranges);
/// The captured iterations of a row, window by window: "iterations 10 to 17, 150 to 157 and 290 to 299".
[[nodiscard]] std::string iterations_text(const ResultRow& row);
/// A sentence behind a space about what these iterations can tell: one phase of the training only, or several. Empty
/// for gradients that are of no file.
[[nodiscard]] std::string phases_text(const ResultRow& row);

}  // namespace gradtool
