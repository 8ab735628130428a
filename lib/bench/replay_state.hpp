#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "lib/bench/replay.hpp"

namespace gradtool {

/// What rank 0 keeps in the pass for the errors: sums per tensor, and the running sums over steps per element.
class ErrorKeeper {
 public:
  ErrorKeeper(const ReplayPlan& plan, ReplayResult& result) : plan_{plan}, result_{result} {
    const std::size_t tensors = plan.reader->tensors().size();
    result.tensor_errors.assign(tensors, {});
    result.cumulative_error.assign(tensors, 0.0);
    result.cumulative_energy.assign(tensors, 0.0);
    for (const auto& unit : *plan.units) {
      difference_.emplace_back(unit.elements, 0.0);
      total_.emplace_back(unit.elements, 0.0);
    }
  }

  void observe(std::size_t unit_index, std::span<const double> exact, std::span<const float> got) {
    const Unit& unit = (*plan_.units)[unit_index];
    for (const auto& piece : unit.pieces) {
      result_.tensor_errors[piece.tensor].observe(exact.subspan(piece.first, piece.elements),
                                                  got.subspan(piece.first, piece.elements));
    }
    auto& difference = difference_[unit_index];
    auto& total = total_[unit_index];
    for (std::size_t i = 0; i < unit.elements; ++i) {
      difference[i] += exact[i] - static_cast<double>(got[i]);
      total[i] += exact[i];
    }
  }

  void finish() {
    for (std::size_t u = 0; u < difference_.size(); ++u) {
      for (const auto& piece : (*plan_.units)[u].pieces) {
        for (std::size_t i = piece.first; i < piece.first + piece.elements; ++i) {
          result_.cumulative_error[piece.tensor] += difference_[u][i] * difference_[u][i];
          result_.cumulative_energy[piece.tensor] += total_[u][i] * total_[u][i];
        }
      }
    }
  }

 private:
  const ReplayPlan& plan_;
  ReplayResult& result_;
  std::vector<std::vector<double>> difference_, total_;
};

/// Keeps what a unit's encode and decode took in every sample.
class UnitTimes {
 public:
  /// `row`: encode, communicate, decode, total of each unit.
  void keep(std::span<const double> row) {
    times_.resize(row.size() / 2);
    for (std::size_t unit = 0; unit < row.size() / 4; ++unit) {
      times_[2 * unit].push_back(row[4 * unit]);
      times_[2 * unit + 1].push_back(row[4 * unit + 2]);
    }
  }
  /// Medians, scaled so that they add up to the median of `samples`, the sums over units.
  void finish(std::span<const PhaseTimes> samples, std::vector<UnitProfile>& units) const {
    finish(samples, 0, units, &UnitProfile::encode);
    finish(samples, 2, units, &UnitProfile::decode);
  }

 private:
  void finish(std::span<const PhaseTimes> samples, std::size_t phase, std::vector<UnitProfile>& units,
              double UnitProfile::*time) const {
    if (times_.empty()) return;
    std::vector<double> sums;
    for (const auto& sample : samples) sums.push_back(sample.phase[phase]);
    double medians = 0.0;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      units[unit].*time = summarise(times_[2 * unit + phase / 2]).median;
      medians += units[unit].*time;
    }
    const double scale = medians > 0.0 ? summarise(sums).median / medians : 0.0;
    for (auto& unit : units) unit.*time *= scale;
  }

  std::vector<std::vector<double>> times_;  ///< encode and decode of the first unit, of the second, ...
};

/// FNV-1a over the result's words, as two numbers that a double holds exactly: for comparing bits across ranks.
inline std::array<double, 2> fingerprint(std::span<const float> values) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const float value : values) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    hash = (hash ^ word) * 0x100000001b3ULL;
  }
  return {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xffffffffU)};
}

inline double energy(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace gradtool
