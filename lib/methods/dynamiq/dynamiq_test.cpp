// DynamiQ: levels and widths in closed form, roundings without bias, correlated ones that cancel, and its bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "lib/methods/dynamiq/quantiser.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

std::vector<float> normals(std::size_t n, std::uint32_t seed) {
  std::mt19937 engine{seed};
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& value : x) value = normal(engine);
  return x;
}

/// f(epsilon, r) of the paper, and that each level has its negative behind the sign.
template <std::uint32_t Bits>
void expect_levels(double epsilon) {
  const auto levels = format::DynamiqLevels<Bits>::make(false);
  const auto f = [&](double r) { return std::pow(1.0 + 2.0 * epsilon * epsilon, r) - 1.0; };
  for (std::uint32_t r = 0; r <= levels.kTop; ++r) {
    EXPECT_NEAR(levels.magnitude[r], f(r) / f(levels.kTop), 1e-7) << r;
    EXPECT_EQ(levels.value[r + levels.kTop + 1], -levels.magnitude[r]);
  }
  EXPECT_EQ(levels.magnitude[0], 0.0F);
  EXPECT_EQ(levels.magnitude[levels.kTop], 1.0F);
}
TEST(DynamiqLevels, AreThePapers) {
  expect_levels<4>(0.3);
  expect_levels<8>(0.0625);
  const auto uniform = format::DynamiqLevels<4>::make(true);
  for (std::uint32_t r = 0; r <= 7; ++r) EXPECT_FLOAT_EQ(uniform.magnitude[r], static_cast<float>(r) / 7.0F);
}

/// Super-groups of planted energies get the widths that the thresholds' ratio 17/512 and the budget say.
TEST(DynamiqWidths, FollowTheEnergyAndTheBudget) {
  constexpr std::size_t kGroups = 8;
  std::vector<std::uint16_t> squares;
  for (const float energy : {1.0F, 1024.0F, 4.0F, 0.0F, 1.0F, 16.0F, 1024.0F, 0.25F})
    squares.push_back(format::bf16_from_f32(energy));
  const auto widths_at = [&](double bits) {
    HostDynamiq quantiser{256 * kGroups, bits, false, 1, {}};
    quantiser.set_widths({}, {squares.data(), squares.size()});
    std::vector<std::uint32_t> widths;
    double sum = 0.0;
    for (std::size_t j = 0; j < kGroups; ++j) {
      widths.push_back(quantiser.width(j));
      sum += quantiser.width(j) / static_cast<double>(kGroups);
    }
    EXPECT_LE(sum + 0.6875, std::max(bits, 2.6875) + 1e-12) << bits;
    const std::size_t bytes = quantiser.payload_bytes(0);
    EXPECT_EQ(bytes, 2 * kGroups + 16 * kGroups + static_cast<std::size_t>(32.0 * sum * kGroups)) << bits;
    return widths;
  };
  EXPECT_EQ(widths_at(2.6875), (std::vector<std::uint32_t>(kGroups, 2)));
  // Two super-groups at 8 bits take 12 of these; the next one, of 16, is below 17/512 of 1024.
  EXPECT_EQ(widths_at(2.6875 + 12.0 / 8.0), (std::vector<std::uint32_t>{2, 8, 2, 2, 2, 2, 8, 2}));
  // 16 gets 4 bits once the threshold is at most 16 * 512/17, about 482.
  EXPECT_EQ(widths_at(2.6875 + 14.0 / 8.0), (std::vector<std::uint32_t>{2, 8, 2, 2, 2, 4, 8, 2}));
  // Those of 1 come together, or not at all: equal sums get equal widths.
  EXPECT_EQ(widths_at(2.6875 + 16.0 / 8.0), (std::vector<std::uint32_t>{2, 8, 4, 2, 2, 4, 8, 2}));
  EXPECT_EQ(widths_at(8.6875), (std::vector<std::uint32_t>(kGroups, 8)));
}

/// One payload of one rank, decoded.
std::vector<float> round_trip(const std::vector<float>& x, double bits, std::uint32_t seed, bool uniform = false) {
  HostDynamiq quantiser{x.size(), bits, uniform, 1, {}};
  const std::size_t groups = quantiser.super_groups();
  std::vector<std::uint16_t> statistics(2 * groups);
  const HostView<const float> view{x.data(), x.size()};
  quantiser.statistics({}, view, {statistics.data(), groups}, {statistics.data() + groups, groups});
  quantiser.set_widths({}, {statistics.data() + groups, groups});
  std::vector<std::uint32_t> payload(quantiser.payload_bytes(0) / 4);
  const HostView<std::byte> bytes{reinterpret_cast<std::byte*>(payload.data()), 4 * payload.size()};
  quantiser.encode({}, view, 0, {.key = {.seed = seed}}, bytes);
  std::vector<float> y(x.size(), 0.0F);
  quantiser.add({}, bytes, 0, {y.data(), y.size()});
  return y;
}

