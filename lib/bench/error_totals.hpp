#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/bench/update_errors.hpp"
#include "lib/core/arena.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

/// The totals of a range of units where results are compared with the exact mean: error sums per tensor and per step,
/// and running sums over steps per element, 16 bytes for each. With a rule also what the optimizer makes of both.
class ErrorTotals {
 public:
  /// `rule`: of the optimizer; empty: it is not looked at. `own_momentum`: what is received has momentum already.
  ErrorTotals(std::span<const Unit> units, const std::optional<UpdateRule>& rule, bool own_momentum,
              ReplayResult& result)
      : units_{units}, result_{result}, arena_{arena_bytes(units)}, begun_(units.size()) {
    if (rule) updates_.emplace(units, *rule, own_momentum ? rule->without_momentum() : *rule);
    for (const auto& unit : units_) {
      difference_.push_back(arena_.take<double>(unit.elements));
      total_.push_back(arena_.take<double>(unit.elements));
    }
  }

  /// `exact` is the mean of what the ranks put into a unit, `got` is what became of it. `unit_index` counts in the
  /// range.
  /// `with_sums`: also the running sums, which mean something where every step has values of the same elements.
  void observe(std::size_t step, std::size_t unit_index, std::span<const double> exact, std::span<const float> got,
               bool with_sums = true) {
    // Block by block, so that a large unit comes through the caches once. The sums run over all blocks in order.
    constexpr std::size_t kBlock = 1024;
    for (const auto& piece : units_[unit_index].pieces) {
      ErrorSums sums;
      StepErrors* const of_tensor = result_.tensor_steps.empty()
                                        ? nullptr
                                        : &result_.tensor_steps[step * result_.tensor_errors.size() + piece.tensor];
      for (std::size_t done = 0; done < piece.elements; done += kBlock) {
        const std::size_t first = piece.first + done;
        const auto mean = exact.subspan(first, std::min(kBlock, piece.elements - done));
        const auto result = got.subspan(first, mean.size());
        sums.observe(mean, result);
        if (with_sums) {
          const auto add = begun_[unit_index] ? add_to_totals<false> : add_to_totals<true>;
          add(result_.step_errors[step], of_tensor, mean, result, &difference_[unit_index][first],
              &total_[unit_index][first]);
        }
      }
      result_.tensor_errors[piece.tensor].merge(sums);
      result_.step_errors[step].sums.merge(sums);
      if (of_tensor != nullptr) of_tensor->sums.merge(sums);
    }
    if (!with_sums) return;
    begun_[unit_index] = true;
    if (updates_) updates_->observe(unit_index, exact, got);
  }

  /// All steps of a window were observed. The running sums begin anew.
  void finish(std::size_t window) {
    const std::size_t first = window * result_.tensor_errors.size();
    if (updates_) updates_->finish(std::span{result_.updates}.subspan(first, result_.tensor_errors.size()));
    for (std::size_t u = 0; u < difference_.size(); ++u) {
      if (!begun_[u]) continue;
      begun_[u] = false;
      for (const auto& piece : units_[u].pieces) {
        double error = result_.cumulative_error[first + piece.tensor];  // not added up in memory, see add_to_totals
        double energy = result_.cumulative_energy[first + piece.tensor];
        for (std::size_t i = piece.first; i < piece.first + piece.elements; ++i) {
          error += difference_[u][i] * difference_[u][i];
          energy += total_[u][i] * total_[u][i];
        }
        result_.cumulative_error[first + piece.tensor] = error;
        result_.cumulative_energy[first + piece.tensor] = energy;
      }
    }
  }

 private:
  static std::size_t arena_bytes(std::span<const Unit> units) {
    std::size_t bytes = 0;
    for (const auto& unit : units) bytes += 2 * Arena<Space::host>::padded_size(sizeof(double) * unit.elements);
    return bytes;
  }
  /// First: the running sums begin with this step, and what stands in memory is not looked at.
  template <bool First>
  static void add_to_totals(StepErrors& step, StepErrors* of_tensor, std::span<const double> exact,
                            std::span<const float> got, double* difference, double* total) {
    double error = step.cumulative_error;  // not added up in memory, which the stores below might be to
    double energy = step.cumulative_energy;
    double tensor_error = 0.0, tensor_energy = 0.0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double off = exact[i] - static_cast<double>(got[i]);
      difference[i] = First ? off : difference[i] + off;
      total[i] = First ? exact[i] : total[i] + exact[i];
      error += difference[i] * difference[i];
      energy += total[i] * total[i];
      tensor_error += difference[i] * difference[i];
      tensor_energy += total[i] * total[i];
    }
    step.cumulative_error = error;
    step.cumulative_energy = energy;
    if (of_tensor == nullptr) return;
    of_tensor->cumulative_error += tensor_error;
    of_tensor->cumulative_energy += tensor_energy;
  }

  std::span<const Unit> units_;
  ReplayResult& result_;
  Arena<Space::host> arena_;
  std::vector<HostView<double>> difference_, total_;
  std::vector<bool> begun_;  ///< by unit: whether its sums have a step of this window
  std::optional<UpdateErrors> updates_;
};

}  // namespace gradtool
