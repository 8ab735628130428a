#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/changed_source.hpp"

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

/// Positions of the first steps of every window, ascending: of each window its share of `wanted` steps, at least two
/// and at most all of it, so that a part of a capture shows what the whole shows. The windows stay those that they
/// were.
[[nodiscard]] std::vector<std::size_t> part_of_windows(const std::vector<StepWindow>& windows, std::size_t wanted);

/// Training iterations, both ends included.
struct IterationRange {
  std::int64_t first = 0, last = 0;
};

/// Some steps of another source, to which it refers.
class PartOfSteps final : public ChosenSteps {
 public:
  /// Those of part_of_windows().
  PartOfSteps(const GradientSource& source, std::size_t wanted);
  /// Those of iterations in `range`. Throws Fault::usage where there is none.
  PartOfSteps(const GradientSource& source, const IterationRange& range);
};

/// The iterations of each of windows_of().
[[nodiscard]] std::vector<IterationRange> window_iterations_of(const std::vector<StepInfo>& steps, std::size_t count);

/// Whether windows show a training in several phases: the last one begins at least 100 iterations behind the first one
/// and twice as far into the training as that one ended. Gradients of windows that are closer have changed little.
[[nodiscard]] bool are_phases(const IterationRange& first, const IterationRange& last);

struct ResultRow;

/// "290 to 299", or "290" of one iteration.
[[nodiscard]] std::string range_text(const IterationRange& range);
/// "10 to 17, 150 to 157 and 290 to 299"; of more than four windows only the first and the last one.
[[nodiscard]] std::string ranges_text(const std::vector<IterationRange>& ranges);
/// The captured iterations of a row, window by window: "iterations 10 to 17, 150 to 157 and 290 to 299".
[[nodiscard]] std::string iterations_text(const ResultRow& row);
/// are_phases() of the windows of a row; false of a single one. A CSV has the ends alone, of which the last counts as
/// the beginning of its window.
[[nodiscard]] bool has_phases(const ResultRow& row);
/// A sentence behind a space about what these iterations can tell: one phase of the training only, or several. Empty
/// for gradients that are of no file.
[[nodiscard]] std::string phases_text(const ResultRow& row);

}  // namespace gradtool
