#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/advice/acceptance.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {

/// The result of trainings of the user's own model in which codecs took part: the record of gradtool.trial
/// (docs/trial.md) or of gradtool train (docs/train.md).
struct OwnTrial {
  enum class Verdict : std::uint8_t { undecided, learns, loses };
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
  std::string unit = {};       ///< of what was judged, written behind its numbers: " points", or empty
  std::uint64_t elements = 0;  ///< of the model
  int workers = 0, steps = 0;
  std::string warning = {};  ///< what makes all verdicts doubtful, as a sentence without its end; may be empty
  std::optional<double> tolerance = {};  ///< by how much an arm may be worse and still learn
  std::vector<Arm> arms;

  /// The arm of the row's codec with the same parameters, null where it took no part. One that learns counts for the
  /// way that it took alone, its own `reduce=` or the trial's; one that loses counts for every way, since none errs
  /// less.
  [[nodiscard]] const Arm* arm_of(const ResultRow& row) const;
  /// "in trial.json (GPT, 4 workers, 300 steps) it learns: its loss is worse by 0.0013 (-0.03 to 0.03), and
  /// uncompressed had that training loss after 291 steps".
  [[nodiscard]] std::string words(const Arm& arm) const;
  /// The ground of an arm's verdict: "its loss is worse by 0.0013 (95 %: -0.03 to 0.03)", or its reason.
  [[nodiscard]] std::string difference(const Arm& arm) const;
};

/// All records of --trained. Where several have tried a codec, one in which it loses counts before one in which it
/// learns, and either before one that is undecided, in whatever order they are given.
struct OwnTrials {
  std::vector<OwnTrial> trials;

  /// Whether the codec with these parameters has lost by one way, and has learned by none.
  [[nodiscard]] bool loses(const CodecSpec& codec) const;
  /// Empty where no record has tried the row's codec.
  [[nodiscard]] std::optional<OwnTrial::Verdict> verdict_of(const ResultRow& row) const;
  /// The share of its steps after which uncompressed training was where the row's codec ended, the smallest of the
  /// records in which it does not lose but is worse beyond doubt; 1 where there is none. A gain in time a step is worth
  /// so much less.
  [[nodiscard]] double share_of_steps(const ResultRow& row) const;
  /// The words of each record about the row's codec, those that decide first; empty where none has tried it.
  [[nodiscard]] std::string words_of(const ResultRow& row) const;
  /// The most workers of the records that decide about the row's codec; 0 where there is none.
  [[nodiscard]] int workers_of(const ResultRow& row) const;
  /// The difference() of the first arm that decided.
  [[nodiscard]] std::string difference_of(const ResultRow& row) const;
  /// A sentence for each record with the verdicts of its first arms, how these differ from none, and how many more
  /// there are.
  [[nodiscard]] std::vector<std::string> verdicts() const;
  /// By which rules the records decide, as whole sentences, each with a space in front.
  [[nodiscard]] std::string rules() const;
  /// " --trained a.json --trained b.json".
  [[nodiscard]] std::string options() const;

  /// Throws Fault::usage where a record is of a model with another number of parameters than the capture's.
  void expect_same_model(const std::string& capture, std::uint64_t elements) const;
};

/// Reads trial.json, train.json, or the latter in a folder of gradtool train. Throws Fault::data where it is none.
[[nodiscard]] OwnTrial read_own_trial(const std::string& path);

}  // namespace gradtool
