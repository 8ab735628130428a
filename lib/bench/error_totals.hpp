#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/lanes.hpp"
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
    const bool last = step + 1 == result_.windows[window_].end;
    const auto add = begun_[unit_index] ? (last ? add_to_totals<false, true> : add_to_totals<false, false>)
                                        : (last ? add_to_totals<true, true> : add_to_totals<true, false>);
    // Block by block, so that a large unit comes through the caches once.
    constexpr std::size_t kBlock = 1024;
    for (const auto& piece : units_[unit_index].pieces) {
      ErrorSums sums;
      Energies running;
      for (std::size_t done = 0; done < piece.elements; done += kBlock) {
        const std::size_t first = piece.first + done;
        const auto mean = exact.subspan(first, std::min(kBlock, piece.elements - done));
        const auto result = got.subspan(first, mean.size());
        sums.observe(mean, result);
        if (with_sums) add(mean, result, &difference_[unit_index][first], &total_[unit_index][first], running);
      }
      result_.tensor_errors[piece.tensor].merge(sums);
      const auto count = [&](StepErrors& errors) {
        errors.sums.merge(sums);
        errors.cumulative_error += running.error;
        errors.cumulative_energy += running.total;
      };
      count(result_.step_errors[step]);
      const std::size_t tensors = result_.tensor_errors.size();
      if (!result_.tensor_steps.empty()) count(result_.tensor_steps[step * tensors + piece.tensor]);
      if (!with_sums || !last) continue;
      result_.cumulative_error[window_ * tensors + piece.tensor] += running.error;
      result_.cumulative_energy[window_ * tensors + piece.tensor] += running.total;
    }
    if (!with_sums) return;
    begun_[unit_index] = true;
    if (updates_) updates_->observe(unit_index, exact, got);
  }

  /// All steps of a window were observed. The running sums begin anew.
  void finish_window() {
    const std::size_t tensors = result_.tensor_errors.size();
    if (updates_) updates_->finish(std::span{result_.updates}.subspan(window_ * tensors, tensors));
    begun_.assign(begun_.size(), false);
    ++window_;
  }

 private:
  static std::size_t arena_bytes(std::span<const Unit> units) {
    std::size_t bytes = 0;
    for (const auto& unit : units) bytes += 2 * Arena<Space::host>::padded_size(sizeof(double) * unit.elements);
    return bytes;
  }
  /// Sums of squares of the running sums.
  struct Energies {
    double error = 0.0, total = 0.0;
  };
  /// First: the running sums begin with this step, and what stands in memory is not looked at. Last: they end with it,
  /// and are not kept.
  template <bool First, bool Last>
  static void add_to_totals(std::span<const double> exact, std::span<const float> got, double* difference,
                            double* total, Energies& energies) {
    host::run_with_vectors<AddToTotals<First, Last>>(exact.data(), got.data(), exact.size(), difference, total,
                                                     &energies);
  }
  template <bool First, bool Last>
  struct AddToTotals {
    static constexpr std::size_t kLanes = 8;

    template <std::size_t Bytes>
    [[gnu::always_inline]] static void run(const double* exact, const float* got, std::size_t n,
                                           double* __restrict difference, double* __restrict total,
                                           Energies* energies) {
      double error[kLanes] = {}, energy[kLanes] = {};
      const auto add = [&](std::size_t i, std::size_t lane) __attribute__((always_inline)) {
        double off = exact[i] - static_cast<double>(got[i]);
        double sum = exact[i];
        if constexpr (!First) off += difference[i], sum += total[i];
        if constexpr (!Last) difference[i] = off, total[i] = sum;
        error[lane] += off * off;
        energy[lane] += sum * sum;
      };
      std::size_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
      }
      for (; i < n; ++i) add(i, 0);
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        energies->error += error[lane];
        energies->total += energy[lane];
      }
    }
  };

  std::span<const Unit> units_;
  ReplayResult& result_;
  Arena<Space::host> arena_;
  std::vector<HostView<double>> difference_, total_;
  std::size_t window_ = 0;   ///< the one that is observed
  std::vector<bool> begun_;  ///< by unit: whether its sums have a step of this window
  std::optional<UpdateErrors> updates_;
};

}  // namespace gradtool
