#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradtool {

/// The files of an import: of each step those of all workers, in the order of their numbers.
struct MatchedFiles {
  std::vector<std::int64_t> steps;                  ///< the numbers of the steps, ascending
  std::vector<std::vector<std::string>> by_worker;  ///< for each step the path of each worker's file
};

/// Finds the files that `pattern` names: in "run/step{step}/rank{worker}.npz" {step} and {worker} are whole numbers,
/// with leading zeros or without; where one stands several times it is the same number. Without {step} there is one
/// step, number 0, without {worker} one worker. Everything else stands for itself.
///
/// Throws Fault::usage for a pattern that is none, and Fault::data when no file matches, when two have the same
/// numbers, and where one is missing: each step needs a file of each worker, and the workers' numbers follow each
/// other.
[[nodiscard]] MatchedFiles match_files(const std::string& pattern);

}  // namespace gradtool
