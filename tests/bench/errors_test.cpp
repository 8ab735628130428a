#include "lib/bench/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lib/bench/synthetic.hpp"

namespace gradtool::test {
namespace {

ErrorSums sums(const std::vector<double>& x, const std::vector<float>& y) {
  ErrorSums s;
  s.observe(x, std::span{y}.first(x.size()));
  return s;
}

TEST(ErrorSums, ByHand) {
  const auto s = sums({3.0, -4.0, 0.0, 1.0}, {3.0F, 4.0F, 0.0F, 0.0F});
  EXPECT_DOUBLE_EQ(s.nmse(), (64.0 + 1.0) / 26.0);
  EXPECT_DOUBLE_EQ(s.snr_db(), -10.0 * std::log10(65.0 / 26.0));
  EXPECT_DOUBLE_EQ(*s.cosine(), (9.0 - 16.0) / (std::sqrt(26.0) * 5.0));
  EXPECT_DOUBLE_EQ(*s.relative_bias(), -7.0 / 26.0 - 1.0);
  EXPECT_DOUBLE_EQ(s.largest_error, 8.0);
  EXPECT_DOUBLE_EQ(*s.sign_agreement(), 0.5);  // of the two that y did not zero
  EXPECT_DOUBLE_EQ(s.zeroed_fraction(), 0.25);
  EXPECT_DOUBLE_EQ(s.lost_signs(), 0.5);                                                // one turned, one sent as 0
  EXPECT_DOUBLE_EQ(sums({0.0, 0.0, 2.0}, {0.0F, 1.0F, 3.0F}).lost_signs(), 1.0 / 3.0);  // a value in the place of 0
  EXPECT_DOUBLE_EQ(*s.nrmse(), std::sqrt(65.0 / 4.0) / 7.0);
}

TEST(ErrorSums, ZeroGradients) {
  EXPECT_EQ(sums({0.0, 0.0}, {0.0F, 0.0F}).nmse(), 0.0);
  EXPECT_TRUE(std::isinf(sums({0.0}, {1.0F}).nmse()));
  EXPECT_FALSE(sums({0.0}, {1.0F}).cosine().has_value());
  EXPECT_FALSE(sums({1.0}, {0.0F}).cosine().has_value());
  EXPECT_FALSE(sums({1.0}, {0.0F}).sign_agreement().has_value());
  EXPECT_EQ(sums({1.0, 2.0}, {0.0F, 0.0F}).nmse(), 1.0);
}

TEST(ErrorSums, ThatAreNoNumberHaveNoLargestError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ErrorSums bad = sums({1.0, 1.0, 1.0}, {0.5F, nan, 0.0F}), good = sums({1.0}, {0.0F});
  EXPECT_TRUE(std::isnan(bad.largest_error));
  good.merge(bad);
  EXPECT_TRUE(std::isnan(good.largest_error));
  bad.merge(sums({1.0}, {0.0F}));
  EXPECT_TRUE(std::isnan(bad.largest_error));
}

TEST(ErrorSums, PartsInOrderAddUpAsTheWholeDoes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> x{-0.1, 0.7, 0.0, -1.0 / 3.0, 1e-9, nan, -2.5};
  const std::vector<float> y{0.1F, 0.7F, -0.0F, -0.3F, 0.0F, 1.0F, std::numeric_limits<float>::quiet_NaN()};
  for (std::size_t cut = 1; cut < x.size(); ++cut) {
    const std::size_t n = cut < 5 ? 5 : x.size();  // also without the NaNs, which would hide all sums
    auto parts = sums({x.begin(), x.begin() + static_cast<std::ptrdiff_t>(cut)}, y);
    parts.observe(std::span{x}.subspan(cut, n - cut), std::span{y}.subspan(cut, n - cut));
    auto whole = sums({x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n)}, y);
    EXPECT_EQ(parts.elements, whole.elements);
    EXPECT_EQ(parts.kept, whole.kept);
    EXPECT_EQ(parts.zeroed, whole.zeroed);
    EXPECT_EQ(parts.sign_agreements, whole.sign_agreements);
    if (n == x.size()) continue;
    EXPECT_EQ(parts.nmse(), whole.nmse());
    EXPECT_EQ(parts.cosine(), whole.cosine());
    EXPECT_EQ(parts.nrmse(), whole.nrmse());
  }
  const auto all = sums(x, y);
  EXPECT_EQ(all.kept, 5U) << "of them a NaN, which has no sign";
  EXPECT_EQ(all.zeroed, 1U);
  EXPECT_EQ(all.sign_agreements, 2U);
}

TEST(ErrorSums, AreThoseOfElementsOneByOne) {
  std::vector<double> x(1003);
  std::vector<float> y(x.size());
  ErrorSums one_by_one;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 7 == 0 ? 0.0 : std::sin(static_cast<double>(i));
    y[i] = i % 3 == 0 ? 0.0F : static_cast<float>(std::sin(1.1 * static_cast<double>(i)));
    one_by_one.observe(std::span{x}.subspan(i, 1), std::span{y}.subspan(i, 1));
  }
  const auto all = sums(x, y);
  EXPECT_NEAR(all.xx, one_by_one.xx, 1e-13 * one_by_one.xx);  // four lanes round otherwise
  EXPECT_NEAR(all.yy, one_by_one.yy, 1e-13 * one_by_one.xx);
  EXPECT_NEAR(all.xy, one_by_one.xy, 1e-13 * one_by_one.xx);
  EXPECT_NEAR(all.error, one_by_one.error, 1e-13 * one_by_one.xx);
  EXPECT_EQ(all.largest_error, one_by_one.largest_error);
  EXPECT_EQ(all.x_min, one_by_one.x_min);
  EXPECT_EQ(all.x_max, one_by_one.x_max);
  EXPECT_EQ(all.sign_agreements, one_by_one.sign_agreements);
  EXPECT_EQ(all.kept, one_by_one.kept);
  EXPECT_EQ(all.zeroed, one_by_one.zeroed);
}

