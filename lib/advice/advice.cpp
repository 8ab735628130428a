// The advice: which codec to take on a modelled network, and why.
#include "lib/advice/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <limits>

#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/trained_arms.hpp"
#include "lib/bench/gate.hpp"
#include "lib/codecs/prototype.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

// Errors that differ by less are alike: other seeds, or other steps, move them as much.
constexpr double kAlike = 1.1;

/// Two significant digits: "93 %", "0.043 %".
std::string percent(double share) {
  const double value = 100.0 * share;
  return value < 9.95 ? fmt::format("{:.2g} %", value) : fmt::format("{:.0f} %", value);
}

std::string too_small(double gain) {
  return gain < 1.0 ? "" : "A gain of less than 5 % is not worth an error. ";
}

/// The less there is to it, the smaller: a cast that is added up, what is gathered, what keeps a memory, several
/// collectives of its own.
int complexity(const ResultRow& row) {
  const int memory = delays(row.codec) || row.codec.descriptor->memory ? 4 : 0;
  const int levels = row.inner ? 1 : 0;
  switch (row.codec.descriptor->aggregation) {
    case Aggregation::sum:
      return memory + levels;
    case Aggregation::own:
      return 8 + levels;
    default:
      return memory + 2 + levels;
  }
}

/// Leaves of each method the first row alone, whatever way it takes, and none of the methods in `others`.
void leave_first_of_each(std::vector<const ResultRow*>& rows, const std::vector<const ResultRow*>& others) {
  std::vector<const ResultRow*> left;
  for (const ResultRow* row : rows) {
    const auto same = [row](const ResultRow* other) { return same_method(*other, *row); };
    if (std::none_of(left.begin(), left.end(), same) && std::none_of(others.begin(), others.end(), same))
      left.push_back(row);
  }
  rows = std::move(left);
}

