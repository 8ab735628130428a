#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

// Every element decodes to the mean of the elements with its code, and codes are those of the published formula,
// computed here in float64: only elements that lie at the border of two buckets may differ.
TEST(Uint8, DecodesToTheMeanOfItsBucketOfValues) {
  const std::size_t n = 200'000;  // more than three chunks
  const auto x = gradient_like(n, 3);
  CodecRun run{"uint8", n, 3};
  const auto payload = run.encode(x, {});
  const auto y = run.decode(payload);
  double sum = 0.0;
  double squares = 0.0;
  for (const double value : x) sum += value;
  const double mean = sum / n;
  for (const double value : x) squares += (value - mean) * (value - mean);
  const double width = 6.0 * std::sqrt(squares / (n - 1)) / 256.0;
  std::map<int, std::pair<double, double>> buckets;  // sum and count by code
  std::vector<int> codes(n);
  for (std::size_t i = 0; i < n; ++i) {
    codes[i] = static_cast<int>(std::to_integer<std::uint8_t>(payload[1024 + i]));
    const double place = (static_cast<double>(x[i]) - mean) / width;
    const double nearest = std::min(std::max(std::nearbyint(place) + 128.0, 0.0), 255.0);
    const double from_border = std::abs(std::abs(place - std::nearbyint(place)) - 0.5);
    if (from_border > 1e-3) ASSERT_EQ(codes[i], nearest) << i << ": " << x[i];
    buckets[codes[i]].first += static_cast<double>(x[i]);
    buckets[codes[i]].second += 1.0;
  }
  EXPECT_GT(buckets.size(), 100U);
  for (std::size_t i = 0; i < n; ++i) {
    const auto& [total, count] = buckets[codes[i]];
    ASSERT_NEAR(y[i], total / count, 1e-6 * std::abs(total / count) + 1e-12) << i;
  }
}

TEST(Uint8, KeepsALonelyOutlierExactly) {
  std::vector<float> x = gradient_like(5000, 7);
  x[4321] = 1000.0F;
  CodecRun run{"uint8", x.size()};
  EXPECT_EQ(run.decode(run.encode(x, {}))[4321], 1000.0F);
}

TEST(Uint8, TellsTheLargestFloatsApart) {
  // Six deviations are no float32 here, but a bucket is.
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 0x1p126F : -0x1p126F;
  CodecRun run{"uint8", x.size()};
  EXPECT_EQ(run.decode(run.encode(x, {})), x);
}

TEST(Uint8, TakesEqualElementsAndOneElement) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{1000}}) {
    CodecRun run{"uint8", n};
    const std::vector<float> x(n, -0.125F);
    EXPECT_EQ(run.decode(run.encode(x, {})), x) << n;
  }
}

// For a normal distribution the error of uniform steps of 6 sigma / 256 is width^2 / 12, that is 4.6e-5 of the
// variance; the tails beyond 3 sigma, 0.27 % of the elements, add about as much again.
TEST(Uint8, ErrsOnNormalValuesAsTheStepsPredict) {
  std::vector<float> x(100'000);
  for (std::size_t i = 0; i < x.size();
       ++i) {  // Box and Muller, from a fixed sequence that fills the unit square evenly
    const double u = std::fmod(0.5 + static_cast<double>(i) * 0.7548776662466927, 1.0);
    const double v = std::fmod(0.5 + static_cast<double>(i) * 0.5698402909980532, 1.0);
    x[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u + 1e-9)) * std::cos(6.283185307179586 * v));
  }
  CodecRun run{"uint8", x.size()};
  const double error = nmse(x, run.decode(run.encode(x, {})));
  EXPECT_GT(error, 4.5e-5);
  EXPECT_LT(error, 3e-4);
}

}  // namespace
}  // namespace gradtool::test