TEST(CodecQuality, TriesSeedsOnTheFirstUnitsOfALargeGradient) {
  constexpr std::size_t kElements = kSeedElements / 2 + 1;  // two units of it are too many
  const auto sources = SyntheticGradients::make({4 * kElements}, 1);
  const GradientSource& source = *sources.front();
  const auto unit = make_units(source.tensors(), {0}, Granularity::parse("model")).front();
  const auto spec = parse_codec("natural");
  const auto one = measure_quality(source, {unit}, spec, 1);
  const auto two = measure_quality(source, {unit, unit}, spec, 1);
  EXPECT_EQ(one.seed_units, 1U);
  EXPECT_EQ(two.seed_units, 1U);
  EXPECT_EQ(two.bias_nmse, one.bias_nmse);
  EXPECT_EQ(two.variance_nmse, one.variance_nmse);
  EXPECT_NE(two.nmse, one.nmse) << "this is of both, whose draws differ";
  EXPECT_EQ(measure_quality(source, {unit}, parse_codec("bf16"), 1).seed_units, 0U);
}

TEST(CodecQuality, TriesSeedsOnAllUnitsOfASmallGradient) {
  const auto sources = SyntheticGradients::make({4000}, 1);
  const GradientSource& source = *sources.front();
  const auto unit = make_units(source.tensors(), {0}, Granularity::parse("model")).front();
  EXPECT_EQ(measure_quality(source, {unit, unit, unit}, parse_codec("natural"), 1).seed_units, 3U);
}

TEST(ErrorSums, MergedPartsAreTheWhole) {
  const std::vector<double> x{1.0, -2.0, 3.0, 0.5, -0.25};
  const std::vector<float> y{1.5F, -2.0F, 0.0F, 0.5F, 0.25F};
  auto whole = sums(x, y);
  auto merged = sums({x[0], x[1]}, {y[0], y[1]});
  merged.merge(sums({x[2], x[3], x[4]}, {y[2], y[3], y[4]}));
  merged.merge({});
  EXPECT_DOUBLE_EQ(merged.nmse(), whole.nmse());
  EXPECT_DOUBLE_EQ(*merged.nrmse(), *whole.nrmse());
  EXPECT_DOUBLE_EQ(*merged.sign_agreement(), *whole.sign_agreement());
  EXPECT_EQ(merged.elements, 5U);
}

}  // namespace
}  // namespace gradtool::test
