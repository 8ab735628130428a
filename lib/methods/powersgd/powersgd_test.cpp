// PowerSGD: planted ranks, warm start, the sum of first factors, and an independent computation.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/draws.hpp"
#include "kernels/low_rank.hpp"
#include "tests/codecs/dependent_columns.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

/// rows x columns of the given rank with singular values that fall by `decay` each.
std::vector<float> low_rank(std::size_t rows, std::size_t columns, std::size_t rank, float decay, std::uint32_t seed) {
  std::vector<float> x(rows * columns, 0.0F);
  float size = 1.0F;
  for (std::size_t r = 0; r < rank; ++r, size *= decay) {
    const auto u = noise(rows, seed + static_cast<std::uint32_t>(r));
    const auto v = noise(columns, seed + 100U + static_cast<std::uint32_t>(r));
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < columns; ++k) x[i * columns + k] += size * u[i] * v[k];
    }
  }
  return x;
}

TEST(PowerSgd, RecoversAPlantedRankAtOnce) {
  for (const std::size_t rank : {1U, 3U, 4U, 6U}) {
    const auto x = low_rank(96, 140, rank, 1.0F, 3);
    const auto out = run_model({.codec = "powersgd:ef=off,rank=" + std::to_string(rank),
                                .ranks = 2,
                                .steps = 3,
                                .layout = Layout::matrix(96, 140),
                                .gradient = [&](int, int) { return x; }});
    EXPECT_LT(model_nmse(out, 0), 1e-9) << rank;  // the range of M Q is that of M
    EXPECT_LT(model_nmse(out, 2), 1e-10) << rank;
  }
}

TEST(PowerSgd, WarmStartConvergesToTheBestApproximation) {
  const std::size_t rows = 64;
  const std::size_t columns = 100;
  const auto x = low_rank(rows, columns, 12, 0.7F, 5);
  const ModelSetup setup{.codec = "powersgd:ef=off,rank=2",
                         .ranks = 2,
                         .steps = 12,
                         .layout = Layout::matrix(rows, columns),
                         .gradient = [&](int, int) { return x; }};
  const auto warm = run_model(setup);
  auto cold_setup = setup;
  cold_setup.codec = "powersgd:ef=off,rank=2,warm_start=off";
  const auto cold = run_model(cold_setup);
  EXPECT_EQ(warm.results[0][0], cold.results[0][0]);
  double coldest = 1.0;
  for (int step = 1; step < 12; ++step) {
    EXPECT_LE(model_nmse(warm, step), model_nmse(warm, step - 1) * (1.0 + 1e-6)) << "a power iteration never loses";
    coldest = std::min(coldest, model_nmse(cold, step));
  }
  EXPECT_LT(model_nmse(warm, 11), coldest);
  // Eckart-Young: no matrix of rank 2 is closer than the two largest singular values leave. Found here by iterating on
  // M Mᵀ with many orthonormalised steps.
  auto basis = noise(2 * rows, 9);
  std::vector<double> scratch(rows);
  host::orthonormalise(basis.data(), rows, columns, 2, scratch.data());
  double captured = 0.0;
  for (int round = 0; round < 500; ++round) {
    std::vector<float> next(2 * rows, 0.0F);
    captured = 0.0;
    for (std::size_t j = 0; j < 2; ++j) {
      for (std::size_t k = 0; k < columns; ++k) {
        double y = 0.0;
        for (std::size_t i = 0; i < rows; ++i) y += static_cast<double>(x[i * columns + k] * basis[j * rows + i]);
        captured += y * y;
        for (std::size_t i = 0; i < rows; ++i) next[j * rows + i] += x[i * columns + k] * static_cast<float>(y);
      }
    }
    basis = next;
    host::orthonormalise(basis.data(), rows, columns, 2, scratch.data());
  }
  double energy = 0.0;
  for (const float value : x) energy += static_cast<double>(value) * static_cast<double>(value);
  const double best = 1.0 - captured / energy;
  EXPECT_GT(best, 0.01);
  EXPECT_GE(model_nmse(warm, 11), best * (1.0 - 1e-4));
  EXPECT_LT(model_nmse(warm, 11), best * 1.02);
}

