#include "lib/bench/windows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/bench/result.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kNamed = 4;          // windows; of more only the first and the last are told
constexpr std::int64_t kLaterPhase = 100;  // iterations from the first window to the last

/// Iterations from the step before, without those that were left out because they overflowed.
std::int64_t distance(const std::vector<StepInfo>& steps, std::size_t s) {
  return steps[s].iteration - steps[s - 1].iteration - steps[s].overflowed_before;
}

}  // namespace

std::int64_t stride_of(const std::vector<StepInfo>& steps, std::size_t count) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t s = 1; s < count; ++s) {
    if (!steps[s].begins_window) least = std::min(least, distance(steps, s));
  }
  return least == std::numeric_limits<std::int64_t>::max() ? 1 : std::max<std::int64_t>(1, least);
}

std::vector<StepWindow> windows_of(const std::vector<StepInfo>& steps, std::size_t count) {
  std::vector<StepWindow> windows;
  const std::int64_t stride = stride_of(steps, count);
  for (std::size_t s = 0; s < count; ++s) {
    // Overflowed steps that were left out are at the capture's distance too.
    if (s == 0 || steps[s].begins_window ||
        steps[s].iteration - steps[s - 1].iteration > stride * (1 + steps[s].overflowed_before))
      windows.push_back({s, s});
    windows.back().end = s + 1;
  }
  return windows;
}

std::vector<std::size_t> part_of_windows(const std::vector<StepWindow>& windows, std::size_t wanted) {
  std::vector<std::size_t> places;
  const std::size_t all = windows.empty() ? 1 : std::max<std::size_t>(1, windows.back().end);
  for (const StepWindow& window : windows) {
    const std::size_t size = window.end - window.begin;
    const std::size_t count = std::min(size, std::max<std::size_t>(2, wanted * size / all));
    for (std::size_t s = 0; s < count; ++s) places.push_back(window.begin + s);
  }
  return places;
}

PartOfSteps::PartOfSteps(const GradientSource& source, std::size_t wanted) : ChosenSteps{source} {
  for (const std::size_t place : part_of_windows(windows_of(source.steps(), source.steps().size()), wanted))
    choose(place);
}

PartOfSteps::PartOfSteps(const GradientSource& source, const IterationRange& range) : ChosenSteps{source} {
  const auto& all = source.steps();
  for (const StepWindow& window : windows_of(all, all.size())) {
    bool begins = true;
    for (std::size_t s = window.begin; s < window.end; ++s) {
      if (all[s].iteration < range.first || all[s].iteration > range.last) continue;
      choose(s).begins_window = std::exchange(begins, false);
    }
  }
  if (!steps().empty()) return;
  throw Error{Fault::usage,
              fmt::format("--steps {}:{} has no captured step of {}, whose iterations are {}", range.first, range.last,
                          source.path(), ranges_text(window_iterations_of(all, all.size())))};
}

std::vector<IterationRange> window_iterations_of(const std::vector<StepInfo>& steps, std::size_t count) {
  std::vector<IterationRange> ranges;
  for (const StepWindow& window : windows_of(steps, count))
    ranges.push_back({steps[window.begin].iteration, steps[window.end - 1].iteration});
  return ranges;
}

bool are_phases(const IterationRange& first, const IterationRange& last) {
  return last.first - first.first >= kLaterPhase && last.first >= 2 * first.last;
}

bool has_phases(const ResultRow& row) {
  if (row.windows < 2) return false;
  if (row.window_iterations.size() < 2)  // a CSV has the ends alone
    return are_phases({row.first_step, row.first_step}, {row.last_step, row.last_step});
  return are_phases(row.window_iterations.front(), row.window_iterations.back());
}

std::string range_text(const IterationRange& range) {
  return range.first == range.last ? fmt::format("{}", range.first) : fmt::format("{} to {}", range.first, range.last);
}

std::string ranges_text(const std::vector<IterationRange>& ranges) {
  if (ranges.size() > kNamed) return fmt::format("{}, ..., {}", range_text(ranges.front()), range_text(ranges.back()));
  std::string text;
  for (std::size_t w = 0; w < ranges.size(); ++w) {
    if (w > 0) text += w + 1 == ranges.size() ? " and " : ", ";
    text += range_text(ranges[w]);
  }
  return text;
}

std::string iterations_text(const ResultRow& row) {
  if (row.windows <= 1) return fmt::format("iterations {} to {}", row.first_step, row.last_step);
  if (row.window_iterations.size() != row.windows || row.windows > kNamed)
    return fmt::format("{} windows of iterations {} to {}", row.windows, row.first_step, row.last_step);
  return "iterations " + ranges_text(row.window_iterations);
}

std::string phases_text(const ResultRow& row) {
  if (row.file.empty()) return "";
  std::string gaps = row.stride > 1
                         ? fmt::format(
                               " One of every {} iterations was captured: what a codec holds back is carried "
                               "over the gaps to gradients that a training would not meet then.",
                               row.stride)
                         : "";
  if (row.stride > 1 && are_phases({row.first_step, row.first_step}, {row.last_step, row.last_step})) return gaps;
  if (row.windows <= 1) return gaps + " These are of one phase of the training: errors of some codecs grow later.";
  if (!has_phases(row))
    return gaps +
           " These windows are so close that they show one phase of the training: errors of some codecs grow later.";
  return gaps + " A codec begins anew with each window and is judged by its worst.";
}

}  // namespace gradtool
