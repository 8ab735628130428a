#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/bench/fingerprint.hpp"
#include "lib/bench/replay.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// The counts of every rank: of every unit, added over steps, and of every step, added over units.
class UnitCounts {
 public:
  UnitCounts(std::size_t units, std::size_t steps, int rank, int ranks)
      : units_{units},
        rank_{static_cast<std::size_t>(rank)},
        ranks_{static_cast<std::size_t>(ranks)},
        counts_((units + steps) * ranks_ * kKinds, 0.0) {}

  void add(std::size_t step, std::size_t unit, std::uint64_t payload_bytes, std::uint64_t values_sent) {
    for (const std::size_t place : {unit, units_ + step}) {
      double* const mine = &counts_[(place * ranks_ + rank_) * kKinds];
      mine[0] += static_cast<double>(payload_bytes);
      mine[1] += static_cast<double>(values_sent);
    }
  }

  /// The counts of all ranks, after all of them have called this. Each leaves the places of the others at 0.
  template <Space S>
  void share(Communicator<S>& comm) {
    comm.agree_max(counts_);
  }

  /// Fills in the bytes of `result` from the counts, once they are shared.
  void finish(std::size_t steps, ReplayResult& result) const {
    const std::size_t row = ranks_ * kKinds;
    std::vector<double> all(row, 0.0);
    for (std::size_t unit = 0; unit < result.units.size(); ++unit) {
      const auto counts = std::span{counts_}.subspan(unit * row, row);
      std::transform(counts.begin(), counts.end(), all.begin(), all.begin(), std::plus<>{});
      over_ranks(counts, static_cast<double>(steps), result.units[unit].bytes);
    }
    over_ranks(all, static_cast<double>(steps), result.bytes);
    for (std::size_t step = 0; step < steps; ++step)
      over_ranks(std::span{counts_}.subspan((units_ + step) * row, row), 1.0, result.step_errors[step].bytes);
  }

 private:
  static constexpr std::size_t kKinds = 2;

  static void over_ranks(std::span<const double> counts, double steps, StepBytes& bytes) {
    bytes.fewest_values_sent = counts[1] / steps;
    for (std::size_t i = 0; i < counts.size(); i += kKinds) {
      bytes.payload += counts[i];
      bytes.payload_max = std::max(bytes.payload_max, counts[i] / steps);
      bytes.values_sent += counts[i + 1];
      bytes.fewest_values_sent = std::min(bytes.fewest_values_sent, counts[i + 1] / steps);
    }
    const std::size_t number_of_ranks = counts.size() / kKinds;
    const auto ranks = static_cast<double>(number_of_ranks);
    bytes.payload /= ranks * steps;
    bytes.values_sent /= ranks * steps;
  }

  std::size_t units_, rank_, ranks_;
  std::vector<double> counts_;  ///< of each unit, then of each step, and rank: bytes of the payload, values sent
};

/// Keeps what a unit's encode and decode took in every sample.
class UnitTimes {
 public:
  /// The times of each unit in a row: encode, communicate, decode, total, and what of decoding is between machines.
  static constexpr std::size_t kKinds = 5;

  /// `row`: of each unit from `first` on.
  void keep(std::size_t first, std::span<const double> row) {
    const std::size_t units = row.size() / kKinds;
    times_.resize(std::max(times_.size(), kKept * (first + units)));
    for (std::size_t unit = 0; unit < units; ++unit) {
      auto* const kept = &times_[kKept * (first + unit)];
      kept[0].push_back(row[kKinds * unit]);
      kept[1].push_back(row[kKinds * unit + 2]);
      kept[2].push_back(row[kKinds * unit + 4]);
    }
  }
  /// Medians over the samples.
  void finish(std::vector<UnitProfile>& units) const {
    if (times_.empty()) return;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      units[unit].encode = summarise(times_[kKept * unit]).median;
      units[unit].decode = summarise(times_[kKept * unit + 1]).median;
      units[unit].decode_across = summarise(times_[kKept * unit + 2]).median;
    }
  }

 private:
  static constexpr std::size_t kKept = 3;
  std::vector<std::vector<double>> times_;  ///< what is kept of the first unit, then of the second, and so on
};

/// Whether all ranks end a step with the same bits, or would: from the same payloads all decode the same. Does nothing
/// where --check is off, and for a collective that brings each rank something else.
template <Space S>
class RankAgreement {
 public:
  RankAgreement(const ReplayPlan& plan, UnitRange range, Communicator<S>& comm)
      : plan_{plan},
        range_{range},
        comm_{comm},
        compares_{plan.options.check && same_everywhere(plan.op())},
        prints_(4 * range.size()) {}

  /// Remembers what a unit of the range came to on this rank.
  void keep(std::size_t unit, std::span<const float> values) {
    if (compares_) put(unit, fingerprint(values));
  }
  /// Remembers the payloads that the unit's result would be decoded from. `look` brings a payload to the host.
  template <class Look>
  void keep(std::size_t unit, std::span<const View<const std::byte, S>> payloads, const Look& look) {
    if (!compares_) return;
    payload_prints_.clear();
    for (const auto& payload : payloads) payload_prints_.push_back(fingerprint(look(payload).span()));
    put(unit, fingerprint(std::as_bytes(std::span{payload_prints_})));
  }

  /// Compares all units of a step at once. The ranks agree where the largest fingerprint over ranks is also the
  /// smallest, which is the largest negative one. Throws Fault::check where they do not.
  void compare(std::size_t step) {
    if (!compares_) return;
    comm_.agree_max(prints_);
    for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
      const double* both = &prints_[4 * (unit - range_.first)];
      if (both[0] == -both[1] && both[2] == -both[3]) continue;
      const auto& tensor = plan_.reader.tensors()[plan_.units[unit].pieces.front().tensor];
      throw Error{Fault::check, fmt::format("codec {}: ranks ended with different results at step {}, unit of {}",
                                            plan_.codec.name(), plan_.reader.steps()[step].iteration, tensor.name)};
    }
  }

 private:
  void put(std::size_t unit, const std::array<double, 2>& print) {
    const std::array<double, 4> both{print[0], -print[0], print[1], -print[1]};
    std::copy(both.begin(), both.end(), prints_.begin() + static_cast<std::ptrdiff_t>(4 * (unit - range_.first)));
  }

  const ReplayPlan& plan_;
  UnitRange range_;
  Communicator<S>& comm_;
  bool compares_;
  std::vector<std::array<double, 2>> payload_prints_;  ///< of a unit
  std::vector<double> prints_;  ///< of a step: for each unit both halves of the fingerprint, each with its negative
};

}  // namespace gradtool