TEST(PowerSgd, FirstFactorOfTheSumIsTheSumOfFirstFactors) {
  const Layout layout = Layout::matrix(48, 80);
  const auto three = run_model({.codec = "powersgd", .ranks = 3, .steps = 1, .layout = layout});
  const auto alone =
      run_model({.codec = "powersgd", .ranks = 1, .steps = 1, .layout = layout, .gradient = [&](int, int) {
                   std::vector<float> sum(layout.elements, 0.0F);
                   for (const auto& rank : three.inputs) {
                     for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank[0][i];
                   }
                   return sum;
                 }});
  const auto whole = floats_of(alone.messages[0][0][0]);
  ASSERT_EQ(whole.size(), 2U * 48U);
  std::vector<double> sum(whole.size(), 0.0);
  for (const auto& rank : three.messages) {
    const auto part = floats_of(rank[0][0]);
    for (std::size_t i = 0; i < part.size(); ++i) sum[i] += static_cast<double>(part[i]);
  }
  double largest = 0.0;
  for (const double value : sum) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(whole[i], sum[i], 1e-5 * largest) << i;
}

TEST(PowerSgd, ResidualIsWhatTheResultsLack) {
  for (const int ranks : {1, 4}) {
    const auto out = run_model({.codec = "powersgd:rank=3", .ranks = ranks, .steps = 7});
    const std::size_t n = out.inputs[0][0].size();
    for (std::size_t i = 0; i < n; ++i) {
      double given = 0.0;
      double left = 0.0;
      double applied = 0.0;
      for (std::size_t r = 0; r < out.inputs.size(); ++r) {
        for (const auto& step : out.inputs[r]) given += static_cast<double>(step[i]) / ranks;
        left += static_cast<double>(out.residuals[r][i]) / ranks;
      }
      for (const auto& step : out.results[0]) applied += static_cast<double>(step[i]);
      ASSERT_NEAR(given, applied + left, 1e-6) << ranks << " ranks, element " << i;
    }
  }
}

TEST(PowerSgd, SmallTensorsAreExactAndCounted) {
  const auto out = run_model({.codec = "powersgd", .ranks = 2, .steps = 2});
  std::size_t expected = 0;
  for (const auto& tensor : small_model().tensors) {
    const std::size_t factors = 2 * (tensor.rows() + tensor.columns());
    const bool compressed = tensor.is_matrix() && tensor.elements >= 2 * factors;
    expected += compressed ? factors : tensor.elements;
    if (compressed) continue;
    for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i) {
      const float mean = 0.5F * (out.inputs[0][1][i] + out.inputs[1][1][i]);
      EXPECT_NEAR(out.results[0][1][i], mean, 1e-7F * std::abs(mean)) << tensor.name;
      EXPECT_EQ(out.residuals[0][i], 0.0F);
    }
  }
  EXPECT_EQ(out.payload[0][1], 4 * expected);
  EXPECT_EQ(out.wire[0][1], out.payload[0][1]);  // 2 (p-1) / p of it
  EXPECT_EQ(out.messages[0][1].size(), 2U);
}

TEST(PowerSgd, ScalesWithTheGradient) {
  const auto scaled = [](float factor) {
    return run_model({.codec = "powersgd", .ranks = 2, .steps = 4, .gradient = [factor](int rank, int step) {
                        auto x = model_gradient(small_model().elements, rank, step);
                        for (auto& value : x) value *= factor;
                        return x;
                      }});
  };
  const auto unscaled = scaled(1.0F);
  const auto tiny = scaled(0x1p-40F);  // far below an absolute epsilon of 10^-8
  for (std::size_t i = 0; i < unscaled.results[0][3].size(); ++i)
    ASSERT_EQ(unscaled.results[0][3][i] * 0x1p-40F, tiny.results[0][3][i]) << i;
}

