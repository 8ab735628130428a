#include "lib/analysis/accumulators.hpp"

namespace gradtool {

void SpectrumAccumulator::merge(const Accumulator& other) {
  const auto& theirs = dynamic_cast<const SpectrumAccumulator&>(other);
  non_finite_ += theirs.non_finite_;
  sums_ += theirs.sums_;
}

void CorrelationAccumulator::merge(const Accumulator& other) {
  const auto& theirs = dynamic_cast<const CorrelationAccumulator&>(other);
  non_finite_ += theirs.non_finite_;
  if (non_finite_ > 0) return;
  pearson_.merge(theirs.pearson_);
  grams_.merge(theirs.grams_);
}

VarianceSource source_of(const Scope& scope, const TensorInfo& tensor) {
  if (tensor.has_second_moment && scope.micro_batches >= 2) return VarianceSource::second_moment;
  return scope.workers >= 2 ? VarianceSource::workers : VarianceSource::none;
}

std::string_view name_of(VarianceSource source) {
  return source == VarianceSource::second_moment ? "second_moment"
         : source == VarianceSource::workers     ? "workers"
                                                 : "none";
}

void VarianceAccumulator::merge(const Accumulator& other) {
  const auto& theirs = dynamic_cast<const VarianceAccumulator&>(other);
  non_finite_ += theirs.non_finite_;
  moments_.merge(theirs.moments_);
  ratio_.merge(theirs.ratio_);
}

}  // namespace gradtool
