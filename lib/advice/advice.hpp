#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/advice/acceptance.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {

/// Times that may be off by more percent are marked as noisy: a break-even that rests on them moves as much.
constexpr double kNoisyPercent = 20.0;
/// A smaller gain is not worth an error, because neither the model nor the measured times are that exact.
constexpr double kWorthwhile = 1.05;

/// The modelled rows of one network with one number of ranks.
struct ModelledGroup {
  std::string network;
  int ranks;
  std::vector<const ResultRow*> rows;
};
/// In the order in which the groups first appear. The rows must outlive them.
[[nodiscard]] std::vector<ModelledGroup> modelled_groups(std::span<const ResultRow> rows);

[[nodiscard]] bool has_several_granularities(std::span<const ResultRow> rows);

/// Whose the row's encoding and decoding times are: "2 threads of AMD EPYC", a GPU's name, or for a record its file
/// too.
[[nodiscard]] std::string processor_text(const ResultRow& row);
/// Whose collectives a modelled row's network carries: "the collectives of gloo", or "the best known collectives".
[[nodiscard]] std::string collectives_text(const ResultRow& row);

/// "fp32" of "f32", as people write it.
[[nodiscard]] std::string type_words(const std::string& dtype);

/// short_name(), and what is reduced at once where rows differ in it.
[[nodiscard]] std::string full_name(const ResultRow& row, bool several_cuts);

/// How far the ends of the interval of encoding and decoding lie from their median, in percent. Empty: not known.
[[nodiscard]] std::optional<double> noise_percent(const ResultRow& row);
[[nodiscard]] bool is_noisy(const ResultRow& row);

/// The answer for one network with one number of ranks, and why. The terminal and the page of `gradtool report` both
/// print these sentences, so that they cannot disagree.
struct NetworkAdvice {
  ModelledGroup group;
  const ResultRow* none = nullptr;   ///< the fastest uncompressed row, what gains are measured by; never null
  const ResultRow* taken = nullptr;  ///< the codec to take; null: none pays without a trial, or it is too close to call
  const ResultRow* in_one_level = nullptr;  ///< where `taken` works in two levels: what to take where there is one
  const ResultRow* none_in_ddp = nullptr;   ///< uncompressed in PyTorch's DDP; null: that is not modelled
  const ResultRow* in_ddp = nullptr;        ///< where a codec is taken: the one to take there; null: none pays
  std::vector<const ResultRow*> after_trial =
      {};  ///< need a trial, and would then gain on what is taken; fastest first
  /// "take bf16", "stay uncompressed", "bf16 or uncompressed, too close to call"; where DDP sends so that another codec
  /// is to be taken, or none: "take int8 by alltoall; in PyTorch's DDP stay uncompressed".
  std::string answer;
  std::string reasons;              ///< whole sentences
  std::vector<std::string> others;  ///< what runs up, and why nothing else was taken: sentences without a capital
};
/// For each network and number of ranks that has a row of `none`. Compared are codecs with an error (judged_error) of
/// at most `acceptance.max_nmse`, by the iteration where it was modelled. With `acceptance.trained`, those with an
/// lasting error beyond harmless_nmse() are named and not taken, because they need a trial. Of the others that surely
/// gain 5 %, and that the fastest does not beat by 5 % and by more than its noise, the one with the least error is
/// taken; of those that err alike the simplest. The rows must outlive the result.
[[nodiscard]] std::vector<NetworkAdvice> advice_of(std::span<const ResultRow> rows, const Acceptance& acceptance);

/// The ground that the advice rests on, two paragraphs. `any` is one of the rows it was made of.
[[nodiscard]] std::vector<std::string> advice_basis(const ResultRow& any, const Acceptance& acceptance);

}  // namespace gradtool
