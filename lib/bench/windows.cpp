#include "lib/bench/windows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/bench/result.hpp"

namespace gradtool {
std::vector<StepWindow> windows_of(const std::vector<StepInfo>& steps, std::size_t count) {
  std::vector<StepWindow> windows;
  for (std::size_t s = 0; s < count; ++s) {
    if (s == 0 || steps[s].iteration != steps[s - 1].iteration + 1 + steps[s].overflowed_before)
      windows.push_back({s, s});
    windows.back().end = s + 1;
  }
  return windows;
}

std::string range_text(const IterationRange& range) {
  return range.first == range.last ? fmt::format("{}", range.first) : fmt::format("{} to {}", range.first, range.last);
}

std::string iterations_text(const ResultRow& row) {
  constexpr std::size_t kNamed = 4;  // windows; of more only the number is told
  if (row.windows <= 1) return fmt::format("iterations {} to {}", row.first_step, row.last_step);
  if (row.window_iterations.size() != row.windows || row.windows > kNamed)
    return fmt::format("{} windows of iterations {} to {}", row.windows, row.first_step, row.last_step);
  std::string text = "iterations ";
  for (std::size_t w = 0; w < row.windows; ++w) {
    if (w > 0) text += w + 1 == row.windows ? " and " : ", ";
    text += range_text(row.window_iterations[w]);
  }
  return text;
}

std::string phases_text(const ResultRow& row) {
  if (row.file.empty()) return "";
  if (row.windows <= 1) return " These are of one phase of the training: errors of some codecs grow later.";
  const auto single = [](const IterationRange& range) { return range.first == range.last; };
  if (std::all_of(row.window_iterations.begin(), row.window_iterations.end(), single) &&
      !row.window_iterations.empty()) {
    return " No two of them follow each other, so nothing is carried from one to the next: codecs with error feedback "
           "are judged by their first step alone, which looks worse than they are.";
  }
  return " A codec begins anew with each window and is judged by its worst.";
}

}  // namespace gradtool
