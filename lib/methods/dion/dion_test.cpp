// Dion: closed forms on planted ranks, momentum, orthonormal updates, bytes, and what its errors mean.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kRows = 48;
constexpr std::size_t kColumns = 75;

std::vector<double> unit_vector(std::size_t n, std::uint32_t seed) {
  std::mt19937 engine{seed};
  std::normal_distribution<double> normal;
  std::vector<double> x(n);
  double squares = 0.0;
  for (auto& value : x) {
    value = normal(engine);
    squares += value * value;
  }
  for (auto& value : x) value /= std::sqrt(squares);
  return x;
}

/// sigma u vᵀ.
std::vector<float> outer(double sigma, const std::vector<double>& u, const std::vector<double>& v) {
  std::vector<float> x;
  for (const double a : u) {
    for (const double b : v) x.push_back(static_cast<float>(sigma * a * b));
  }
  return x;
}

std::vector<float> sum(const std::vector<std::vector<float>>& parts) {
  std::vector<float> x(parts[0].size(), 0.0F);
  for (const auto& part : parts) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += part[i];
  }
  return x;
}

double length(const Message& message) {
  double squares = 0.0;
  for (std::size_t at = 0; at < message.bytes.size(); at += 4) {
    float x = 0.0F;
    std::memcpy(&x, message.bytes.data() + at, sizeof x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(squares);
}

/// The update of sigma u vᵀ is u vᵀ whatever sigma is, times sqrt(rows / columns) by default.
TEST(Dion, UpdateOfARankOneGradientIsItsDirection) {
  const auto u = unit_vector(kRows, 1);
  const auto v = unit_vector(kColumns, 2);
  for (const double sigma : {1e-6, 1.0, 3e4}) {
    for (const bool scaled : {false, true}) {
      const auto out = run_model({.codec = std::string{"dion:rank=1,scale="} + (scaled ? "shape" : "none"),
                                  .ranks = 3,
                                  .steps = 3,
                                  .layout = Layout::matrix(kRows, kColumns),
                                  .gradient = [&](int rank, int) { return outer(sigma * (rank + 1), u, v); }});
      const double factor = scaled ? std::sqrt(48.0 / 75.0) : 1.0;
      const auto expected = outer(factor, u, v);
      for (const auto& result : out.results[0]) {
        for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(result[i], expected[i], 1e-6 * factor) << sigma;
      }
      for (int step = 0; step < 3; ++step) EXPECT_LT(model_nmse(out, step), 1e-11) << "u and v are singular vectors";
    }
  }
}

/// The momentum of a constant gradient that the factors hold: B_t = (1 + mu + ... + mu^(t-1)) G, whose length R says.
TEST(Dion, MomentumKeepsTheShareMu) {
  const auto u = unit_vector(kRows, 1);
  const auto v = unit_vector(kColumns, 2);
  for (const double mu : {0.0, 0.5, 0.95}) {
    const auto out = run_model({.codec = "dion:rank=1,mu=" + std::to_string(mu),
                                .ranks = 1,
                                .steps = 6,
                                .layout = Layout::matrix(kRows, kColumns),
                                .gradient = [&](int, int step) { return outer(step < 4 ? 2.0 : 0.0, u, v); }});
    double share = 0.0;
    for (std::size_t step = 0; step < 6; ++step) {
      share = mu * share + (step < 4 ? 1.0 : 0.0);
      EXPECT_NEAR(length(out.messages[0][step][1]), 2.0 * share, 1e-5) << mu << ", step " << step;
    }
  }
}

/// Columns that a momentum of fewer directions has no use for hold rounding, and are no part of the update.
TEST(Dion, ColumnsOfRoundingAreLeftOut) {
  const auto gradient = sum({outer(5.0, unit_vector(kRows, 1), unit_vector(kColumns, 2)),
                             outer(2.0, unit_vector(kRows, 3), unit_vector(kColumns, 4))});
  const auto out = run_model({.codec = "dion:rank_fraction=1,rank=8,scale=none",
                              .ranks = 2,
                              .steps = 4,
                              .layout = Layout::matrix(kRows, kColumns),
                              .gradient = [&](int, int) { return gradient; }});
  for (const auto& result : out.results[0]) {
    double squares = 0.0;
    for (const float x : result) squares += static_cast<double>(x) * static_cast<double>(x);
    EXPECT_NEAR(squares, 2.0, 1e-4) << "two columns of length 1 on orthonormal ones";
  }
}

/// The momentum keeps all that a factor of one column does not hold, and sends it when it is the larger part: with mu =
/// 0 the update turns between two directions that a gradient has in equal steps.
TEST(Dion, WhatIsNotSentStays) {
  const auto u = unit_vector(kRows, 1);
  const auto v = unit_vector(kColumns, 2);
  const auto w = unit_vector(kRows, 3);
  const auto z = unit_vector(kColumns, 4);
  const auto gradient = sum({outer(10.0, u, v), outer(3.0, w, z)});
  const auto out = run_model({.codec = "dion:rank=1,mu=0,scale=none",
                              .ranks = 2,
                              .steps = 40,
                              .layout = Layout::matrix(kRows, kColumns),
                              .gradient = [&](int, int) { return gradient; }});
  // The momentum is the gradient's sum less that of P Rᵀ: it stays bounded, so the sum of the P Rᵀ grows with both.
  double first = 0.0;
  double second = 0.0;
  for (const auto& result : out.results[0]) {
    double along_first = 0.0;
    double along_second = 0.0;
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t k = 0; k < kColumns; ++k) {
        const auto value = static_cast<double>(result[i * kColumns + k]);
        along_first += value * u[i] * v[k];
        along_second += value * w[i] * z[k];
      }
    }
    first = std::max(first, along_first);
    second = std::max(second, along_second);
  }
  EXPECT_GT(first, 0.9);
  EXPECT_GT(second, 0.9);
}

