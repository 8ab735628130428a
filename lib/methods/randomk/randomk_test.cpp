// Random-k: subsets are uniform, ranks agree on them, and the scaled form is unbiased.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "lib/core/error.hpp"
#include "lib/methods/randomk/format.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

std::vector<std::uint32_t> subset(std::uint64_t seed, std::size_t n, std::size_t k) {
  std::vector<std::uint32_t> marks((n + 31) / 32, 0xA5A5A5A5U);
  host::mark_random_subset({.seed = seed, .rank = 0xffffffffU}, n, k, marks.data());
  return marks;
}
bool marked(const std::vector<std::uint32_t>& marks, std::size_t i) {
  return (marks[i / 32] >> i % 32 & 1U) != 0;
}

TEST(RandomSubset, HasItsSizeAndNothingBehindTheEnd) {
  for (const std::size_t n : {1U, 2U, 31U, 32U, 33U, 1000U, 5001U}) {
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 3, n / 2, n / 2 + 1, n - 1, n}) {
      const auto marks = subset(n + k, n, k);
      std::size_t count = 0;
      for (const auto word : marks) count += static_cast<std::size_t>(std::popcount(word));
      EXPECT_EQ(count, k) << "of " << n;
      if (n % 32 != 0) EXPECT_EQ(marks.back() >> n % 32, 0U) << k << " of " << n;
    }
  }
}

/// Every subset as often as every other: Pearson's chi^2, mean `cells - 1`, variance twice that.
TEST(RandomSubset, EverySubsetIsEquallyLikely) {
  for (const auto& [n, k, cells] : {std::tuple{7U, 3U, 35U}, {7U, 4U, 35U}, {6U, 1U, 6U}, {9U, 8U, 9U}}) {
    std::map<std::uint32_t, double> counts;
    const double each = 2000.0;
    for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(each) * cells; ++seed)
      ++counts[subset(seed, n, k)[0]];
    ASSERT_EQ(counts.size(), cells);
    double chi = 0.0;
    for (const auto& [marks, count] : counts) chi += (count - each) * (count - each) / each;
    const double freedom = cells - 1.0;
    EXPECT_LT(std::abs(chi - freedom), 4.5 * std::sqrt(2.0 * freedom)) << k << " of " << n;
  }
}

/// In a long vector: elements alone, and pairs at short and long distances.
TEST(RandomSubset, ElementsAndPairsAreEquallyLikely) {
  constexpr std::size_t kElements = 2000;
  for (const std::size_t k : {100U, 1700U}) {
    constexpr int kSubsets = 3000;
    std::vector<double> hits(kElements, 0.0);
    std::map<std::size_t, double> together{{1, 0.0}, {2, 0.0}, {32, 0.0}, {999, 0.0}};
    for (int seed = 0; seed < kSubsets; ++seed) {
      const auto marks = subset(static_cast<std::uint64_t>(seed) + 10'000, kElements, k);
      for (std::size_t i = 0; i < kElements; ++i) {
        if (!marked(marks, i)) continue;
        ++hits[i];
        for (auto& [lag, count] : together) count += marked(marks, (i + lag) % kElements) ? 1.0 : 0.0;
      }
    }
    const double share = static_cast<double>(k) / kElements;
    double chi = 0.0;
    for (const double count : hits)
      chi += (count - kSubsets * share) * (count - kSubsets * share) / (kSubsets * share * (1.0 - share));
    EXPECT_NEAR(chi, kElements, 5.0 * std::sqrt(2.0 * kElements)) << k;
    const double pair = share * (static_cast<double>(k) - 1.0) / (kElements - 1.0);
    const double expected = static_cast<double>(kSubsets) * kElements * pair;
    for (const auto& [lag, count] : together)
      EXPECT_NEAR(count, expected, 6.0 * std::sqrt(expected * (1.0 - pair))) << k << " lag " << lag;
  }
}

std::vector<float> numbers(const std::vector<std::byte>& payload) {
  std::vector<float> x(payload.size() / 4);
  std::memcpy(x.data(), payload.data(), payload.size());
  return x;
}

TEST(RandomK, RanksDrawAlikeAndTheirSumDecodes) {
  const std::size_t n = 3000;
  const int ranks = 5;
  CodecRun run{"randomk:ratio=0.1", n};
  std::vector<float> sum;
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(gradient_like(n, static_cast<std::uint32_t>(rank + 1)));
    const auto one = numbers(run.encode(
        inputs.back(), {.key = {.seed = 7, .step = 3, .rank = static_cast<std::uint32_t>(rank), .tensor = 2}}));
    if (sum.empty()) sum.resize(one.size(), 0.0F);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  }
  std::vector<float> mean(n, 0.0F);
  run.decode_add(std::as_bytes(std::span{sum}), 1.0F / ranks, mean);
  std::size_t sent = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (mean[i] == 0.0F) continue;
    ++sent;
    float total = 0.0F;
    for (const auto& x : inputs) total += x[i];
    EXPECT_NEAR(mean[i], total / ranks, 1e-8F) << i;
  }
  EXPECT_EQ(sent, 300U);
}

