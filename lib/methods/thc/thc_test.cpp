// THC: its rotation, the error of its tables against theory, sums that do not overflow, and nothing lost.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/draws.hpp"
#include "lib/methods/thc/format.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

std::vector<float> bell(std::size_t n, std::uint32_t seed) {
  const auto x = normal(n, seed);
  return {x.begin(), x.end()};
}

template <std::uint32_t Bits>
void expect_same_codes(bool optimal) {
  const auto table = format::thc_table<Bits>(optimal);
  format::ThcStepLookup<Bits> steps{};
  for (std::uint32_t i = 0; i < format::ThcStepLookup<Bits>::kMost; ++i) steps.set(i, table);
  const auto same = [&](float x, float u) {
    const auto wanted = format::thc_encode(table, format::thc_clamp(x, table.top), u);
    const auto found = format::thc_encode(steps, format::thc_clamp(x, table.top), u);
    ASSERT_EQ(found.code, wanted.code) << x << " " << u;
    ASSERT_EQ(found.value, wanted.value) << x << " " << u;
  };
  const float most = format::uniform(0xffffffffU);
  for (float w = 0.0F; w <= table.top; w += 1.0F) {
    for (const float x : {w, std::nextafter(w, -1.0F), std::nextafter(w, 100.0F)}) {
      for (const float u : {0.0F, 0x1p-24F, 0.5F, std::nextafter(most, 0.0F), most}) same(x, u);
    }
  }
  for (std::size_t i = 0; i < 20'000; ++i) {
    const auto draws = format::draw4({.seed = 8}, i);
    same(table.top * format::uniform(draws.bits[0]), format::uniform(draws.bits[1]));
  }
}

TEST(Thc, StepsFoundByWholeNumbersGiveTheSameCodes) {
  for (const bool optimal : {false, true}) {
    expect_same_codes<3>(optimal);
    expect_same_codes<4>(optimal);
  }
}

TEST(Hadamard, OfABlockIsThatOfItsDefinitionTransposed) {
  const auto x = bell(format::kThcBlock, 3);
  auto y = x;
  host::hadamard_block(y.data());
  for (const std::size_t i : {0U, 1U, 31U, 32U, 500U, 1023U}) {
    double expected = 0.0;
    for (std::size_t j = 0; j < x.size(); ++j)
      expected += static_cast<double>(x[j]) * (std::popcount(i & j) % 2 == 0 ? 1.0 : -1.0);
    EXPECT_NEAR(y[32 * (i % 32) + i / 32], expected, 1e-3) << i;
  }
}

TEST(Hadamard, TwiceIsTheSizeTimesTheInput) {
  for (std::size_t size = 1; size <= 1024; size *= 2) {
    const auto x = bell(size, 4);
    auto y = x;
    for (int i = 0; i < 2; ++i) size == 1024 ? host::hadamard_block(y.data()) : host::hadamard(y.data(), size);
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_NEAR(y[i], x[i] * static_cast<float>(size), 1e-5 * static_cast<double>(size)) << size;
  }
}

TEST(Thc, ErrorOfNormalGradientsIsTheTablesAndAveragesOverRanks) {
  // E of (z - low)(high - z) in units of z, and of what clamping takes off, for a normal z.
  const std::vector<std::pair<std::string, double>> expected{
      {"thc:bits=3,ef=off", 0.09915}, {"thc:bits=4,ef=off", 0.01306}, {"thc:bits=4,table=uniform,ef=off", 0.0322}};
  const std::size_t n = 1 << 17;
  for (const auto& [spec, rounding] : expected) {
    const double clamping = spec == "thc:bits=4,ef=off" ? 0.00727 : 0.00004;
    for (const int ranks : {1, 4}) {
      const auto out =
          run_model({.codec = spec, .ranks = ranks, .steps = 1, .layout = Layout::flat(n), .gradient = [n](int, int) {
                       return bell(n, 5);
                     }});
      EXPECT_NEAR(model_nmse(out), rounding / ranks + clamping, 0.05 * (rounding / ranks + clamping))
          << spec << " " << ranks;
    }
  }
}