/// On a planted rank whose singular values differ the update becomes U Vᵀ, and the errors fall to nothing.
TEST(Dion, ConvergesToTheSingularVectors) {
  const std::vector<double> values{9.0, 4.0, 1.0};
  std::vector<std::vector<double>> left;
  std::vector<std::vector<double>> right;
  const auto orthogonal = [](std::vector<std::vector<double>>& basis, std::vector<double> x) {
    for (const auto& other : basis) {
      double share = 0.0;
      for (std::size_t i = 0; i < x.size(); ++i) share += x[i] * other[i];
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= share * other[i];
    }
    double squares = 0.0;
    for (const double value : x) squares += value * value;
    for (double& value : x) value /= std::sqrt(squares);
    basis.push_back(std::move(x));
  };
  std::vector<std::vector<float>> parts;
  std::vector<std::vector<float>> directions;
  for (std::uint32_t j = 0; j < 3; ++j) {
    orthogonal(left, unit_vector(kRows, 10 + j));
    orthogonal(right, unit_vector(kColumns, 20 + j));
    parts.push_back(outer(values[j], left[j], right[j]));
    directions.push_back(outer(1.0, left[j], right[j]));
  }
  const auto gradient = sum(parts);
  const auto expected = sum(directions);
  // Two ranks whose gradients differ by a matrix that their mean does not have.
  const auto difference = outer(2.0, unit_vector(kRows, 30), unit_vector(kColumns, 31));
  const auto out = run_model({.codec = "dion:rank=3,rank_fraction=1,scale=none",
                              .ranks = 2,
                              .steps = 12,
                              .layout = Layout::matrix(kRows, kColumns),
                              .gradient = [&](int rank, int) {
                                auto x = gradient;
                                for (std::size_t i = 0; i < x.size(); ++i)
                                  x[i] += (rank == 0 ? 1.0F : -1.0F) * difference[i];
                                return x;
                              }});
  EXPECT_GT(model_nmse(out, 0), 0.01) << "columns of the first factors are no singular vectors";
  EXPECT_LT(model_nmse(out, 0), 1.0);
  EXPECT_LT(model_nmse(out, 11), 1e-9);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(out.results[0][11][i], expected[i], 2e-5F) << i;
}

TEST(Dion, BytesFollowTheFormula) {
  const auto out = run_model({.codec = "dion:rank_fraction=0.5,rank=4", .ranks = 2, .steps = 2});
  std::size_t expected = 0;
  for (const auto& tensor : small_model().tensors) {
    if (!tensor.is_matrix()) {
      expected += tensor.elements;
      for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i)
        EXPECT_EQ(out.results[0][1][i], out.inputs[0][1][i]) << tensor.name;
      continue;
    }
    const std::size_t side = std::min(tensor.rows(), tensor.columns());
    expected += std::min<std::size_t>(4, side / 2) * (tensor.rows() + tensor.columns());
  }
  EXPECT_EQ(out.payload[0][1], 4 * expected);
  EXPECT_EQ(out.wire[0][1], out.payload[0][1]);  // 2 (p-1) / p of it
  EXPECT_EQ(out.messages[0][1].size(), 2U);
}

/// An update has the direction of the gradient and not its size.
TEST(Dion, DoesNotScaleWithTheGradient) {
  const auto scaled = [](float factor) {
    return run_model({.codec = "dion",
                      .ranks = 2,
                      .steps = 4,
                      .layout = Layout::matrix(kRows, kColumns),
                      .gradient = [factor](int rank, int step) {
                        auto x = model_gradient(kRows * kColumns, rank, step);
                        for (auto& value : x) value *= factor;
                        return x;
                      }});
  };
  const auto unscaled = scaled(1.0F);
  const auto tiny = scaled(0x1p-40F);
  for (std::size_t i = 0; i < kRows * kColumns; ++i)
    ASSERT_NEAR(unscaled.results[0][3][i], tiny.results[0][3][i], 1e-6F) << i;
}

TEST(Dion, UnitsOfNoneAndOfOneElement) {
  for (const std::size_t n : {0, 1}) {
    const auto out =
        run_model({.codec = "dion", .ranks = 3, .steps = 2, .layout = Layout::flat(n), .gradient = [n](int, int) {
                     return std::vector<float>(n, 0.5F);
                   }});
    for (const auto& rank : out.results) EXPECT_EQ(rank[1], std::vector<float>(n, 0.5F));
  }
}

}  // namespace
}  // namespace gradtool::test