double nmse(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0.0;
  double energy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    energy += std::pow(static_cast<double>(x[i]), 2);
  }
  return error / energy;
}

/// The mean over draws comes nearer to the input as 1 / draws, at every width.
TEST(DynamiqQuantiser, HasNoBias) {
  const auto x = normals(5 * 256 + 77, 1);
  for (const double bits : {2.7, 4.7, 8.7}) {
    constexpr std::uint32_t kDraws = 400;
    std::vector<double> mean(x.size(), 0.0);
    double single = 0.0;
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
      const auto y = round_trip(x, bits, draw);
      single += nmse(x, y) / kDraws;
      for (std::size_t i = 0; i < x.size(); ++i) mean[i] += static_cast<double>(y[i]) / kDraws;
    }
    const std::vector<float> rounded(mean.begin(), mean.end());
    EXPECT_NEAR(nmse(x, rounded) / (single / kDraws), 1.0, 0.3) << bits;
  }
}

/// The expected error of normal numbers in groups of 16, with all draws independent, computed elsewhere: 0.0131 with 4
/// bits and 3.9e-5 with 8, and what the groups' scales in steps of 1/255 add.
TEST(DynamiqQuantiser, ErrorsAreTheExpectedOnes) {
  const auto x = normals(400'000, 2);
  EXPECT_NEAR(nmse(x, round_trip(x, 4.75, 1)), 0.0131, 0.0006);
  EXPECT_NEAR(nmse(x, round_trip(x, 4.75, 1, true)), 0.0145, 0.0006);
  const double eight = nmse(x, round_trip(x, 8.7, 1));
  EXPECT_GT(eight, 3.8e-5);
  EXPECT_LT(eight, 5.5e-5);
}

TEST(DynamiqQuantiser, KeepsTheLargestOfAGroupOnItsScale) {
  std::vector<float> x(256, 0.0F);
  x[3] = -0.5F;
  x[255] = 2.0F;  // 2 is a bfloat16, so both scales are exact where a group's is all of it
  const auto y = round_trip(x, 8.7, 1);
  EXPECT_EQ(y[255], 2.0F);
  EXPECT_NEAR(y[3], -0.5F, 2.0F / 255.0F);
  for (std::size_t i = 0; i < 256; ++i) {
    if (x[i] == 0.0F) EXPECT_EQ(y[i], 0.0F) << i;
  }
}

TEST(DynamiqQuantiser, NotANumberStaysInItsSuperGroup) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    auto x = normals(3 * 256, 3);
    x[300] = bad;
    const auto y = round_trip(x, 5.0, 1);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i / 256 == 1) << bad << " at " << i;
  }
}

/// The ranks' uniform numbers for an element lie one in each of as many equal parts of [0, 1).
TEST(DynamiqRounding, TakesOnePartForEachRank) {
  std::mt19937 engine{1};
  for (const std::uint32_t ranks : {2U, 3U, 7U, 64U}) {
    for (int i = 0; i < 200; ++i) {
      const auto shared = static_cast<std::uint32_t>(engine());
      std::set<int> parts;
      for (std::uint32_t place = 0; place < ranks; ++place) {
        const float u = format::dynamiq_uniform(shared, static_cast<std::uint32_t>(engine()), place, ranks);
        ASSERT_GE(u, 0.0F);
        ASSERT_LT(u, 1.0F);
        parts.insert(static_cast<int>(u * static_cast<float>(ranks)));
      }
      ASSERT_EQ(parts.size(), ranks);
    }
  }
}

constexpr std::size_t kUnit = 64 * 256;

ModelOutcome run_ring(const std::string& codec, int ranks, int steps = 1) {
  return run_model({.codec = codec,
                    .ranks = ranks,
                    .steps = steps,
                    .layout = Layout::flat(kUnit),
                    .gradient = [](int rank, int step) {
                      auto x = normals(kUnit, static_cast<std::uint32_t>(100 * step + rank));
                      const auto common = normals(kUnit, 77);
                      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.25F * x[i] + common[i];
                      return x;
                    }});
}

