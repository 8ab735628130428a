#include <gtest/gtest.h>

#include <numeric>

#include "feed.hpp"
#include "lib/analysis/correlation.hpp"
#include "lib/analysis/slices.hpp"

namespace gradtool::test {
namespace {

std::vector<Table> correlation_of(const Capture& capture, std::size_t samples = 128, std::size_t pieces = 1,
                                  std::size_t taps = 0) {
  const auto analysis = make_correlation(capture.scope, samples, taps);
  return run(*analysis, capture, pieces);
}

TensorInfo convolution(std::vector<std::int64_t> shape) {
  TensorInfo info;
  info.shape = std::move(shape);
  info.kind = "conv";
  info.layout = "OIHW";
  info.elements = 1;
  for (const auto extent : info.shape) info.elements *= static_cast<std::uint64_t>(extent);
  return info;
}

TEST(Gram, MatchesTheNaiveSumsForEveryShape) {
  for (const std::size_t rows : {1, 2, 3, 7, 8}) {
    for (const std::size_t columns : {1, 2, 511, 512, 513, 1029}) {
      const auto values = normal(rows * (columns + 3), 3);
      std::vector<double> gram(rows * rows);
      add_gram({values.data(), rows, columns, columns + 3}, gram);
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < rows; ++j) {
          const double* a = &values[i * (columns + 3)];
          const double* b = &values[j * (columns + 3)];
          EXPECT_NEAR(gram[i * rows + j], std::inner_product(a, a + columns, b, 0.0), 1e-11);
          EXPECT_NEAR(dot(a, b, columns), std::inner_product(a, a + columns, b, 0.0), 1e-11);
        }
      }
    }
  }
}

TEST(Slicing, FollowsTheTransposedOrderOfAConvolution) {
  // 4 filters, depth 2, 3 x 3: HWIO position ((h 3 + w) 2 + d) 4 + f, slices of one kernel row: K = 3 * 2 * 4 = 24.
  const Slicing slicing{convolution({4, 2, 3, 3}), 0};
  EXPECT_TRUE(slicing.transposed());
  EXPECT_EQ(slicing.slices(), 3U);
  EXPECT_EQ(slicing.slice_elements(), 24U);
  std::uint64_t index = 0;
  for (std::size_t f = 0; f < 4; ++f) {
    for (std::size_t d = 0; d < 2; ++d) {
      for (std::size_t h = 0; h < 3; ++h) {
        for (std::size_t w = 0; w < 3; ++w, ++index) {
          EXPECT_EQ(slicing.slice_of(index), (((h * 3 + w) * 2 + d) * 4 + f) / 24);
        }
      }
    }
  }
  const Slicing uneven{convolution({4, 2, 3, 3}), 4};  // 4 + 4 + 1 taps
  EXPECT_EQ(uneven.slices(), 3U);
  EXPECT_EQ(uneven.elements_of(0), 32U);
  EXPECT_EQ(uneven.elements_of(2), 8U);
  EXPECT_EQ(Slicing(convolution({4, 2, 3, 3}), 100).slices(), 1U);
}

/// The columns of a slice, in closed form, against every element's own slice: for parts that begin and end anywhere.
TEST(Slicing, FindsTheColumnsOfASliceInAnyPart) {
  TensorInfo linear;
  linear.shape = {9001};
  linear.kind = "linear";
  linear.elements = 9001;
  const TensorInfo tensors[] = {convolution({4, 2, 3, 3}), convolution({3, 5, 1, 1}), linear};
  for (const auto& tensor : tensors) {
    for (const std::size_t taps : {0, 2, 4, 100}) {
      const Slicing slicing{tensor, taps};
      const std::uint64_t n = tensor.elements;
      for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, n / 3, n - 2}) {
        for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{2}, (n - first) / 2 + 1, n - first}) {
          std::uint64_t seen = 0;
          for (std::size_t s = 0; s < slicing.slices(); ++s) {
            const auto columns = slicing.columns(s, first, count);
            std::uint64_t next = first;  // they ascend
            for (std::uint64_t c = 0; c < columns.count; ++c) {
              const std::uint64_t index = first + columns.offset(c);
              ASSERT_GE(index, next);
              ASSERT_LT(index, first + count);
              ASSERT_EQ(slicing.slice_of(index), s) << "element " << index;
              next = index + 1;
            }
            seen += columns.count;
          }
          ASSERT_EQ(seen, count) << "taps " << taps << " first " << first;
        }
      }
    }
  }
}

