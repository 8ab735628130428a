#include "lib/advice/confidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradtool {
namespace {

/// Whether the errors say nothing of other phases of the training: those of a codec with a memory may be small early
/// and large later (powersgd:rank=2 on a transformer: 0.0007 in steps 5 to 85, 0.65 in steps 290 to 299).
bool may_grow(const ResultRow& row) {
  return delays(row) && !has_phases(row);
}

/// Whether the row has the correlation of errors of steps that follow each other.
bool knows_correlation(const ResultRow& row) {
  return row.error_correlation && std::isfinite(*row.error_correlation) && row.stride == 1;
}

/// Whether small values may be lost that move the model as far as large ones.
bool loses_signs(const ResultRow& row) {
  return row.lost_signs && !(*row.lost_signs <= kMostLostSigns);
}

/// Whether hardly any arm with an error as small has lost anything that counts; of what no training compressed, whether
/// the error is a cast's.
bool is_harmless(const ResultRow& row) {
  if (may_grow(row) || loses_signs(row)) return false;
  return was_trained(row) ? lasting_error(row) <= harmless_nmse(error_kind(row)) : step_error(row) <= kErrorOfCast;
}

std::string_view of_codecs(ErrorKind kind) {
  return kind == ErrorKind::unbiased ? " with unbiased codecs" : "";
}

std::string_view confidence_by_error(const ResultRow& row) {
  if (!is_harmless(row)) return "needs a trial";
  return !was_trained(row) || lasting_error(row) < first_loss(error_kind(row)) ? "sure" : "likely";
}

}  // namespace

double step_error(const ResultRow& row) {
  if (row.errors) return worst_step_error(row);
  return delays(row) ? std::numeric_limits<double>::quiet_NaN() : judged_error(row);
}

double lasting_error(const ResultRow& row) {
  constexpr double kPairs = 18.0;         // 2 (0.9 + 0.9^2 + ...)
  constexpr double kLikelyAtMost = 0.25;  // somewhat more than any trained codec's (fft 0.24, signsgd 0.19)
  const double error = step_error(row);
  if (delays(row) || error_kind(row) == ErrorKind::unbiased) return error;
  const double correlation = knows_correlation(row) ? *row.error_correlation : kLikelyAtMost;
  return error * (1.0 + kPairs * std::max(0.0, correlation));
}

ErrorKind error_kind(const ResultRow& row) {
  return row.codec.descriptor->unbiased && !delays(row) ? ErrorKind::unbiased : ErrorKind::other;
}

bool may_be_tried(const ResultRow& row) {
  return row.quantity == "gradient" && (row.op == Collective::all_reduce || row.op == Collective::reduce_scatter);
}

bool was_trained(const ResultRow& row) {
  return may_be_tried(row) && !row.averaged;
}

std::string_view why_may_grow(const ResultRow& row) {
  return row.windows < 2 && row.stride > 1 ? "the gaps between captured iterations hide what it keeps"
                                           : "its errors are those of one phase of the training";
}

std::optional<OwnTrial::Verdict> own_verdict(const ResultRow& row, const Acceptance& acceptance) {
  return acceptance.trials == nullptr ? std::nullopt : acceptance.trials->verdict_of(row);
}

bool is_accepted(const ResultRow& row, const Acceptance& acceptance) {
  const auto own = own_verdict(row, acceptance);
  if (own == OwnTrial::Verdict::loses) return false;
  if (own == OwnTrial::Verdict::learns) return true;
  return judged_error(row) <= acceptance.max_nmse && (!acceptance.trained || is_harmless(row));
}

std::string_view confidence_of(const ResultRow& row, const Acceptance& acceptance) {
  return own_verdict(row, acceptance) == OwnTrial::Verdict::learns ? "trained" : confidence_by_error(row);
}

std::string ground_of(const ResultRow& row) {
  const ErrorKind kind = error_kind(row);
  const double step = step_error(row), error = lasting_error(row), lost = first_loss(kind);
  const std::string_view word = confidence_by_error(row);
  if (std::isnan(error)) return fmt::format("{}: its error of a step is not known", word);
  if (loses_signs(row)) return fmt::format("{}: {}", word, lost_signs_words(row));
  if (word == "sure" && judged_error(row) == 0.0)
    return fmt::format("{}: it loses nothing but the last bits of sums", word);
  if (error <= harmless_nmse(kind) && may_grow(row))
    return fmt::format("{}: it has a memory, and {}", word, why_may_grow(row));
  if (!was_trained(row)) {
    const std::string_view same = row.averaged ? "the capture has gradients that were averaged over the ranks" : "";
    if (step <= kErrorOfCast)
      return fmt::format("{}: it errs no more than a cast to bfloat16{}{}", word,
                         row.averaged ? "; " : ", in which jobs send such values", same);
    return fmt::format("{}: {}", word,
                       row.averaged ? fmt::format("{}, so its error says nothing of means", same)
                                    : "the trainings behind this advice compressed means of gradients alone");
  }
  if (error >= lost) return fmt::format("{}: {}{}", word, lasting_words(row), evidence(error, kind));
  return fmt::format("{}: none of {} trainings{} with an error below {:.3g} lost more than a point of accuracy", word,
                     trained_arms_up_to(std::nextafter(lost, 0.0), kind).arms, of_codecs(kind), lost);
}

std::string lasting_words(const ResultRow& row) {
  const double error = lasting_error(row);
  if (!(error >= 1.25 * step_error(row))) return "";
  return knows_correlation(row)
             ? fmt::format("its errors come again in the next steps (correlation {:.2g}), so it counts as {:.2g}; ",
                           *row.error_correlation, error)
             : fmt::format("how far its errors come again in the next steps is not known, so it counts as {:.2g}; ",
                           error);
}

std::string lost_signs_words(const ResultRow& row) {
  if (!loses_signs(row)) return "";
  return fmt::format(
      "{:.0f} % of the values of one tensor come as 0 or with another sign, and this training's optimizer, unlike SGD, "
      "moves a model by small values as far as by large ones",
      100.0 * *row.lost_signs);
}

std::string counts_as(const ResultRow& row) {
  return lasting_words(row).empty() ? "" : fmt::format(", which counts as {:.2g}", lasting_error(row));
}

std::string evidence(double error, ErrorKind kind) {
  const TrainedArms found = trained_arms_up_to(error, kind);
  if (found.arms == 0) return "all trained codecs had larger errors";
  const std::string trained =
      fmt::format("{} training{}{} at this error or less", found.arms, found.arms == 1 ? "" : "s", of_codecs(kind));
  if (found.lost == 0) return fmt::format("none of {} lost more than a point of accuracy", trained);
  return fmt::format("{} of {} lost more than a point of accuracy ({} beyond doubt), at worst {:.1f} ({} on {})",
                     found.lost, trained, found.surely, found.worst->lost, found.worst->codec, found.worst->training);
}

}  // namespace gradtool
