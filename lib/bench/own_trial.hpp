#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/bench/result.hpp"

namespace gradtool {

/// What trainings of the user's own model came to, in which codecs took part: the record of gradtool.trial
/// (docs/trial.md).
struct OwnTrial {
  enum class Verdict : std::uint8_t { learns, loses, undecided };
  struct Arm {
    std::string codec;  ///< with all of its parameters
    Verdict verdict = Verdict::undecided;
    std::string reason;                  ///< of the verdict; may be empty
    std::optional<double> worse_by;      ///< than none, in what was judged
    std::optional<double> low, high;     ///< its 95 % interval
    std::optional<double> lr_factor;     ///< that learning rates were multiplied with
    std::optional<double> same_as_none;  ///< share of the steps after which none was where this arm ended
  };

  std::string file, model, judge, scheme;
  std::uint64_t elements = 0;  ///< of the model
  int workers = 0, steps = 0;
  std::vector<Arm> arms;

  /// The arm of the row's codec with the same parameters, null where it took no part. One that learns counts for the
  /// way that the trial took alone; one that loses counts for every way, since none errs less.
  [[nodiscard]] const Arm* arm_of(const ResultRow& row) const;
  /// "in trial.json (GPT, 4 workers, 300 steps) it learns: its loss is worse by 0.0013 (-0.03 to 0.03), and none was
  /// there after 291 steps".
  [[nodiscard]] std::string words(const Arm& arm) const;
};

/// Reads trial.json. Throws Fault::data where it is none.
[[nodiscard]] OwnTrial read_own_trial(const std::string& path);

/// Throws Fault::usage where the trial is of a model with another number of parameters than the capture's.
void expect_same_model(const OwnTrial& trial, const std::string& capture, std::uint64_t elements);

}  // namespace gradtool