/// The advice for one network and number of ranks.
class Advice {
 public:
  Advice(const ModelledGroup& group, const Acceptance& acceptance, bool several_cuts)
      : group_{group}, acceptance_{acceptance}, several_cuts_{several_cuts} {
    for (const ResultRow* row : group.rows) {
      if (row->codec.name() == "noop") {
        if (noop_ == nullptr || judged_seconds(*row) < judged_seconds(*noop_)) noop_ = row;
      } else if (row->codec.name() == "none") {
        if (none_ == nullptr || judged_seconds(*row) < judged_seconds(*none_)) none_ = row;
      } else if (replaces_mean(row->codec)) {
        other_results_.push_back(row);
      } else if (!row->reached) {
        unreached_.push_back(row);
      } else if (own_verdict(*row, acceptance) == OwnTrial::Verdict::loses) {
        lost_.push_back(row);
      } else if (own_verdict(*row, acceptance) == OwnTrial::Verdict::learns) {
        fit_.push_back(row);
      } else if (!(judged_error(*row) <= acceptance.max_nmse)) {
        wrong_.push_back(row);
      } else {
        (is_accepted(*row, acceptance) ? fit_ : untrained_).push_back(row);
      }
    }
    const auto by_time = [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); };
    for (auto* rows : {&fit_, &untrained_, &lost_, &wrong_, &unreached_})
      std::stable_sort(rows->begin(), rows->end(), by_time);
    all_zero_ = none_ != nullptr && none_->errors && none_->errors->elements > 0 && none_->errors->xx == 0.0;
    if (all_zero_) {
      for (auto* rows : {&fit_, &untrained_, &wrong_}) rows->clear();
    }
    if (none_ != nullptr) {
      const auto longer = std::stable_partition(fit_.begin(), fit_.end(), [this](auto* row) {
        return steps_kept(*row) == 1.0 || gain_to_loss(*row) >= kWorthwhile;
      });
      longer_.assign(longer, fit_.end());
      fit_.erase(longer, fit_.end());
      choose();
    }
    leave_first_of_each(fit_, {});
    leave_first_of_each(rivals_, {fit_.begin(), fit_.empty() ? fit_.end() : fit_.begin() + 1});
    leave_first_of_each(untrained_, {});
    leave_first_of_each(lost_, {});
    leave_first_of_each(longer_, {});
    // A way within the limit does not explain why a faster one of the same method is left out.
    const auto hidden = [this](const ResultRow* row) {
      return std::any_of(fit_.begin(), fit_.end(), [row](const ResultRow* other) {
        return same_method(*other, *row) && judged_seconds(*other) < kWorthwhile * judged_seconds(*row);
      });
    };
    wrong_.erase(std::remove_if(wrong_.begin(), wrong_.end(), hidden), wrong_.end());
    leave_first_of_each(wrong_, {});
    leave_first_of_each(unreached_, fit_);
    leave_first_of_each(other_results_, {});
  }

  [[nodiscard]] bool possible() const { return none_ != nullptr; }

  [[nodiscard]] NetworkAdvice whole() const {
    const ResultRow *const codec = taken(), *one_level = nullptr;
    std::string why =
        left_out() + reasons() + (codec != nullptr && codec->inner ? in_one_level(one_level) : std::string{});
    why.erase(why.find_last_not_of(' ') + 1);
    const InDdp ddp = codec == nullptr ? InDdp{} : in_ddp(one_level != nullptr ? *one_level : *codec);
    const bool differs = ddp.none != nullptr && ddp.taken != codec;
    return {.group = group_,
            .none = none_,
            .taken = codec,
            .in_one_level = one_level,
            .none_in_ddp = ddp.none,
            .in_ddp = ddp.taken,
            .after_trial = after_trial(),
            .answer = answer() + (differs ? "; in PyTorch's DDP " + ddp.answer : ""),
            .reasons = std::move(why),
            .others = others()};
  }

 private:
  /// The codec that the answer takes, alone or before its rivals; none where the answer is to stay uncompressed or is
  /// open.
  [[nodiscard]] const ResultRow* taken() const {
    return fit_.empty() || gain_interval(*fit_.front(), *none_).low < kWorthwhile ? nullptr : fit_.front();
  }

  /// The share of the steps after which uncompressed training is where this row's codec ends, by the user's own trial.
  [[nodiscard]] double steps_kept(const ResultRow& row) const {
    return acceptance_.trials ? acceptance_.trials->share_of_steps(row) : 1.0;
  }
  /// The gain until both have the same loss.
  [[nodiscard]] double gain_to_loss(const ResultRow& row) const { return gain(judged_seconds(row)) * steps_kept(row); }

  /// The answer of the ways in one level, for who cannot send in two. Sets `found` where a codec is to be taken.
  [[nodiscard]] std::string in_one_level(const ResultRow*& found) const {
    ModelledGroup flat = group_;
    const auto deep = [](const ResultRow* row) { return row->inner && row->codec.name() != "none"; };
    flat.rows.erase(std::remove_if(flat.rows.begin(), flat.rows.end(), deep), flat.rows.end());
    // With --levels nothing was replayed in one level.
    const auto codec = [](const ResultRow* row) { return row->codec.name() != "none" && row->codec.name() != "noop"; };
    if (std::none_of(flat.rows.begin(), flat.rows.end(), codec)) return "";
    const Advice advice{flat, acceptance_, several_cuts_};
    found = advice.taken();
    return fmt::format("Where all ranks reduce in one level, as in DDP: {}{}. ", advice.answer(),
                       found == nullptr ? "" : fmt::format(", {:.2f} times faster", gain(judged_seconds(*found))));
  }

  /// The answer for who sends in PyTorch's DDP: `wanted`, where nothing is faster there.
  struct InDdp {
    const ResultRow *none = nullptr, *taken = nullptr;  ///< null: it is not modelled; no codec is taken
    std::string answer = {};
  };
  [[nodiscard]] InDdp in_ddp(const ResultRow& wanted) const {
    std::vector<const ResultRow*> sources;
    std::vector<ResultRow> rows;
    for (const ResultRow* row : group_.rows) {
      if (!row->in_ddp) continue;
      sources.push_back(row);
      ResultRow& sent = rows.emplace_back(*row);
      sent.units.clear();  // they are those of the other library
      if (sent.iteration) {
        sent.iteration->seconds = row->in_ddp->time.median;
        sent.iteration->low = row->in_ddp->time.low;
        sent.iteration->high = row->in_ddp->time.high;
      } else {
        sent.total = row->in_ddp->time;
      }
    }
    ModelledGroup sent = group_;
    sent.rows.clear();
    for (const ResultRow& row : rows) sent.rows.push_back(&row);
    const Advice advice{sent, acceptance_, several_cuts_};
    if (!advice.possible()) return {};
    const auto source = [&](const ResultRow* row) {
      return row == nullptr ? nullptr : sources[static_cast<std::size_t>(row - rows.data())];
    };
    for (const ResultRow* row : advice.alike_) {
      if (source(row) == &wanted)
        return {.none = source(advice.none_), .taken = &wanted, .answer = "take " + name_of_row(wanted)};
    }
    return {.none = source(advice.none_), .taken = source(advice.taken()), .answer = advice.answer()};
  }

  /// Among those that surely gain, and that no other beats by the noise of both and the fastest by 5 %, which would be
  /// worth an error, puts the one with the least error first; of those that err alike, or no more than a cast, the
  /// simplest. The fastest alone may be a row whose times say nothing.
  void choose() {
    if (fit_.empty()) return;
    double surely = std::numeric_limits<double>::infinity();  // seconds that one of them takes at most
    for (const ResultRow* row : fit_) surely = std::min(surely, judged_interval(*row).high);
    const auto worthwhile = [this](const ResultRow* row) { return gain_interval(*row, *none_).low >= kWorthwhile; };
    std::vector<const ResultRow*>& alike = alike_;
    for (const ResultRow* row : fit_) {
      const bool near = judged_seconds(*row) < kWorthwhile * judged_seconds(*fit_.front());
      if (near || judged_interval(*row).low < surely) alike.push_back(row);
    }
    // The fastest stands for all where none surely gains: a slower one could turn an open question into a no.
    alike.erase(std::remove_if(alike.begin(), alike.end(), [&](auto* row) { return !worthwhile(row); }), alike.end());
    if (alike.empty()) return;
    double least = std::numeric_limits<double>::infinity();
    for (const ResultRow* row : alike) least = std::min(least, std::max(judged_error(*row), kErrorOfCast));
    const ResultRow* chosen = nullptr;
    for (const ResultRow* row : alike) {
      if (judged_error(*row) > kAlike * least) continue;
      if (chosen == nullptr || complexity(*row) < complexity(*chosen)) chosen = row;
    }
    if (chosen == nullptr) return;  // errors that are no numbers
    for (const ResultRow* row : alike) {
      if (row != chosen) rivals_.push_back(row);
    }
    const auto place = std::find(fit_.begin(), fit_.end(), chosen);
    std::rotate(fit_.begin(), place, place + 1);
  }

  /// The answer in a word or two: neighbouring numbers of ranks with the same answer share a paragraph.
  [[nodiscard]] std::string answer() const {
    if (fit_.empty() || gain_interval(*fit_.front(), *none_).high < kWorthwhile) return "stay uncompressed";
    const std::string name = name_of_row(*fit_.front());
    if (gain_interval(*fit_.front(), *none_).low < kWorthwhile)
      return fmt::format("{} or uncompressed, too close to call", name);
    return "take " + name;
  }

  /// A sentence where the answer is for a model without some of its tensors.
  [[nodiscard]] std::string left_out() const {
    const std::string& message = none_->message;
    const std::size_t at = message.find(kTensorsLeftOut);
    if (at == std::string::npos) return "";
    const std::size_t separator = message.rfind("; ", at), begin = separator == std::string::npos ? 0 : separator + 2;
    return sentence(fmt::format("{}: the answer is for a model without them",
                                message.substr(begin, message.find(')', at) + 1 - begin)));
  }

  /// Why, as whole sentences.
  [[nodiscard]] std::string reasons() const {
    if (fit_.empty()) {
      const bool judged = !(wrong_.empty() && lost_.empty() && longer_.empty());
      const std::string none =
          all_zero_                       ? "All captured gradients are zero, which tells nothing of a codec. "
          : untrained_.empty() && !judged ? "No codec here was judged. "
          : untrained_.empty()
              ? fmt::format("No codec here{} has an error of at most {:g}. ",
                            lost_.empty() ? "" : " that has not lost in the trial", acceptance_.max_nmse)
              : "No codec here has errors that trainings have shown to be harmless. ";
      return none + needs_trial() + hopeless() + exposed();
    }
    const ResultRow& best = *fit_.front();
    const std::string name = name_of_row(best);
    const std::string uncompressed = human_seconds(judged_seconds(*none_));
    const std::string what = best.iteration ? "an iteration" : fmt::format("a step's {}", name_of(best.op));
    if (gain_interval(best, *none_).high < kWorthwhile) {
      const double speed = gain(judged_seconds(best));
      const double percent_faster = 100.0 * (speed - 1.0);
      const std::string change = std::abs(percent_faster) < 0.1 ? "would not change"
                                 : speed > 1.0 ? fmt::format("would be {:.1f} % faster than", percent_faster)
                                 : speed > 0.9
                                     ? fmt::format("would be {:.1f} % slower than", 100.0 * (1.0 / speed - 1.0))
                                     : fmt::format("would be {:.2f} times slower than", 1.0 / speed);
      return fmt::format(
                 "{}, the fastest codec whose error is small enough ({:.2g}), {} the {} that {} takes uncompressed{}. "
                 "{}",
                 name, judged_error(best), change, uncompressed, what, unknown_noise(best), too_small(speed)) +
             needs_trial() + hopeless() + pays_below() + exposed();
    }
    const std::string compressed = human_seconds(judged_seconds(best));
    const double ratio = gain(judged_seconds(best));
    std::string text = fmt::format("With {} {} takes {}", name, what, compressed);
    if (compressed == uncompressed) {
      text += ", as long as uncompressed";
    } else {
      text += fmt::format(" instead of {} uncompressed", uncompressed);
      const auto efficiency = best.scaling_efficiency();
      const std::string with = efficiency ? percent(*efficiency) : "";
      const std::string without = efficiency ? percent(*none_->scaling_efficiency()) : "";
      if (with != without) text += fmt::format(", a scaling efficiency of {} instead of {}", with, without);
      text += ratio >= 1.0 ? fmt::format(": {:.2f} times faster", ratio)
                           : fmt::format(": {:.2f} times slower", 1.0 / ratio);
    }
    const Interval gains = gain_interval(best, *none_);
    const std::string noise = unknown_noise(best);
    if (noise.empty() && fmt::format("{:.2f}", gains.high) != fmt::format("{:.2f}", gains.low)) {
      const Interval shown = text.ends_with("slower") ? Interval{1.0 / gains.high, 1.0 / gains.low} : gains;
      text += fmt::format(" ({:.2f} to {:.2f} with 95 % confidence)", shown.low, shown.high);
    }
    text += noise;
    if (!delays(best)) {
      text += fmt::format("; its error of a step is {:.2g}", judged_error(best));
    } else {
      // A codec that delays what it sends is wrong in each step by more than in all of them.
      text += fmt::format("; its accumulated error is {:.2g}", judged_error(best));
      if (best.errors) text += fmt::format(" (that of a step {:.2g})", step_error(best));
    }
    if (best.windows > 1 && best.worst_window)
      text += fmt::format(", in the worst window (iterations {})", range_text(*best.worst_window));
    text += small_units(best);
    text += ". ";
    const auto own = own_verdict(best, acceptance_);
    const bool trained = own == OwnTrial::Verdict::learns;
    if (own) text += sentence((trained ? "trained: " : "") + acceptance_.trials->words_of(best));
    if (trained && sends_parts(best) && best.ranks >= 2 * acceptance_.trials->workers_of(best))
      text += fmt::format(
          "Among {} ranks sparse payloads have less in common than among {} workers, and a codec that sends them may "
          "err more and send more: try it with as many. ",
          best.ranks, acceptance_.trials->workers_of(best));
    if (own && steps_kept(best) < 1.0)
      text += fmt::format("It comes to that loss {:.2f} times as fast. ", gain_to_loss(best));
    if (!trained) text += sentence(ground_of(best));
    if (best.codec.given.empty() && !best.codec.params.text().empty())
      text += fmt::format("Its parameters: {}. ", best.codec.params.text());
    if (best.codec.descriptor->name == kPrototype && best.codec_times == CodecTimes::measured)
      text += "Its times are Python's; --codec-speed floor:3000 takes those of a memory of 3000 GB/s. ";
    if (!rivals_.empty()) {
      std::vector<std::string> names = names_of(rivals_);
      if (names.size() > kNamed) names.resize(kNamed);
      const bool least = std::all_of(rivals_.begin(), rivals_.end(),
                                     [&](auto* row) { return judged_error(best) <= judged_error(*row); });
      text += fmt::format("As fast within 5 % or their noise: {}{}; {} {}. ", joined(names, ", "),
                          rivals_.size() > names.size() ? " and others" : "", name,
                          least ? "has the smallest error of them"
                          : judged_error(best) <= kErrorOfCast
                              ? "is as simple as any that errs no more than a cast to bfloat16"
                              : "is as simple as any with an error about as small");
    }
    text += needs_trial();
    if (ratio < kWorthwhile) text += too_small(ratio) + hopeless() + pays_below();
    return text + exposed();
  }

  /// The runners-up and why nothing else was taken, a line each.
  [[nodiscard]] std::vector<std::string> others() const {
    std::vector<std::string> lines;
    std::vector<std::string> next, faster, slower;
    for (std::size_t i = 1; i < fit_.size(); ++i) {
      const ResultRow& row = *fit_[i];
      if (next.size() < 3 && gain(judged_seconds(row)) >= 1.0)
        next.push_back(fmt::format("{} {} ({} {:.2g})", name_of_row(row), human_seconds(judged_seconds(row)),
                                   delays(row) ? "accumulated error" : "error of a step", judged_error(row)));
      else
        (gain(judged_seconds(row)) >= 1.0 ? faster : slower)
            .push_back(name_of_row(row) + (is_noisy(row) ? fmt::format(" (+-{:.0f} %)", *noise_percent(row)) : ""));
    }
    const auto line = [&lines](std::string_view what, std::vector<std::string> names) {
      if (names.empty()) return;
      const std::size_t more = names.size() > kNamed + 1 ? names.size() - kNamed : 0;  // the table has all of them
      names.resize(names.size() - more);
      lines.push_back(
          fmt::format("{}: {}{}.", what, joined(names, ", "), more > 0 ? fmt::format(" and {} others", more) : ""));
    };
    line("next", next);
    std::vector<std::string> trials;
    for (const ResultRow* row : after_trial()) {
      trials.push_back(fmt::format("{} {} (error of a step {:.2g}{}{})", name_of_row(*row),
                                   human_seconds(judged_seconds(*row)), step_error(*row), counts_as(*row),
                                   own_verdict(*row, acceptance_) ? ", undecided in the trial" : ""));
    }
    line(may_be_tried(*none_) ? "after a trial in a training" : "after a training with it", trials);
    std::vector<const ResultRow*> little;
    const auto tried = after_trial();
    std::set_difference(untrained_.begin(), untrained_.end(), tried.begin(), tried.end(), std::back_inserter(little),
                        [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); });
    line("would need a trial and gain less than 5 % on the answer",
         may_be_tried(*none_) ? with_errors(little) : std::vector<std::string>{});
    line("also faster than uncompressed", faster);
    line("slower than uncompressed", slower);
    std::vector<std::string> lost;
    for (const ResultRow* row : lost_)
      lost.push_back(fmt::format("{} ({})", name_of_row(*row), acceptance_.trials->difference_of(*row)));
    line("lost in the trial", lost);
    std::vector<std::string> longer;
    for (const ResultRow* row : longer_) {
      longer.push_back(fmt::format("{} ({:.2f} times faster a step, and uncompressed needs {:.0f} % of the steps)",
                                   name_of_row(*row), gain(judged_seconds(*row)), 100.0 * steps_kept(*row)));
    }
    line("worse in the trial beyond doubt, and would gain less than 5 % to the same loss", longer);
    line(fmt::format("error above {:g}", acceptance_.max_nmse), names_of(wrong_));
    line("not judged, because not at work (the table's remarks say why)", names_of(unreached_));
    line("not compared, because it is an optimizer of its own and averages no gradients", names_of(other_results_));
    const auto& alone = none_->tensorwise_seconds;
    const bool buckets = std::none_of(group_.rows.begin(), group_.rows.end(),
                                      [](const ResultRow* row) { return row->granularity == "tensor"; });
    if (alone && none_->total && buckets && *alone > kWorthwhile * none_->total->median) {
      lines.push_back(fmt::format("uncompressed gradients take {} reduced by {}, and {} reduced tensor by tensor.",
                                  human_seconds(none_->total->median), none_->granularity, human_seconds(*alone)));
    }
    return lines;
  }

 private:
  /// With a capital in front, and a full stop and a space behind.
  [[nodiscard]] static std::string sentence(std::string text) {
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    return text + ". ";
  }
  /// "; units of less than 64 KB, 3 % of the bytes, go uncompressed".
  [[nodiscard]] static std::string small_units(const ResultRow& row) {
    if (row.gated_share == 0.0) return "";
    if (!row.gate_applied)
      return fmt::format("; {} of the bytes, in units below its gate, go uncompressed", percent(row.gated_share));
    return fmt::format("; units of less than {}, {} of the bytes, go uncompressed (gate_bytes of ddp_hook)",
                       gate_text(*row.gate_bytes), percent(row.gated_share));
  }
  [[nodiscard]] static std::string unknown_noise(const ResultRow& row) {
    return row.total && row.total->low ? "" : " (of fewer than five samples: how noisy that is, is not known)";
  }
  /// Whether each rank chooses which values it sends.
  [[nodiscard]] static bool sends_parts(const ResultRow& row) {
    constexpr double kMost = 0.9;  // of all values
    return row.codec.descriptor->aggregation == Aggregation::gather && row.bytes &&
           row.bytes->values_sent < kMost * static_cast<double>(row.elements);
  }
  [[nodiscard]] double gain(double seconds) const { return judged_seconds(*none_) / seconds; }
  [[nodiscard]] std::string name_of_row(const ResultRow& row) const { return full_name(row, several_cuts_); }
  [[nodiscard]] std::vector<std::string> with_errors(const std::vector<const ResultRow*>& rows) const {
    std::vector<std::string> names = names_of(rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
      names[i] += fmt::format(" ({:.2g}{})", step_error(*rows[i]), counts_as(*rows[i]));
    return names;
  }
  [[nodiscard]] std::vector<std::string> names_of(const std::vector<const ResultRow*>& rows) const {
    std::vector<std::string> names;
    names.reserve(rows.size());
    for (const ResultRow* row : rows) names.push_back(name_of_row(*row));
    return names;
  }
  /// The rows that need a trial, and would then gain on what is taken.
  [[nodiscard]] std::vector<const ResultRow*> after_trial() const {
    const double now = judged_seconds(taken() == nullptr ? *none_ : *taken());
    std::vector<const ResultRow*> rows;
    for (const ResultRow* row : untrained_) {
      if (kWorthwhile * judged_seconds(*row) <= now) rows.push_back(row);
    }
    return rows;
  }
  /// The fastest of the sorted rows, where it is faster than what is taken by more than a gain that is not worthwhile.
  [[nodiscard]] const ResultRow* faster_of(const std::vector<const ResultRow*>& rows) const {
    const double now = judged_seconds(taken() == nullptr ? *none_ : *taken());
    return !rows.empty() && now >= kWorthwhile * judged_seconds(*rows.front()) ? rows.front() : nullptr;
  }
  /// The codecs that would be faster, but err more than any training vouches for, or have lost in the user's own trial.
  [[nodiscard]] std::string needs_trial() const {
    std::string text;
    if (const ResultRow* lost = faster_of(lost_)) {
      text = fmt::format("Faster, but it lost: {}, {:.2f} times. {}", name_of_row(*lost), gain(judged_seconds(*lost)),
                         sentence(acceptance_.trials->words_of(*lost)));
    }
    const ResultRow* fastest = faster_of(untrained_);
    if (fastest == nullptr) return text;
    const double error = step_error(*fastest);
    const std::string faster = fmt::format("{}, {:.2f} times", name_of_row(*fastest), gain(judged_seconds(*fastest)));
    if (own_verdict(*fastest, acceptance_)) {
      return text + fmt::format("Faster, but its trial has not decided: {} (error of a step {:.2g}). {}", faster, error,
                                sentence(acceptance_.trials->words_of(*fastest)));
    }
    const std::string said =
        !std::isfinite(error) ? std::string{"its error of a step is not known"}
        : !was_trained(*fastest)
            ? fmt::format("error of a step {:.2g}; the trainings here say nothing of such values", error)
        : !lost_signs_words(*fastest).empty()
            ? fmt::format("error of a step {:.2g}, and {}", error, lost_signs_words(*fastest))
        : lasting_error(*fastest) <= harmless_nmse(error_kind(*fastest))
            ? fmt::format("error of a step {:.2g}, but it has a memory, and {}: capture several phases, or try it",
                          error, why_may_grow(*fastest))
            : fmt::format("error of a step {:.2g}: {}{}", error, lasting_words(*fastest),
                          evidence(lasting_error(*fastest), error_kind(*fastest)));
    if (!may_be_tried(*fastest))
      return text + fmt::format("Faster, but not without a training: {} ({}). ", faster, said);
    return text + fmt::format(
                      "Faster, but not without a trial (docs/trial.md): {} ({}): gradtool.trial(train, [\"{}\"], "
                      "steps=300{}){}. ",
                      faster, said, spec_of(*fastest),
                      takes_own_scheme(*fastest) ? "" : fmt::format(", scheme=\"{}\"", name_of(fastest->scheme)),
                      fastest->inner ? ", which trains it in one level" : "");
  }
  /// How long an iteration waits for uncompressed gradients: no codec can save more.
  [[nodiscard]] std::string exposed() const {
    if (!none_->iteration) return "";
    const double waits = none_->iteration->seconds - none_->iteration->compute_seconds;
    return fmt::format(
        "Uncompressed, {} of an iteration are exposed communication: no codec can gain more than {:.2f} times. ",
        human_seconds(waits), none_->iteration->seconds / none_->iteration->compute_seconds);
  }
  /// The longest computation beside which one of the codecs would gain enough, where that of the iteration is longer.
  [[nodiscard]] std::string pays_below() const {
    const auto& iteration = none_->iteration;
    if (!iteration || none_->units.empty()) return "";
    double longest = 0.0;
    const ResultRow* codec = nullptr;
    // Beside another computation gradients may be the faster with another granularity.
    const auto uncompressed = [&](double compute) {
      double least = std::numeric_limits<double>::infinity();
      for (const ResultRow* row : group_.rows) {
        if (row->codec.name() == "none" && !row->units.empty())
          least = std::min(least, modelled_iteration(*row, compute, iteration->overlap));
      }
      return least;
    };
    for (const ResultRow* row : fit_) {
      if (row->units.empty()) continue;
      const auto gains = [&](double compute) {
        return uncompressed(compute) >= kWorthwhile * modelled_iteration(*row, compute, iteration->overlap);
      };
      // A gain may begin with the computation that a codec's latencies hide behind, so 0 tells nothing of the rest.
      constexpr int kParts = 64;
      int part = kParts - 1;
      while (part >= 0 && !gains(iteration->compute_seconds * part / kParts)) --part;
      if (part < 0) continue;
      double pays = iteration->compute_seconds * part / kParts;
      double does_not = iteration->compute_seconds * (part + 1) / kParts;
      for (int step = 0; step < 40; ++step) {
        const double middle = 0.5 * (pays + does_not);
        (gains(middle) ? pays : does_not) = middle;
      }
      if (pays > longest) {
        longest = pays;
        codec = row;
      }
    }
    if (codec == nullptr)
      return "No codec whose error is small enough would gain 5 %, beside a shorter computation either. ";
    return fmt::format("{} would pay beside a computation of less than {}. ", name_of_row(*codec),
                       human_seconds(longest));
  }
  [[nodiscard]] std::string hopeless() const {
    // A step that takes no time at all has no seconds to be judged by.
    const bool at_once = noop_ != nullptr && !noop_->iteration && noop_->total && noop_->total->median == 0.0;
    const bool is = noop_ != nullptr && !at_once && judged_seconds(*none_) < kWorthwhile * judged_seconds(*noop_);
    return is ? "Even sending nothing would gain less than 5 %. " : "";
  }

  static constexpr std::size_t kNamed = 6;  ///< codecs in a list

  ModelledGroup group_;
  const Acceptance& acceptance_;
  bool several_cuts_;
  const ResultRow *none_ = nullptr, *noop_ = nullptr;  ///< the fastest of them
  std::vector<const ResultRow*> fit_, wrong_, unreached_, other_results_;
  bool all_zero_ = false;                    ///< what was replayed, so that no error says anything
  std::vector<const ResultRow*> lost_;       ///< in the user's own trial
  std::vector<const ResultRow*> longer_;     ///< learned there, and need more steps than their time saves
  std::vector<const ResultRow*> untrained_;  ///< would fit, but trainings have not shown their errors harmless
  std::vector<const ResultRow*> alike_;      ///< of fit_, what surely gains and nothing surely beats
  std::vector<const ResultRow*> rivals_;  ///< of fit_, those that noise does not let be told apart from the chosen one
};

}  // namespace

std::vector<NetworkAdvice> advice_of(std::span<const ResultRow> rows, const Acceptance& acceptance) {
  const bool several_cuts = has_several_granularities(rows);
  std::vector<NetworkAdvice> all;
  for (const auto& group : modelled_groups(rows)) {
    const Advice one{group, acceptance, several_cuts};
    if (one.possible()) all.push_back(one.whole());
  }
  return all;
}

}  // namespace gradtool
