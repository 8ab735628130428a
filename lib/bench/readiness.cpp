#include "lib/bench/readiness.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/median.hpp"

namespace gradtool {
std::optional<BackwardTiming> captured_timing(const Readiness& readiness) {
  const auto share = median_of_known(readiness.backward_share);
  if (!share || *share <= 0.0) return std::nullopt;
  const std::size_t workers = readiness.backward_share.size();
  const std::size_t tensors = readiness.ready.size() / workers;
  BackwardTiming timing{.ready = std::vector<double>(tensors, 1.0), .share = *share};
  bool known = false;
  for (std::size_t t = 0; t < tensors; ++t) {
    std::vector<double> of_workers(workers);
    for (std::size_t w = 0; w < workers; ++w) of_workers[w] = readiness.ready[w * tensors + t];
    const auto ready = median_of_known(std::move(of_workers));
    known = known || ready.has_value();
    timing.ready[t] = ready.value_or(1.0);
  }
  return known ? std::optional{std::move(timing)} : std::nullopt;
}

std::vector<double> ready_shares(const std::vector<Unit>& units, const BackwardTiming& timing) {
  std::vector<double> shares;
  shares.reserve(units.size());
  for (const Unit& unit : units) {
    double last = 0.0;
    for (const auto& piece : unit.pieces) last = std::max(last, timing.ready[piece.tensor]);
    shares.push_back(last);
  }
  return shares;
}

}  // namespace gradtool
