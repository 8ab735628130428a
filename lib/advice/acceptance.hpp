#pragma once

#include <memory>

namespace gradtool {

/// The largest error that advice accepts unless another one was given: sending nothing has an error of 1.
constexpr double kDefaultMaxNmse = 0.1;
struct OwnTrials;
/// Which errors advice accepts.
struct Acceptance {
  Acceptance() = default;
  /// A number that the user asks for is taken at its word.
  Acceptance(double limit) : max_nmse{limit}, trained{false} {}  // NOLINT: a limit is an acceptance

  double max_nmse = kDefaultMaxNmse;  ///< of judged_error()
  bool trained = true;  ///< and of a step's error no more than trainings vouch for: beyond it a codec needs a trial
  std::shared_ptr<const OwnTrials> trials = {};  ///< decide about the codecs that they have tried, whatever they err
};

}  // namespace gradtool