TEST(Thc, RoundingIsUnbiased) {
  const std::size_t n = 8192;
  const auto out =
      run_model({.codec = "thc:ef=off", .ranks = 1, .steps = 80, .layout = Layout::flat(n), .gradient = [n](int, int) {
                   return bell(n, 6);
                 }});
  EXPECT_NEAR(model_nmse(out), 0.09915 / 80.0, 0.0004);  // clamping leaves a little; the nearest value would leave 0.03
}

TEST(Thc, SumsDoNotOverflowTheirLanes) {
  // All of the gradient lies in one block of 64: its rotated elements are clamped to the ends, all of them on all
  // ranks.
  const std::size_t n = 64 * 1024;
  for (const int ranks : {6, 7}) {
    const auto out = run_model(
        {.codec = "thc:ef=off", .ranks = ranks, .steps = 1, .layout = Layout::flat(n), .gradient = [n](int, int) {
           auto x = bell(n, 7);
           std::fill(x.begin() + 1024, x.end(), 0.0F);
           return x;
         }});
    double product = 0.0;
    double given = 0.0;
    double got = 0.0;
    for (std::size_t i = 0; i < 1024; ++i) {
      const auto x = static_cast<double>(out.inputs[0][0][i]);
      const auto y = static_cast<double>(out.results[0][0][i]);
      product += x * y;
      given += x * x;
      got += y * y;
    }
    EXPECT_GT(product / std::sqrt(given * got), 0.75) << ranks;
    // Codes and sums of the parts that a rank sends, and norms.
    const auto p = static_cast<std::uint64_t>(ranks);
    const std::uint64_t lane = ranks == 6 ? 1 : 2;
    const auto total = std::accumulate(out.wire.begin(), out.wire.end(), std::uint64_t{0},
                                       [](auto sum, const auto& w) { return sum + w[0]; });
    EXPECT_EQ(total, (p - 1) * (3 * n / 8 + lane * n + 4 * p));
    EXPECT_EQ(out.note.empty(), ranks == 6);
  }
}

TEST(Thc, ResultAndResidualsAreTheMeanGradient) {
  for (const char* spec : {"thc", "thc:bits=4", "thc:table=uniform"}) {
    const auto out = run_model({.codec = spec, .ranks = 3, .steps = 5});
    const std::size_t n = out.inputs[0][0].size();
    double off = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      double given = 0.0;
      double left = 0.0;
      double applied = 0.0;
      for (std::size_t r = 0; r < 3; ++r) {
        for (const auto& step : out.inputs[r]) given += static_cast<double>(step[i]) / 3.0;
        left += static_cast<double>(out.residuals[r][i]) / 3.0;
      }
      for (const auto& step : out.results[0]) applied += static_cast<double>(step[i]);
      off = std::max(off, std::abs(applied + left - given));
      size = std::max(size, std::abs(given));
    }
    EXPECT_LT(off, 3e-6 * size) << spec;
  }
}

TEST(Thc, AShortLastBlockIsPaddedToAPowerOfTwoOnly) {
  const auto bytes = [](std::size_t n) {
    return run_model({.codec = "thc", .ranks = 1, .steps = 1, .layout = Layout::flat(n)}).payload[0][0];
  };
  EXPECT_EQ(bytes(1024), 4 + 384 + 1024);
  EXPECT_EQ(bytes(1024 + 33), 4 + 34 * 12 + 34 * 32);
  EXPECT_EQ(bytes(5), 4 + 12 + 32);
}

TEST(Thc, InfinityComesOutNotFinite) {
  const auto out =
      run_model({.codec = "thc", .ranks = 2, .steps = 1, .layout = Layout::flat(100), .gradient = [](int rank, int) {
                   auto x = bell(100, 8);
                   if (rank == 1) x[7] = INFINITY;
                   return x;
                 }});
  for (const float y : out.results[0][0]) EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace gradtool::test
