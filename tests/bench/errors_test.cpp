#include "lib/bench/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace gradtool::test {
namespace {

ErrorSums sums(const std::vector<double>& x, const std::vector<float>& y) {
  ErrorSums s;
  s.observe(x, y);
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
