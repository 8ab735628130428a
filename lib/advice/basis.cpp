// The ground of the advice in words, and the words that tables and pages share with it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/advice/advice.hpp"
#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/trained_arms.hpp"
#include "lib/bench/windows.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

/// How much is reduced in a step: " (61706 parameters, 0.247 MB of fp32 gradients)".
std::string size_of_model(const ResultRow& row) {
  if (row.elements == 0) return "";
  const bool mixed = row.baseline_dtype == "mixed";
  return fmt::format(" ({} parameters, {:.3g} MB of {}gradients)", row.elements, row.raw_bytes() * 1e-6,
                     mixed ? "" : type_words(row.baseline_dtype) + " ");
}

/// The meaning of uncompressed where it is not float32.
std::string baseline_text(const ResultRow& none) {
  if (none.baseline_dtype == "f32") return "";
  const double error = none.errors ? none.errors->nmse() : 0.0;
  return fmt::format(
      " Uncompressed means gradients in {}, as this job sends them (--baseline-dtype){}.",
      none.baseline_dtype == "mixed" ? "each tensor's own type" : type_words(none.baseline_dtype),
      none.errors && std::isfinite(error) ? fmt::format("; their sum has an error of {:.2g}", error) : "");
}

/// The work of an iteration beside its gradients.
std::string computation_text(const ResultRow::Iteration& iteration) {
  const auto [low, high] = std::pair{iteration.compute_low, iteration.compute_high};
  const std::string captured =
      low <= 0.0    ? ""
      : low == high ? " (one step's time)"
                    : fmt::format(" ({} to {} in single steps)", human_seconds(low), human_seconds(high));
  return fmt::format(
      " An iteration computes for {}{}, and {}.", human_seconds(iteration.compute_seconds), captured,
      iteration.overlap == Overlap::bucket
          ? fmt::format(
                "a bucket is sent as soon as the backward pass has it; gradients are {}",
                iteration.backward.captured ? "ready as captured" : "taken to be ready in proportion to their elements")
          : std::string{"gradients are sent after the backward pass (--overlap none)"});
}

std::string misfit_text(const ResultRow& any) {
  if (any.network->misfit == 0.0) return "";
  return fmt::format(
      " What was measured on this network lies off the model's line by {:.0f} % (root mean square over sizes): times "
      "modelled with it are no better.",
      100.0 * any.network->misfit);
}

/// Why ways in two levels are missing, where the network has machines of several ranks.
std::string levels_text(const ResultRow& any) {
  if (any.op != Collective::all_reduce || any.network->node == 1) return "";
  for (int machine = 2; machine <= any.measured_ranks / 2; ++machine) {
    if (any.measured_ranks % machine == 0) return "";
  }
  return fmt::format(
      " Two levels were not tried: {} ranks are not two machines of several; a capture of 4 or 8 workers has them.",
      any.measured_ranks);
}

}  // namespace

std::string processor_text(const ResultRow& row) {
  std::string name = row.processor.empty() ? "this machine" : row.processor;
  if (!row.codec_times_file.empty()) name += " in " + row.codec_times_file;
  if (row.device != "cpu" && !row.device.empty()) return name;
  return fmt::format("{} thread{} of {}", row.threads, row.threads == 1 ? "" : "s", name);
}

std::string collectives_text(const ResultRow& row) {
  if (!row.network || row.network->library == Library::best) return "the best known collectives";
  return fmt::format("the collectives of {}", library_text(*row.network));
}

std::vector<ModelledGroup> modelled_groups(std::span<const ResultRow> rows) {
  std::vector<ModelledGroup> groups;
  for (const ResultRow& row : rows) {
    if (!row.modelled()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const ModelledGroup& group) {
      return group.network == row.network->name && group.ranks == row.ranks;
    });
    if (same == groups.end())
      groups.push_back({row.network->name, row.ranks, {&row}});
    else
      same->rows.push_back(&row);
  }
  return groups;
}

bool has_several_granularities(std::span<const ResultRow> rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [&](const ResultRow& row) { return row.granularity != rows.front().granularity; });
}

std::optional<double> noise_percent(const ResultRow& row) {
  if (!row.encode || !row.decode || !row.encode->low || !row.decode->low) return std::nullopt;
  const double median = row.encode->median + row.decode->median;
  if (!(median > 0.0)) return std::nullopt;
  const double low = *row.encode->low + *row.decode->low;
  const double high = *row.encode->high + *row.decode->high;
  return 100.0 * std::max(high - median, median - low) / median;
}

bool is_noisy(const ResultRow& row) {
  return noise_percent(row).value_or(0.0) > kNoisyPercent;
}

std::string type_words(const std::string& dtype) {
  return dtype == "f32" ? "fp32" : dtype == "f16" ? "fp16" : dtype;
}

std::string full_name(const ResultRow& row, bool several_cuts) {
  return short_name(row) + (several_cuts ? " with " + row.granularity : "");
}

std::vector<std::string> advice_basis(const ResultRow& any, const Acceptance& acceptance) {
  using enum ErrorKind;
  const std::string trained =
      acceptance.trained && !was_trained(any)
          ? fmt::format(
                " Without a trial, its error of a step must also be at most {:.2g}, that of a cast to bfloat16: the "
                "{}.",
                kErrorOfCast,
                any.averaged
                    ? "capture has gradients that were averaged over the ranks, so errors of their mean say nothing"
                    : "trainings of reports/verdicts compressed means of gradients, and not these values")
      : acceptance.trained ? fmt::format(
                                 " Without a trial, its error of a step must also be at most {:.3g}: in "
                                 "reports/verdicts (eight models, from a perceptron to a small GPT) {}. It counts 1 + "
                                 "18 c times where errors of two steps correlate by c > 0, which a momentum does not "
                                 "average. If it is unbiased, so that errors of steps cancel, {:.3g} is enough: {}. Of "
                                 "a codec with a memory errors of several phases of the training have to be known.",
                                 harmless_nmse(other), evidence(harmless_nmse(other), other), harmless_nmse(unbiased),
                                 evidence(harmless_nmse(unbiased), unbiased))
                           : " Trainings named here are those of reports/verdicts (eight models, from a perceptron to "
                             "a small GPT).";
  const std::string tried = acceptance.trials ? acceptance.trials->rules() : "";
  return {fmt::format(
              "A codec may be taken if its error is at most {:g} (--max-nmse); an exact one has 0, and sending nothing "
              "has 1. The error is that of a step; where a codec sends later what it leaves out now, it is that of the "
              "sum over the steps of a window.{}{} Only training tells whether your model learns with it.{}",
              acceptance.max_nmse, trained, tried, baseline_text(any)),
          fmt::format(
              "The advice rests on times of {} ({}), errors of {} ranks, {}{} in {}, reduced by {}, and a model of the "
              "network with {} (--library).{}{}{}{}",
              processor_text(any),
              any.codec_times == CodecTimes::floor
                  ? "as if codecs did no more than read and write their memory once: at best"
                  : "on another processor codecs take another time",
              any.measured_ranks, any.file.empty() ? "the capture" : any.file, size_of_model(any), iterations_text(any),
              any.granularity, collectives_text(any), levels_text(any), phases_text(any), misfit_text(any),
              any.iteration ? computation_text(*any.iteration)
              : any.op == Collective::all_reduce || any.op == Collective::reduce_scatter
                  ? " Times are of the gradients alone: --compute-ms adds the computation that they can hide behind."
                  : fmt::format(" Times are of the {} alone.", name_of(any.op)))};
}

}  // namespace gradtool
