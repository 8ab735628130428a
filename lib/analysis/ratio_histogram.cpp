#include "lib/analysis/ratio_histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "lib/core/error.hpp"

namespace gradtool {

RatioHistogram::RatioHistogram() : bins_(law::kRatioBins) {}

void RatioHistogram::add_bin(std::uint32_t bin) {
  ++bins_[bin];
  ++count_;
}

void RatioHistogram::add_counts(std::span<const std::uint64_t> counts) {
  expects(counts.size() == bins_.size(), "counts of another number of bins");
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    bins_[bin] += counts[bin];
    count_ += counts[bin];
  }
}

void RatioHistogram::merge(const RatioHistogram& other) {
  std::transform(bins_.begin(), bins_.end(), other.bins_.begin(), bins_.begin(), std::plus<>{});
  count_ += other.count_;
}

double RatioHistogram::quantile(double q) const {
  const auto rank = static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen < std::max<std::uint64_t>(rank, 1)) continue;
    const std::uint32_t low = static_cast<std::uint32_t>(bin) << law::kRatioDroppedBits;
    if (low == 0) return 0;
    if (low == law::kRatioInfinity) return std::numeric_limits<double>::infinity();
    return static_cast<double>(std::bit_cast<float>(low | (1U << (law::kRatioDroppedBits - 1))));
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace gradtool
