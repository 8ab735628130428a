// ATOMO: probabilities, what is certain to be kept, means and variances over draws.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/methods/atomo/format.hpp"
#include "lib/methods/atomo/singular.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

/// One rank of atomo on a layout.
struct OneRank {
  OneRank(const std::string& text, Layout layout)
      : spec{parse_codec(text)},
        codec{spec.descriptor->make_host(spec.params, layout)},
        plan{codec->plan(layout.elements)},
        arena{Arena<Space::host>::padded_size(plan.payload_bytes) +
              Arena<Space::host>::padded_size(plan.scratch_bytes)},
        payload{arena.take_bytes(plan.payload_bytes)},
        scratch{arena.take_bytes(plan.scratch_bytes)} {}
  std::vector<float> operator()(const std::vector<float>& x, std::uint64_t seed, Queue<Space::host> queue = {}) {
    codec->encode(queue, {x.data(), x.size()}, {.key = {.seed = seed}}, payload, scratch);
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    std::vector<float> y(x.size(), 0.0F);
    codec->decode_add(queue, payload.first(bytes), 1.0F, {y.data(), y.size()}, scratch);
    return y;
  }
  [[nodiscard]] std::uint32_t count(std::size_t tensor = 0) const {
    std::uint32_t value = 0;
    std::memcpy(&value, payload.data() + 8 + 4 * tensor, sizeof value);
    return value;
  }
  CodecSpec spec;
  std::unique_ptr<Codec<Space::host>> codec;
  Footprint plan;
  Arena<Space::host> arena;
  HostView<std::byte> payload, scratch;
  std::uint64_t bytes = 0;
};

/// A 32 by 32 matrix with the given singular values: its vectors are columns of a Hadamard matrix.
std::vector<float> with_values(const std::vector<double>& values) {
  const std::size_t n = 32;
  std::vector<float> x(n * n, 0.0F);
  const auto sign = [](std::size_t a, std::size_t b) { return std::popcount(a & b) % 2 == 0 ? 1.0 : -1.0; };
  for (std::size_t j = 0; j < values.size(); ++j) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < n; ++k)
        x[i * n + k] += static_cast<float>(values[j] * sign(i, j) * sign(k, j + 5) / static_cast<double>(n));
    }
  }
  return x;
}

TEST(Atomo, ProbabilitiesSumToTheBudget) {
  const auto probabilities = [](std::vector<double> values, double budget) {
    std::vector<double> p(values.size());
    format::atomic_probabilities(values.data(), values.size(), budget, p.data());
    return p;
  };
  EXPECT_EQ(probabilities({4, 2, 2}, 1.0), (std::vector<double>{0.5, 0.25, 0.25}));
  EXPECT_EQ(probabilities({10, 1, 1, 1, 1}, 2.0), (std::vector<double>{1, 0.25, 0.25, 0.25, 0.25}));
  EXPECT_EQ(probabilities({100, 50, 1, 1}, 3.0),
            (std::vector<double>{1, 1, 0.5, 0.5}));  // the second only after the first
  EXPECT_EQ(probabilities({3, 2, 0, 0}, 3.0), (std::vector<double>{1, 1, 0, 0}));
  EXPECT_EQ(probabilities({0, 0}, 3.0), (std::vector<double>{0, 0}));
  for (const double budget : {1.0, 3.0, 17.0}) {
    std::vector<double> values(40);
    for (std::size_t j = 0; j < values.size(); ++j) values[j] = std::exp(-0.2 * static_cast<double>(j));
    const auto p = probabilities(values, budget);
    EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), budget, 1e-12);
    EXPECT_LE(*std::max_element(p.begin(), p.end()), 1.0);
  }
}

/// All triplets of a matrix make the matrix, each asked for by itself: those of values that are far apart, equal,
/// nearly equal, and zero.
TEST(Atomo, SingularValuesAndVectors) {
  std::vector<float> identity(32 * 32, 0.0F);
  for (std::size_t i = 0; i < 32; ++i) identity[33 * i] = i % 2 == 0 ? 1.0F : -1.0F;
  auto pairs = with_values({3.0, 3.0, 1.0, 1.0, 1.0});
  auto near = identity;
  for (std::size_t i = 0; i < near.size(); ++i) near[i] += 1e-6F * noise(near.size(), 3)[i];
  struct Case {
    std::string what;
    std::size_t rows, columns;
    std::vector<float> x;
  };
  for (const auto& [what, rows, columns, x] :
       {Case{"wide", 20, 700, noise(14000, 20)}, Case{"tall", 700, 20, noise(14000, 700)},
        Case{"square", 64, 64, noise(4096, 64)}, Case{"equal values", 32, 32, identity},
        Case{"pairs of values", 32, 32, pairs}, Case{"nearly equal values", 32, 32, near},
        Case{"zero", 32, 32, std::vector<float>(1024, 0.0F)}}) {
    const std::size_t order = std::min(rows, columns);
    const host::SingularVectors singular{order};
    Arena<Space::host> arena{singular.scratch_bytes()};
    const host::PaddedMatrix matrix{x.data(), rows, columns, x.size()};
    auto result = singular.decompose(matrix, arena.take_bytes(singular.scratch_bytes()));
    const double* values = result.values();
    ASSERT_NE(values, nullptr) << what;
    std::vector<double> sum(x.size(), 0.0);
    std::vector<double> other(std::max(rows, columns));
    for (std::size_t j = 0; j < order; ++j) {
      const double* mine = result.vector(j);
      ASSERT_NE(mine, nullptr) << what;
      host::other_side(matrix, mine, other.data());
      double square = 0.0;
      for (const double value : other) square += value * value;
      EXPECT_NEAR(std::sqrt(square), values[j], 1e-6 * values[0]) << what;
      if (j > 0) EXPECT_LE(values[j], values[j - 1]) << what;
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t k = 0; k < columns; ++k)
          sum[i * columns + k] += rows <= columns ? mine[i] * other[k] : other[i] * mine[k];
      }
    }
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(sum[i], x[i], 1e-9 * values[0]) << what;
  }
}

