#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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

/// A hash of the result's bits, as two numbers that a double holds exactly: for comparing ranks of one run with each
/// other. Four lanes of 64-bit words, which do not wait for each other. Every round is a bijection of the lane, so one
/// changed word is always seen; the rotation keeps changed signs from cancelling each other.
inline std::array<double, 2> fingerprint(std::span<const float> values) {
  constexpr std::size_t kLanes = 4;
  const auto round = [](std::uint64_t hash, std::uint64_t word) {
    return std::rotl(hash ^ word, 33) * 0x9e3779b97f4a7c15ULL;
  };
  std::array<std::uint64_t, kLanes> lanes{1, 2, 3, 4};
  const auto bytes = std::as_bytes(values);
  constexpr std::size_t kBlock = sizeof lanes;
  std::size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + at, kBlock);
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = round(lanes[lane], words[lane]);
  }
  std::uint64_t hash = values.size();
  for (; at < bytes.size(); at += sizeof(float)) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    hash = round(hash, word);
  }
  for (const std::uint64_t lane : lanes) hash = round(round(round(hash, lane), lane >> 32), lane >> 16);
  return {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xffffffffU)};
}

inline double energy(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace gradtool
