#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/bench/replay_state.hpp"

namespace gradtool {

/// Whether all ranks end a step with the same bits. Does nothing where the plan does not ask for it.
template <Space S>
class RankAgreement {
 public:
  RankAgreement(const ReplayPlan& plan, Communicator<S>& comm)
      : plan_{plan}, comm_{comm}, prints_(4 * plan.units->size()) {}

  /// What a unit came to on this rank.
  void keep(std::size_t unit, std::span<const float> values) {
    if (!plan_.check) return;
    const auto print = fingerprint(values);
    const std::array<double, 4> both{print[0], -print[0], print[1], -print[1]};
    std::copy(both.begin(), both.end(), prints_.begin() + static_cast<std::ptrdiff_t>(4 * unit));
  }

  /// All units of a step at once: the largest print and the largest negative one are of the same print, or ranks
  /// differ.
  void compare(std::size_t step) {
    if (!plan_.check) return;
    comm_.agree_max(prints_);
    for (std::size_t unit = 0; unit < plan_.units->size(); ++unit) {
      const double* both = &prints_[4 * unit];
      if (both[0] == -both[1] && both[2] == -both[3]) continue;
      const auto& tensor = plan_.reader->tensors()[(*plan_.units)[unit].pieces.front().tensor];
      throw Error{Fault::check, fmt::format("codec {}: ranks ended with different results at step {}, unit of {}",
                                            plan_.codec.name(), plan_.reader->steps()[step].iteration, tensor.name)};
    }
  }

 private:
  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  std::vector<double> prints_;  ///< of a step: for each unit the fingerprint of its result, and its negative
};

}  // namespace gradtool
