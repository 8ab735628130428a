#include "lib/analysis/distribution.hpp"

#include <gtest/gtest.h>

#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>

#include "feed.hpp"

namespace gradtool::test {
namespace {

/// Values at evenly spaced shares of a distribution, in ascending order.
template <class Quantile>
std::vector<float> sample(std::size_t n, Quantile quantile) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = static_cast<float>(quantile((static_cast<double>(i) + 0.5) / static_cast<double>(n)));
  return values;
}

double laplace(double share) {
  return share < 0.5 ? std::log(2 * share) : -std::log(2 * (1 - share));
}

constexpr std::size_t kMany = 200'000;

TEST(Distribution, FitsFindWhatTheyAreFittedTo) {
  const boost::math::normal gauss;
  const auto normal_values = sample(kMany, [&](double p) { return 3 + 2 * quantile(gauss, p); });
  const auto fitted = fit_values(Fit::normal, normal_values);
  EXPECT_NEAR(fitted.location, 3, 1e-6);
  EXPECT_NEAR(fitted.scale, 2, 1e-3);
  EXPECT_LT(fitted.distance, 1e-4);
  EXPECT_NEAR(fit_values(Fit::generalised_normal, normal_values).shape, 2, 0.01);
  EXPECT_GT(fit_values(Fit::student_t, normal_values).shape, 100);

  const auto laplace_values = sample(kMany, [](double p) { return 0.5 * laplace(p); });
  EXPECT_NEAR(fit_values(Fit::laplace, laplace_values).scale, 0.5, 1e-3);
  EXPECT_LT(fit_values(Fit::laplace, laplace_values).distance, 1e-4);
  EXPECT_GT(fit_values(Fit::normal, laplace_values).distance, 0.04);
  const auto general = fit_values(Fit::generalised_normal, laplace_values);
  EXPECT_NEAR(general.shape, 1, 0.01);
  EXPECT_LT(general.distance, 1e-3);

  for (const double nu : {1.0, 2.5, 8.0}) {  // of the first neither mean nor variance exists
    const boost::math::students_t student{nu};
    const auto values = sample(kMany, [&](double p) { return 0.1 * quantile(student, p); });
    const auto found = fit_values(Fit::student_t, values);
    EXPECT_NEAR(found.shape, nu, 0.02 * nu);
    EXPECT_NEAR(found.scale, 0.1, 0.002);
    EXPECT_LT(found.distance, 2e-3) << nu;
  }
  for (const double shape : {0.5, 4.0}) {
    const auto values = sample(kMany, [&](double p) {
      const double tail = 1 - std::fabs(2 * p - 1);
      return std::copysign(std::pow(boost::math::gamma_q_inv(1 / shape, tail), 1 / shape), p - 0.5);
    });
    EXPECT_NEAR(fit_values(Fit::generalised_normal, values).shape, shape, 0.02 * shape);
    EXPECT_LT(fit_values(Fit::generalised_normal, values).distance, 2e-3);
  }
}

TEST(Distribution, CumulativeSharesOfExtremes) {
  for (const Fit which : {Fit::normal, Fit::laplace, Fit::generalised_normal, Fit::student_t}) {
    const Fitted fitted{.location = 1, .scale = 2, .shape = 3};
    EXPECT_NEAR(fitted.cumulative(which, 1), 0.5, 1e-15);
    EXPECT_NEAR(fitted.cumulative(which, -1e6), 0, 1e-12);
    EXPECT_NEAR(fitted.cumulative(which, 1e6), 1, 1e-12);
    EXPECT_NEAR(fitted.cumulative(which, 2) + fitted.cumulative(which, 0), 1, 1e-15);
  }
}

TEST(Distribution, HillOfAPowerLaw) {
  for (const double alpha : {1.0, 2.0, 5.0}) {
    const auto values = sample(kMany, [&](double p) { return std::pow(1 - p, -1 / alpha); });
    EXPECT_NEAR(1 / hill(values, kMany / 100), alpha, 0.02 * alpha);
  }
}

TEST(Distribution, TablesOfKnownCaptures) {
  const std::size_t n = 1 << 15;
  Capture capture{2, 2};
  // Powers of two: their mantissas are 0, their exponents evenly spread over 16 values.
  capture.add(vector_of(n, "powers"),
              [](auto, auto, std::size_t i) { return std::ldexp(i % 2 ? 1 : -1, -static_cast<int>(i / 2 % 16)); });
  capture.add(vector_of(n, "zeros"), [](auto, auto, auto) { return 0.0; });
  capture.add(vector_of(n, "tiny"), [](auto, auto, std::size_t i) { return i == 0 ? 1.0 : 1e-12; });
  const auto tables = run(*make_distribution(capture.scope), capture);
  const Table &distribution = tables[0], &fits = tables[1], &formats = tables[2];
  EXPECT_NEAR(number(distribution, 0, "exponent_entropy"), 4, 1e-9);
  // 16 exponents and a sign: 5 bits in the two upper bytes, of which the lowest bit of the exponent is in the second.
  EXPECT_NEAR(number(distribution, 0, "byte_entropy"), (4 + 1) / 4.0, 1e-9);
  EXPECT_NEAR(number(distribution, 0, "lossless_ratio_limit"), 32.0 / 5, 1e-9);
  EXPECT_NEAR(number(distribution, 0, "exponent_coding_limit"), 32.0 / 28, 1e-9);
  EXPECT_TRUE(is_empty(distribution, 1, "magnitude_q50"));
  EXPECT_TRUE(is_empty(distribution, 1, "best_fit"));
  const auto format_row = [&](const std::string& tensor, const std::string& format) {
    for (std::size_t r = 0; r < formats.rows().size(); ++r) {
      if (to_text(formats.at(r, "tensor")) == tensor && to_text(formats.at(r, "format")) == format) return r;
    }
    throw std::runtime_error("no such row");
  };
  for (const char* exact : {"fp16", "bf16", "fp8 e5m2", "fp8 e5m2, scaled"}) {
    EXPECT_EQ(number(formats, format_row("powers", exact), "nmse"), 0) << exact;
    EXPECT_EQ(number(formats, format_row("powers", exact), "vanish_share"), 0) << exact;
  }
  // The smallest subnormal number of E4M3 is 2^-9; 2^-10 is a tie, which goes to 0; six of sixteen exponents vanish.
  EXPECT_NEAR(number(formats, format_row("powers", "fp8 e4m3"), "vanish_share"), 6.0 / 16, 1e-12);
  for (const char* gone : {"fp16", "fp8 e4m3, scaled", "fp8 e5m2, scaled", "nvfp4"})
    EXPECT_NEAR(number(formats, format_row("tiny", gone), "vanish_share"), 1 - 1.0 / static_cast<double>(n), 1e-12)
        << gone;
  EXPECT_EQ(number(formats, format_row("tiny", "bf16"), "vanish_share"), 0);
  EXPECT_EQ(to_text(formats.at(format_row("zeros", "fp16"), "nmse")), "");
  EXPECT_EQ(fits.rows().size(), 3 * kFitNames.size()) << "zeros have no fit; all has";
}

}  // namespace
}  // namespace gradtool::test
