#include "lib/analysis/ratio_histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace gradtool {
namespace {

// A non-negative float's bit pattern grows with its value: its exponent and leading mantissa bits number the bins.
constexpr int kDroppedBits = 23 - 12;
constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kSmallestNormal = 0x00800000U;

}  // namespace

RatioHistogram::RatioHistogram() : bins_((kInfinity >> kDroppedBits) + 1) {}

void RatioHistogram::add(double ratio) {
  using Float = std::numeric_limits<float>;
  const float rounded = ratio > static_cast<double>(Float::max()) ? Float::infinity() : static_cast<float>(ratio);
  const auto bits = std::bit_cast<std::uint32_t>(rounded);
  ++bins_[bits < kSmallestNormal ? 0 : bits >> kDroppedBits];
  ++count_;
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
    const std::uint32_t low = static_cast<std::uint32_t>(bin) << kDroppedBits;
    if (low == 0) return 0;
    if (low == kInfinity) return std::numeric_limits<double>::infinity();
    return static_cast<double>(std::bit_cast<float>(low | (1U << (kDroppedBits - 1))));
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace gradtool
