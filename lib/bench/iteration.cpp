#include "lib/bench/iteration.hpp"

#include <algorithm>
#include <numeric>

namespace gradtool {

double iteration_seconds(std::span<const UnitCost> units, double compute, Overlap overlap) {
  if (overlap == Overlap::none) {
    return std::accumulate(units.begin(), units.end(), compute, [](double sum, const UnitCost& unit) {
      return sum + unit.encode + unit.communicate + unit.decode;
    });
  }
  std::vector<UnitCost> order{units.begin(), units.end()};
  std::stable_sort(order.begin(), order.end(), [](const UnitCost& a, const UnitCost& b) { return a.ready < b.ready; });
  const double backward = kBackwardShare * compute;
  double encoding = 0.0;  // so far
  double link = 0.0;      // when it is free
  std::vector<double> arrival;
  for (const auto& unit : order) {
    encoding += unit.encode;
    link = std::max(link, compute - backward + unit.ready * backward + encoding) + unit.communicate;
    arrival.push_back(link);
  }
  double processor = compute + encoding;
  for (std::size_t u = 0; u < order.size(); ++u) processor = std::max(processor, arrival[u]) + order[u].decode;
  return processor;
}

std::vector<double> ready_shares(const std::vector<Unit>& units, const std::vector<TensorInfo>& tensors) {
  std::vector<double> from(tensors.size() + 1, 0.0);  // elements of a tensor and all behind it
  for (std::size_t t = tensors.size(); t-- > 0;) from[t] = from[t + 1] + static_cast<double>(tensors[t].elements);
  std::vector<double> shares;
  for (const auto& unit : units) {
    std::size_t first = tensors.size();
    for (const auto& piece : unit.pieces) first = std::min(first, piece.tensor);
    shares.push_back(from.front() > 0.0 ? from[first] / from.front() : 1.0);
  }
  return shares;
}

}  // namespace gradtool