TEST(Dynamiq, CorrelatedRoundingTakesErrorsAway) {
  double correlated = 0.0;
  double independent = 0.0;
  for (int step = 0; step < 4; ++step) {
    correlated += model_nmse(run_ring("dynamiq:bits=4.75", 4, 4), step);
    independent += model_nmse(run_ring("dynamiq:bits=4.75,rounding=independent", 4, 4), step);
  }
  EXPECT_LT(correlated, 0.9 * independent);
}

/// The error of the sum over many steps of one gradient, times their number, over that of one step: 1 without bias, and
/// the number of steps where all error is bias.
TEST(Dynamiq, SumsOverStepsHaveLittleBias) {
  constexpr int kSteps = 100;
  for (const char* rounding : {"independent", "correlated"}) {
    const auto out =
        run_model({.codec = std::string{"dynamiq:bits=4.75,rounding="} + rounding,
                   .ranks = 4,
                   .steps = kSteps,
                   .layout = Layout::flat(16 * 256),
                   .gradient = [](int rank, int) { return normals(16 * 256, static_cast<std::uint32_t>(rank)); }});
    double single = 0.0;
    for (int step = 0; step < kSteps; ++step) single += model_nmse(out, step) / kSteps;
    const double ratio = model_nmse(out) * kSteps / single;
    if (std::string_view{rounding} == "independent")
      EXPECT_NEAR(ratio, 1.0, 0.15);
    else
      EXPECT_LT(ratio, 2.0) << "a hundredth of a step's error is bias";
  }
}

TEST(Dynamiq, MoreBitsAndFewerHopsLoseLess) {
  double last = 1.0;
  for (const char* bits : {"2.7", "3.5", "4.75", "6", "8.7"}) {
    const double error = model_nmse(run_ring(std::string{"dynamiq:bits="} + bits, 4));
    EXPECT_LT(error, last) << bits;
    last = error;
  }
  EXPECT_LT(last, 1e-4);
  EXPECT_LT(model_nmse(run_ring("dynamiq", 2)), model_nmse(run_ring("dynamiq", 8)));
}

/// A constant is all mean: nothing is left to quantise.
TEST(Dynamiq, MeansTravelBesideTheRest) {
  const auto out =
      run_model({.codec = "dynamiq:bits=2.7",
                 .ranks = 4,
                 .steps = 1,
                 .layout = Layout::flat(1000),
                 .gradient = [](int rank, int) { return std::vector<float>(1000, 1.0F + static_cast<float>(rank)); }});
  for (const float value : out.results[0][0]) EXPECT_NEAR(value, 2.5F, 2.5F * 0x1p-6F);
}

TEST(Dynamiq, UnitsOfNoneAndOfOneElement) {
  for (const std::size_t n : {0, 1}) {
    for (const int ranks : {1, 3}) {
      const auto out = run_model(
          {.codec = "dynamiq", .ranks = ranks, .steps = 2, .layout = Layout::flat(n), .gradient = [n](int, int) {
             return std::vector<float>(n, 0.5F);
           }});
      for (const auto& rank : out.results) EXPECT_EQ(rank[1], std::vector<float>(n, 0.5F)) << ranks;
    }
  }
}

/// Within the budget b: 2 (p-1)/p times b bits an element, and no more than a hundredth below it where sums differ.
TEST(Dynamiq, BytesKeepTheBudget) {
  for (const int ranks : {2, 4}) {
    for (const double bits : {3.5, 5.0, 8.0}) {
      const auto out = run_model({.codec = "dynamiq:bits=" + std::to_string(bits),
                                  .ranks = ranks,
                                  .steps = 1,
                                  .layout = Layout::flat(kUnit),
                                  .gradient = [](int rank, int) {
                                    auto x = normals(kUnit, static_cast<std::uint32_t>(rank));
                                    for (std::size_t i = 0; i < kUnit; ++i)
                                      x[i] *= std::exp(0.1F * static_cast<float>(i / 256 * 37 % 64));
                                    return x;
                                  }});
      double bytes = 0.0;
      for (const auto& rank : out.wire) bytes += static_cast<double>(rank[0]);
      const double spent = 8.0 * bytes / ranks / static_cast<double>(kUnit) / (2.0 * (ranks - 1) / ranks);
      EXPECT_LE(spent, bits + 1e-9) << ranks;
      EXPECT_GT(spent, bits - 0.13) << ranks;
      EXPECT_EQ(out.messages[0][0].size(), static_cast<std::size_t>(ranks) + 1);
    }
  }
}

}  // namespace
}  // namespace gradtool::test