TEST(Slicing, CutsOtherTensorsContiguously) {
  TensorInfo linear;
  linear.kind = "linear";
  linear.layout = "OI";
  linear.shape = {100, 100};
  linear.elements = 10000;
  const Slicing slicing{linear, 0};
  EXPECT_FALSE(slicing.transposed());
  EXPECT_EQ(slicing.slices(), 3U);
  EXPECT_EQ(slicing.elements_of(2), 10000U - 2 * 4096);
  EXPECT_EQ(slicing.slice_of(4095), 0U);
  EXPECT_EQ(slicing.slice_of(4096), 1U);
  linear.elements = 1 << 20;
  EXPECT_EQ(Slicing(linear, 0).slices(), 16U);
  linear.elements = 1;
  EXPECT_EQ(Slicing(linear, 0).slices(), 1U);
}

TEST(Correlation, PlantedRankIsFound) {
  constexpr std::size_t kSteps = 20, kRank = 3, kN = 600;
  const auto basis = normal(kRank * kN, 10), weight = normal(kSteps * kRank, 11);
  Capture capture{kSteps, 2};
  capture.add(vector_of(kN), [&](std::size_t s, std::size_t w, std::size_t i) {
    double x = 1.0 + (w == 0 ? 0.25 : -0.25);  // cancels in the mean over workers; the 1 in that over steps
    for (std::size_t r = 0; r < kRank; ++r) x += weight[s * kRank + r] * basis[r * kN + i];
    return x;
  });
  const auto tables = correlation_of(capture);
  EXPECT_LE(number(tables[0], 0, "components_99"), kRank);
  EXPECT_NEAR(number(tables[0], 0, "explained_4"), 1.0, 1e-12);
  EXPECT_LE(number(tables[0], 0, "effective_rank"), kRank + 1e-6);
  EXPECT_GT(number(tables[0], 0, "effective_rank"), 1.5);
  EXPECT_LT(number(tables[0], 0, "holdout_nmse"), 0.02);
  EXPECT_GT(number(tables[0], 0, "gradiveq_ratio"), kN / kRank - 1e-9);
  EXPECT_GT(number(tables[1], kRank - 1, "share"), 1e-3);
  EXPECT_LT(number(tables[1], kRank, "share"), 1e-10);
  EXPECT_EQ(tables[1].rows().size(), kSteps - 1);
}

TEST(Correlation, NoiseHasFullRankAndNothingCarriesOver) {
  constexpr std::size_t kSteps = 16, kN = 4000;
  const auto noise = normal(kSteps * kN, 12);
  Capture capture{kSteps, 1};
  capture.add(vector_of(kN), [&](std::size_t s, auto, std::size_t i) { return noise[s * kN + i]; });
  const auto tables = correlation_of(capture);
  EXPECT_EQ(number(tables[0], 0, "components_99"), kSteps - 1);
  EXPECT_EQ(number(tables[0], 0, "components_limit"), kSteps - 1);
  EXPECT_GT(number(tables[0], 0, "effective_rank"), kSteps - 1.1);
  EXPECT_NEAR(number(tables[0], 0, "holdout_nmse"), 1.0 + 1.0 / 8, 0.05);  // the training mean's own noise comes on top
  EXPECT_TRUE(is_empty(tables[0], 0, "worker_pearson_mean"));
  EXPECT_NEAR(number(tables[0], 0, "step_pearson_mean_gradient"), 0.0, 0.02);
}

TEST(Correlation, EigenvaluesAreVariancesAlongAxes) {
  // Element 0 is +-2, element 1 is +-1, uncorrelated over four steps: sample variances 16/3 and 4/3.
  Capture capture{4, 1};
  const double axis0[] = {2, 2, -2, -2}, axis1[] = {1, -1, 1, -1};
  capture.add(vector_of(2), [&](std::size_t s, auto, std::size_t i) { return i == 0 ? axis0[s] : axis1[s]; });
  const auto tables = correlation_of(capture);
  ASSERT_EQ(tables[1].rows().size(), 2U);
  EXPECT_NEAR(number(tables[1], 0, "eigenvalue"), 16.0 / 3, 1e-12);
  EXPECT_NEAR(number(tables[1], 1, "eigenvalue"), 4.0 / 3, 1e-12);
  EXPECT_NEAR(number(tables[1], 0, "share"), 0.8, 1e-12);
  EXPECT_NEAR(number(tables[1], 1, "cumulative_share"), 1.0, 1e-12);
}

