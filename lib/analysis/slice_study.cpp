#include "lib/analysis/slice_study.hpp"

namespace gradtool {

void SliceTotals::add(std::uint64_t slice_elements, const PrincipalComponents& found, const Holdout& left) {
  ++slices;
  elements += slice_elements;
  limit += found.eigenvalues.size();
  holdout.residual += left.residual;
  holdout.energy += left.energy;
  if (!(found.total > 0)) return;
  ++varying;
  components += found.components_for(kGradiveqShare);
  effective_rank += found.effective_rank();
  variance += found.total;
  for (std::size_t i = 0; i < kExplained.size(); ++i) {
    explained[i] += found.explained(kExplained[i]) * found.total;
  }
}

SliceTotals& SliceTotals::operator+=(const SliceTotals& other) {
  slices += other.slices;
  elements += other.elements;
  components += other.components;
  limit += other.limit;
  effective_rank += other.effective_rank;
  varying += other.varying;
  variance += other.variance;
  for (std::size_t i = 0; i < explained.size(); ++i) explained[i] += other.explained[i];
  holdout.residual += other.holdout.residual;
  holdout.energy += other.holdout.energy;
  return *this;
}

}  // namespace gradtool