TEST(PowerSgd, ComesBackFromAZeroGradient) {
  const auto out = run_model({.codec = "powersgd", .ranks = 2, .steps = 4, .gradient = [](int rank, int step) {
                                const std::size_t n = small_model().elements;
                                return step == 0 ? std::vector<float>(n, 0.0F) : model_gradient(n, rank, step);
                              }});
  for (const float value : out.results[0][0]) ASSERT_EQ(value, 0.0F);
  EXPECT_LT(model_nmse(out, 1), 0.98);
  EXPECT_GT(model_nmse(out, 1), 0.0);
}

TEST(PowerSgd, WaitsForItsFirstIteration) {
  const auto out = run_model({.codec = "powersgd:start_iteration=2", .ranks = 3, .steps = 4});
  const auto dense = run_model({.codec = "none", .ranks = 3, .steps = 4});
  EXPECT_EQ(out.results[0][1], dense.results[0][1]);
  EXPECT_NE(out.results[0][2], dense.results[0][2]);
  EXPECT_EQ(out.note, "2 of 4 steps compressed, the others before iteration 2");
}

/// One step of the algorithm in plain float64 loops, for matrices of several tiles and any remainder of the loops.
TEST(PowerSgd, AgreesWithPlainLoops) {
  for (const auto& [rows, columns, rank] : {std::tuple{300U, 2100U, 3U}, {2500U, 130U, 5U}, {7U, 33U, 1U}}) {
    const auto x = noise(rows * columns, rows);
    const Layout layout = Layout::matrix(rows, columns);
    const auto out = run_model({.codec = "powersgd:min_compression_rate=0,rank=" + std::to_string(rank),
                                .ranks = 1,
                                .steps = 2,
                                .threads = 2,
                                .layout = layout,
                                .gradient = [&](int, int) { return x; }});
    const auto q0 = floats_of(out.messages[0][0][1]);  // Q of the first step starts the second
    std::vector<double> m(x.begin(), x.end());
    for (std::size_t i = 0; i < m.size(); ++i)
      m[i] += static_cast<double>(x[i]) - static_cast<double>(out.results[0][0][i]);
    std::vector<std::vector<double>> p(rank, std::vector<double>(rows, 0.0));
    for (std::size_t j = 0; j < rank; ++j) {
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t k = 0; k < columns; ++k)
          p[j][i] += m[i * columns + k] * static_cast<double>(q0[j * columns + k]);
      }
      for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t l = 0; l < j; ++l) {
          double share = 0.0;
          for (std::size_t i = 0; i < rows; ++i) share += p[l][i] * p[j][i];
          for (std::size_t i = 0; i < rows; ++i) p[j][i] -= share * p[l][i];
        }
      }
      double length = 0.0;
      for (const double value : p[j]) length += value * value;
      for (double& value : p[j]) value /= std::sqrt(length);
    }
    std::vector<double> expected(m.size(), 0.0);
    for (std::size_t j = 0; j < rank; ++j) {
      for (std::size_t k = 0; k < columns; ++k) {
        double q = 0.0;
        for (std::size_t i = 0; i < rows; ++i) q += m[i * columns + k] * p[j][i];
        for (std::size_t i = 0; i < rows; ++i) expected[i * columns + k] += p[j][i] * q;
      }
    }
    double error = 0.0;
    double energy = 0.0;
    for (std::size_t i = 0; i < m.size(); ++i) {
      const double off = static_cast<double>(out.results[0][1][i]) - expected[i];
      error += off * off;
      energy += expected[i] * expected[i];
    }
    EXPECT_LT(error, 1e-10 * energy) << rows << "x" << columns;
  }
}