TEST(Atomo, LowRankWithinTheBudgetIsExact) {
  const auto x = with_values({5.0, 2.0, 0.5});
  OneRank run{"atomo:s=3", Layout::matrix(32, 32)};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto y = run(x, seed);
    EXPECT_LT(nmse(x, y), 1e-12) << seed;
  }
}

TEST(Atomo, MeanVarianceAndCountAreTheFormulas) {
  const std::vector<double> values{9.0, 1.0, 0.8, 0.6, 0.4, 0.3, 0.2};
  const auto x = with_values(values);
  OneRank run{"atomo:s=3", Layout::matrix(32, 32)};
  std::vector<double> p(values.size());
  format::atomic_probabilities(values.data(), values.size(), 3.0, p.data());
  ASSERT_EQ(p[0], 1.0);
  ASSERT_LT(p[1], 1.0);
  double expected = 0.0;  // E |y - x|^2 = sum sigma^2 (1/p - 1)
  double count_variance = 0.0;
  for (std::size_t j = 0; j < values.size(); ++j) {
    expected += values[j] * values[j] * (1.0 / p[j] - 1.0);
    count_variance += p[j] * (1.0 - p[j]);
  }
  constexpr int kSeeds = 3000;
  std::vector<double> mean(x.size(), 0.0);
  double error = 0.0;
  double count = 0.0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto y = run(x, static_cast<std::uint64_t>(seed));
    count += run.count();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double off = static_cast<double>(y[i]) - static_cast<double>(x[i]);
      error += off * off;
      mean[i] += static_cast<double>(y[i]) / kSeeds;
    }
  }
  EXPECT_NEAR(error / kSeeds, expected, 0.05 * expected);
  EXPECT_NEAR(count / kSeeds, 3.0, 5.0 * std::sqrt(count_variance / kSeeds));
  double off = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = mean[i] - static_cast<double>(x[i]);
    off += d * d;
  }
  // E |mean - x|^2 = expected / seeds; a bias of a tenth of the second triplet would add 0.01.
  EXPECT_LT(off, 4.0 * expected / kSeeds);
  EXPECT_LT(4.0 * expected / kSeeds, 0.01);
}

TEST(Atomo, OtherTensorsAreExactAndShapesAreKept) {
  Layout layout;
  const auto add = [&](std::vector<std::int64_t> shape) {
    std::size_t n = 1;
    for (const auto extent : shape) n *= static_cast<std::size_t>(extent);
    layout.tensors.push_back({.shape = std::move(shape), .first = layout.elements, .elements = n});
    layout.elements += n;
  };
  add({40});
  add({32, 16, 3, 3});
  add({8, 5});  // too small for three triplets
  add({90, 20});
  const auto x = noise(layout.elements, 8);
  OneRank run{"atomo", layout};
  const auto y = run(x, 4);
  EXPECT_EQ(run.bytes, 8 + 2 * 4 + 4 * (40 + 40 + run.count(0) * (1 + 32 + 144) + run.count(1) * (1 + 90 + 20)));
  for (const std::size_t exact : {0U, 2U}) {
    const auto& tensor = layout.tensors[exact];
    for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i) EXPECT_EQ(y[i], x[i]);
  }
  // A tensor's draws do not depend on what the others hold.
  auto other = x;
  other[90] += 3.0F;
  const auto changed = run(other, 4);
  const auto& last = layout.tensors[3];
  for (std::size_t i = last.first; i < last.first + last.elements; ++i) EXPECT_EQ(changed[i], y[i]);
  TaskPool pool{3};
  EXPECT_EQ(run(x, 4, {&pool}), y);
}

TEST(Atomo, NotANumberStaysInItsTensor) {
  Layout layout = Layout::matrix(32, 32);
  layout.tensors.push_back(layout.tensors[0]);
  layout.tensors[1].first = 1024;
  layout.elements = 2048;
  auto x = noise(2048, 2);
  x[77] = NAN;
  OneRank run{"atomo", layout};
  const auto y = run(x, 1);
  for (std::size_t i = 0; i < 2048; ++i) EXPECT_EQ(std::isnan(y[i]), i < 1024) << i;
}

TEST(Atomo, TripletsBeyondTheRankAreRefused) {
  OneRank run{"atomo", Layout::matrix(32, 40)};
  const auto x = noise(32 * 40, 2);
  auto y = run(x, 1);
  const std::uint32_t wrong = 33;
  std::memcpy(run.payload.data() + 8, &wrong, sizeof wrong);
  EXPECT_THROW(run.codec->decode_add({}, run.payload.first(run.bytes), 1.0F, {y.data(), y.size()}, run.scratch), Error);
}

}  // namespace
}  // namespace gradtool::test