TEST(RandomK, DrawsAnewForEveryStepTensorAndSeed) {
  const std::size_t n = 10'000;
  CodecRun run{"randomk", n};
  const std::vector<float> ones(n, 1.0F);
  const auto base = run.decode(run.encode(ones, {.key = {.seed = 1, .step = 1, .rank = 0, .tensor = 1}}));
  EXPECT_EQ(run.decode(run.encode(ones, {.key = {.seed = 1, .step = 1, .rank = 3, .tensor = 1}})), base);
  for (const format::DrawKey& key : {format::DrawKey{2, 1, 0, 1}, {1, 2, 0, 1}, {1, 1, 0, 2}}) {
    const auto other = run.decode(run.encode(ones, {.key = key}));
    double common = 0.0;
    for (std::size_t i = 0; i < n; ++i) common += static_cast<double>(base[i] * other[i]);
    EXPECT_LT(common, 8.0);  // 1 is expected of 100 and 100
  }
}

TEST(RandomK, ScaledItHasNoErrorFeedback) {
  EXPECT_TRUE(parse_codec("randomk:ratio=0.2").error_feedback);
  const CodecSpec scaled = parse_codec("randomk:ratio=0.2,scale=on");
  EXPECT_FALSE(scaled.error_feedback);
  EXPECT_EQ(scaled.params_text(), "ratio=0.2,scale=on,ef=off");
  EXPECT_FALSE(parse_codec("randomk:ratio=0.2,scale=on,ef=off").error_feedback);
  EXPECT_THROW(static_cast<void>(parse_codec("randomk:ratio=0.2,scale=on,ef=on")), Error);
}

TEST(RandomK, ScaledItIsUnbiased) {
  const std::size_t n = 500;
  CodecRun run{"randomk:ratio=0.2,scale=on", n};
  const auto x = gradient_like(n);
  constexpr int kSeeds = 4000;
  std::vector<double> mean(n, 0.0);
  double variance = 0.0;
  double energy = 0.0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto y = run.decode(run.encode(x, {.key = {.seed = static_cast<std::uint64_t>(seed)}}));
    for (std::size_t i = 0; i < n; ++i) {
      mean[i] += static_cast<double>(y[i]) / kSeeds;
      variance += (static_cast<double>(y[i]) - static_cast<double>(x[i])) *
                  (static_cast<double>(y[i]) - static_cast<double>(x[i])) / kSeeds;
    }
  }
  double chi = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double off = mean[i] - static_cast<double>(x[i]);  // variance of one draw: x^2 (n/k - 1)
    chi += off * off / (4.0 * static_cast<double>(x[i]) * static_cast<double>(x[i]) / kSeeds + 1e-30);
  }
  EXPECT_NEAR(chi, static_cast<double>(n), 5.0 * std::sqrt(2.0 * static_cast<double>(n)));
  EXPECT_NEAR(variance / energy, 4.0, 0.1);  // n/k - 1 (Stich et al. 2018)
}

TEST(RandomK, RefusesATrailerThatIsNoKey) {
  const std::size_t n = 1000;
  CodecRun run{"randomk", n};
  const auto good = numbers(run.encode(gradient_like(n)));
  for (const auto& [at, value] : {std::pair<std::size_t, float>{10, 0.0F},
                                  {10, NAN},
                                  {10, 5000.0F},
                                  {11, 0.5F},
                                  {11, 4096.0F},
                                  {14, -1.0F},
                                  {14, NAN}}) {
    auto bad = good;
    bad[at] = value;
    std::vector<float> out(n);
    EXPECT_THROW(run.decode_add(std::as_bytes(std::span{bad}), 1.0F, out), Error) << at << " " << value;
  }
}

}  // namespace
}  // namespace gradtool::test
