#pragma once

#include <string_view>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/moments.hpp"
#include "lib/analysis/pearson.hpp"
#include "lib/analysis/signal_ratio.hpp"
#include "lib/analysis/slice_grams.hpp"
#include "lib/analysis/spectrum_sums.hpp"

/// What each analysis gathers, wherever it is summed up: on the CPU by the accumulators beside the analyses, on a GPU
/// by those in lib/analysis/cuda.
namespace gradtool {

class SpectrumAccumulator : public Accumulator {
 public:
  void merge(const Accumulator& other) override;
  [[nodiscard]] const SpectrumSums& sums() const { return sums_; }

 protected:
  SpectrumSums sums_;
};

class CorrelationAccumulator : public Accumulator {
 public:
  void merge(const Accumulator& other) override;
  [[nodiscard]] const PearsonSums& pearson() const { return pearson_; }
  [[nodiscard]] const SliceGrams& grams() const { return grams_; }

 protected:
  CorrelationAccumulator(PearsonSums pearson, SliceGrams grams)
      : pearson_{std::move(pearson)}, grams_{std::move(grams)} {}
  PearsonSums pearson_;
  SliceGrams grams_;
};

/// Where the samples behind a mean and a variance come from.
enum class VarianceSource : std::uint8_t { second_moment, workers, none };
[[nodiscard]] VarianceSource source_of(const Scope& scope, const TensorInfo& tensor);
[[nodiscard]] std::string_view name_of(VarianceSource source);

class VarianceAccumulator : public Accumulator {
 public:
  void merge(const Accumulator& other) override;
  [[nodiscard]] VarianceSource source() const { return source_; }
  [[nodiscard]] const Moments& moments() const { return moments_; }
  [[nodiscard]] const SignalRatio& ratio() const { return ratio_; }

 protected:
  explicit VarianceAccumulator(VarianceSource source) : source_{source} {}
  VarianceSource source_;
  Moments moments_;
  SignalRatio ratio_;
};

}  // namespace gradtool