TEST(Correlation, KnownPearsonBetweenWorkersAndSteps) {
  constexpr std::size_t kSteps = 8, kWorkers = 3, kN = 50000;
  const auto common = normal(kN, 20), slow = normal(kN, 21), own = normal(kSteps * kWorkers * kN, 22);
  // variance 1 common to all workers and steps, 1 of its own: correlation 1/2 anywhere.
  Capture capture{kSteps, kWorkers};
  capture.add(vector_of(kN), [&](std::size_t s, std::size_t w, std::size_t i) {
    return 5 + common[i] + own[(s * kWorkers + w) * kN + i];
  });
  // Worker 2 opposes the others.
  capture.add(vector_of(kN), [&](auto, std::size_t w, std::size_t i) { return w == 2 ? -slow[i] : slow[i]; });
  const auto tables = correlation_of(capture);
  EXPECT_NEAR(number(tables[0], 0, "worker_pearson_mean"), 0.5, 0.005);
  EXPECT_NEAR(number(tables[0], 0, "worker_pearson_min"), 0.5, 0.01);
  EXPECT_NEAR(number(tables[0], 0, "step_pearson_per_worker"), 0.5, 0.005);
  EXPECT_NEAR(number(tables[0], 0, "step_pearson_mean_gradient"), 1 / (1 + 1.0 / kWorkers), 0.005);
  EXPECT_NEAR(number(tables[0], 1, "worker_pearson_mean"), (1 - 1 - 1) / 3.0, 1e-12);
  EXPECT_NEAR(number(tables[0], 1, "worker_pearson_min"), -1.0, 1e-12);
  EXPECT_NEAR(number(tables[0], 1, "step_pearson_per_worker"), 1.0, 1e-12);
}

/// Pairs of many workers are sampled, and the row says how; the mean over workers covers all of them.
TEST(Correlation, SomeOfManyWorkersStandForAll) {
  constexpr std::size_t kSteps = 3, kWorkers = 300, kN = 2000;
  const auto common = normal(kN, 40), own = normal(kSteps * kWorkers * kN, 41);
  Capture capture{kSteps, kWorkers};
  capture.add(vector_of(kN), [&](std::size_t s, std::size_t w, std::size_t i) {
    return common[i] + own[(s * kWorkers + w) * kN + i];
  });
  // Only worker 1, which is not compared, has values; the mean over all workers repeats in every step.
  capture.add(vector_of(kN), [&](auto, std::size_t w, std::size_t i) { return w == 1 ? common[i] : 0.0; });
  const auto tables = correlation_of(capture, 128, 2);
  for (const std::size_t row : {0, 1, 2}) {
    EXPECT_EQ(number(tables[0], row, "compared_workers"), 128);
    EXPECT_EQ(to_text(tables[0].at(row, "message")), "workers compared: 128 of 300, evenly spaced, 8128 pairs");
  }
  EXPECT_NEAR(number(tables[0], 0, "worker_pearson_mean"), 0.5, 0.03);
  EXPECT_NEAR(number(tables[0], 0, "step_pearson_per_worker"), 0.5, 0.03);
  EXPECT_NEAR(number(tables[0], 0, "step_pearson_mean_gradient"), 1 / (1 + 1.0 / kWorkers), 0.005);
  EXPECT_TRUE(is_empty(tables[0], 1, "worker_pearson_mean"));
  EXPECT_NEAR(number(tables[0], 1, "step_pearson_mean_gradient"), 1.0, 1e-12);
}