TEST(PowerSgd, ColumnsBecomeOrthonormal) {
  const std::size_t rows = 203;
  auto p = noise(4 * rows, 1);
  for (std::size_t i = 0; i < rows; ++i) {
    p[rows + i] = p[i] + 1e-4F * p[rows + i];  // nearly dependent
    p[2 * rows + i] = 0.0F;
  }
  std::vector<double> scratch(rows);
  host::orthonormalise(p.data(), rows, 300, 4, scratch.data());
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double product = 0.0;
      for (std::size_t i = 0; i < rows; ++i)
        product += static_cast<double>(p[a * rows + i]) * static_cast<double>(p[b * rows + i]);
      EXPECT_NEAR(product, a == b && a != 2 ? 1.0 : 0.0, 1e-6) << a << " " << b;
    }
  }
}

/// Whichever way the last bits of a product went, the same columns are dropped.
TEST(PowerSgd, DropsTheColumnsThatDependOnOthersUpToRounding) {
  for (const std::size_t rows : {8U, 33U, 700U, 5000U}) {
    std::vector<double> scratch(rows);
    for (const std::size_t columns : {2U, 64U, 4096U, 100'000U}) {
      for (std::uint32_t draw = 0; draw < 4; ++draw) {
        auto p = DependentColumns{rows, columns, draw}.p;
        host::orthonormalise(p.data(), rows, columns, DependentColumns::kRank, scratch.data());
        for (std::size_t j = 0; j < DependentColumns::kRank; ++j)
          EXPECT_EQ(is_dropped(p, rows, j), DependentColumns::kDropped[j])
              << "column " << j << " of " << rows << " elements, matrix of " << columns << " columns, draw " << draw;
      }
    }
  }
}

/// In a product of a matrix of rank 3 the columns behind the third are rounding.
TEST(PowerSgd, KeepsAsManyColumnsAsAMatrixHasRank) {
  constexpr std::size_t kRank = 6;
  for (const auto& [rows, columns] :
       {std::pair<std::size_t, std::size_t>{12, 16}, {200, 90}, {40, 3000}, {16, 60'000}}) {
    const auto x = low_rank(rows, columns, 3, 0.9F, 11);
    auto matrix = x;
    const auto q = noise(columns * kRank, 12);
    std::vector<float> p(rows * kRank);
    std::vector<double> scratch(rows);
    host::project_rows({rows, columns, columns}, matrix.data(), nullptr, kRank, q.data(), columns, p.data());
    host::orthonormalise(p.data(), rows, columns, kRank, scratch.data());
    for (std::size_t j = 0; j < kRank; ++j)
      EXPECT_EQ(is_dropped(p, rows, j), j >= 3) << rows << "x" << columns << ", " << j;
  }
}

/// Box and Muller's formula written out, in the pairs of draws that the README states.
TEST(PowerSgd, StartColumnsFollowTheFormula) {
  const format::DrawKey key{.seed = 3, .step = 2, .rank = 0xffffffffU};
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::uint64_t pair = i / 2 * 2;
    const auto draw = [&](std::uint64_t element) {
      return static_cast<double>(format::uniform(format::draw4(key, element / 4).bits[element % 4]));
    };
    const double angle = 2.0 * std::numbers::pi * draw(pair + 1);
    const double expected =
        std::sqrt(-2.0 * std::log1p(-draw(pair))) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    ASSERT_NEAR(format::normal(key, i), expected, 1e-6 * (1.0 + std::abs(expected))) << i;
  }
}

TEST(PowerSgd, StartColumnsHaveTheMomentsOfANormalDistribution) {
  constexpr std::size_t kDraws = 400'000;
  double moments[4] = {};
  for (std::size_t i = 0; i < kDraws; ++i) {
    double power = 1.0;
    for (double& moment : moments) moment += (power *= static_cast<double>(format::normal({.seed = 5}, i))) / kDraws;
  }
  EXPECT_NEAR(moments[0], 0.0, 0.01);
  EXPECT_NEAR(moments[1], 1.0, 0.02);
  EXPECT_NEAR(moments[2], 0.0, 0.04);
  EXPECT_NEAR(moments[3], 3.0, 0.1);
}

}  // namespace
}  // namespace gradtool::test
