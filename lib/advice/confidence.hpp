#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lib/advice/acceptance.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/trained_arms.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {

// How sure is it that a model learns with a row's codec? The user's own trials say it, or else the trainings of
// reports/verdicts (trained_arms.hpp), by the error of a step.

/// The error of a step's mean, in the window where it is largest; NaN where it is not known. That of sums of steps says
/// less about trainings: it falls as the capture grows longer.
[[nodiscard]] double step_error(const ResultRow& row);

/// The error that the advice goes by: step_error() (1 + 18 c), where c is the correlation between the errors of two
/// steps (ResultRow::error_correlation) if that is above 0. A momentum of 0.9, Adam's too, adds up errors of steps:
/// those that are independent to E, and those that correlate by c to E (1 + 2 c sum 0.9^k). Of an unbiased codec, and
/// of one with a memory, whose errors cancel later, it is the step_error(). Where c is not known, because no two steps
/// of the capture follow each other or a record is older than its column, it is taken for 0.25.
[[nodiscard]] double lasting_error(const ResultRow& row);

/// The error of a cast to bfloat16, and room for the rounding of some sums.
inline constexpr double kErrorOfCast = 2e-5;

/// The largest ResultRow::lost_signs of a codec that is not left to a trial. An error is of the energy of all values,
/// which a few of them may have: a recommender lost 11.8 points with an int8 of error 0.0003 that sent 58 % of a layer
/// without their signs, and none with nvfp4 of error 0.007 and 10 %. Of the codecs with small errors that lost nothing
/// in trainings of reports/verdicts with AdamW, all but topk and qsgd on an LSTM stay below 0.4.
inline constexpr double kMostLostSigns = 0.5;

/// How the errors of the row's steps add up.
[[nodiscard]] ErrorKind error_kind(const ResultRow& row);

/// Whether a row is about what the trainings of reports/verdicts compressed, means of gradients. They say nothing of
/// weights, activations or pseudo-gradients, nor of values that are gathered or exchanged, nor of gradients that are
/// the same on all ranks.
[[nodiscard]] bool was_trained(const ResultRow& row);

/// Whether gradtool.trial, which averages gradients, tries what the row is about.
[[nodiscard]] bool may_be_tried(const ResultRow& row);

/// Why a codec with a memory is not judged by the row's errors: they are those of one phase of the training, or gaps
/// between captured iterations hide what is kept.
[[nodiscard]] std::string_view why_may_grow(const ResultRow& row);

/// The verdict of the user's own trials on a row; empty where they have not tried it.
[[nodiscard]] std::optional<OwnTrial::Verdict> own_verdict(const ResultRow& row, const Acceptance& acceptance);

/// Whether the advice may take the row's codec.
[[nodiscard]] bool is_accepted(const ResultRow& row, const Acceptance& acceptance);

/// "trained" where the user's own trial says that the model learns; else, also where that has not decided, by the
/// lasting error: "sure" below the first with which a training of its kind of errors lost more than a point, "likely"
/// up to harmless_nmse(), and "needs a trial" beyond, where errors of other phases or of a step are not known, and
/// where more signs than kMostLostSigns are lost under an optimizer that is not SGD. Of what no training compressed
/// (was_trained) "sure" up to kErrorOfCast, else "needs a trial". Of a codec that has not lost.
[[nodiscard]] std::string_view confidence_of(const ResultRow& row, const Acceptance& acceptance);

/// The confidence in a codec on which no trial of the user's has decided, and its ground: "sure: none of ...".
[[nodiscard]] std::string ground_of(const ResultRow& row);

/// "its errors come again in the next steps (correlation 0.1), so it counts as 0.085; " where lasting_error() is
/// larger than step_error() by a quarter or more, else empty.
[[nodiscard]] std::string lasting_words(const ResultRow& row);
/// "58 % of the values of one tensor come as 0 or with another sign, and ..." above kMostLostSigns, else empty.
[[nodiscard]] std::string lost_signs_words(const ResultRow& row);
/// ", which counts as 0.085" where lasting_words() has something to say.
[[nodiscard]] std::string counts_as(const ResultRow& row);

/// "25 of 60 trainings at this error or less lost more than a point of accuracy (17 beyond doubt), at worst 18.9 (topk
/// on gpt-nano)"; of unbiased codecs "3 of 30 trainings with unbiased codecs at this error or less lost ...".
[[nodiscard]] std::string evidence(double error, ErrorKind kind);

}  // namespace gradtool