TEST(Correlation, ComparedWorkersAreBoundedAndSpreadOut) {
  for (const std::size_t workers : {1, 2, 3, 127, 128, 129, 20000, 1 << 20}) {
    for (const std::size_t steps : {1, 512, 10000, 1 << 22}) {
      const auto compared = ComparedWorkers::choose(workers, steps);
      EXPECT_GE(compared.count, std::min<std::size_t>(workers, 2));
      EXPECT_LE(compared.count, std::min<std::size_t>(workers, 128));
      if (steps <= 512) EXPECT_EQ(compared.count, std::min<std::size_t>(workers, 128));
      if (compared.count > 2) EXPECT_LE(compared.count * compared.count * steps, std::size_t{8} << 20);
      EXPECT_EQ(compared[0], 0U);
      for (std::size_t i = 1; i < compared.count; ++i) EXPECT_GT(compared[i], compared[i - 1]);
      EXPECT_LT(compared[compared.count - 1], workers);
    }
  }
}

TEST(Correlation, PartsJoinToTheWhole) {
  constexpr std::size_t kSteps = 6, kWorkers = 3;
  const auto noise = normal(kSteps * kWorkers * 5000, 30);
  Capture capture{kSteps, kWorkers};
  const auto value = [&](std::size_t s, std::size_t w, std::size_t i) {
    return 100 + noise[(s * kWorkers + w) * 5000 + i] + noise[i] * static_cast<double>(i % 7);
  };
  capture.add(convolution({20, 10, 3, 3}), value);
  capture.add(vector_of(5000), value);
  capture.add(vector_of(3), value);
  const auto whole = correlation_of(capture);
  for (const std::size_t pieces : {2, 7, 64}) {
    const auto parts = correlation_of(capture, 128, pieces);
    for (std::size_t t = 0; t < whole.size(); ++t) EXPECT_EQ(difference(whole[t], parts[t], 1e-9, 1e-3), "") << pieces;
  }
}

TEST(Correlation, SamplesAreCappedAndShortFilesSayWhatIsMissing) {
  const auto noise = normal(40 * 50, 31);
  Capture long_file{40, 1};
  long_file.add(vector_of(50), [&](std::size_t s, auto, std::size_t i) { return noise[s * 50 + i]; });
  auto tables = correlation_of(long_file, 10);
  EXPECT_EQ(number(tables[0], 0, "samples"), 10);
  EXPECT_EQ(tables[1].rows().size(), 9U);

  Capture one_step{1, 1};
  one_step.add(vector_of(50), [&](auto, auto, std::size_t i) { return noise[i]; });
  tables = correlation_of(one_step);
  for (const char* column : {"step_pearson_mean_gradient", "worker_pearson_mean", "explained_1", "components_99",
                             "effective_rank", "holdout_nmse", "gradiveq_ratio"}) {
    EXPECT_TRUE(is_empty(tables[0], 0, column)) << column;
  }
  EXPECT_EQ(to_text(tables[0].at(0, "message")), "one captured step: nothing between steps");
}

TEST(Correlation, ConstantsHaveNoCorrelationAndNoVariance) {
  Capture capture{5, 2};
  capture.add(vector_of(30, "constant"), [](auto, auto, auto) { return 0.1; });
  capture.add(vector_of(1, "one"), [](std::size_t s, auto, auto) { return static_cast<double>(s); });
  capture.add(vector_of(30, "same every step"), [](auto, auto, std::size_t i) { return 0.1 * static_cast<double>(i); });
  capture.add(vector_of(5, "bad"), [](auto, auto, auto) { return INFINITY; });
  const auto tables = correlation_of(capture, 128, 4);
  EXPECT_TRUE(is_empty(tables[0], 0, "worker_pearson_mean"));
  EXPECT_TRUE(is_empty(tables[0], 0, "explained_1"));
  EXPECT_EQ(number(tables[0], 0, "components_99"), 0);
  EXPECT_TRUE(is_empty(tables[0], 1, "step_pearson_mean_gradient"));
  EXPECT_NEAR(number(tables[0], 1, "explained_1"), 1.0, 1e-12);
  EXPECT_NEAR(number(tables[0], 2, "step_pearson_per_worker"), 1.0, 1e-12);
  EXPECT_TRUE(is_empty(tables[0], 2, "explained_1"));
  EXPECT_EQ(to_text(tables[0].at(3, "status")), "skipped");
  EXPECT_EQ(to_text(tables[0].at(3, "message")), "50 of 50 values are not finite");
}

}  // namespace
}  // namespace gradtool::test
