#include <gtest/gtest.h>

#include <cmath>

#include "feed.hpp"

namespace gradtool::test {
namespace {

TEST(Certainty, SignsOfWorkers) {
  Capture capture{2, 4};
  capture.add(vector_of(4), [](auto, std::size_t w, std::size_t i) {
    if (i == 0) return 1.0;                  // all alike
    if (i == 1) return w == 3 ? -1.0 : 1.0;  // three against one
    if (i == 2) return w < 2 ? -1.0 : 1.0;   // two against two
    return 0.0;                              // no sign at all
  });
  const auto noise = normal(4 * 20'000, 4);
  capture.add(vector_of(20'000), [&](auto, std::size_t w, std::size_t i) { return noise[w * 20'000 + i]; });
  const auto tables = run(*make_certainty(capture.scope), capture);
  EXPECT_NEAR(number(tables[0], 0, "sign_unanimous_share"), 1.0 / 3, 1e-12);
  EXPECT_NEAR(number(tables[0], 0, "sign_majority"), (1 + 0.5 + 0) / 3, 1e-12);
  EXPECT_EQ(number(tables[0], 0, "chance_unanimous_share"), 2.0 / 16);
  EXPECT_NEAR(number(tables[0], 0, "chance_majority"), (2 * 1 + 8 * 0.5) / 16, 1e-12);
  EXPECT_NEAR(number(tables[0], 1, "sign_unanimous_share"), 2.0 / 16, 0.01);
  EXPECT_NEAR(number(tables[0], 1, "sign_majority"), 6.0 / 16, 0.01);
}

TEST(Certainty, WaitingOfKnownGradients) {
  // G = 1 and v = 4.5 at every step: after k steps (k G)^2 > alpha v (1 + zeta + ...), about k 4.5: k = 5 at alpha 1.
  Capture capture{20, 1, 4};
  const auto one = [](auto, auto, auto) { return 1.0; };
  capture.add(vector_of(3, "waits"), one, [](auto, auto, auto) { return 4.5; });
  capture.add(vector_of(3, "clear"), one, [](auto, auto, auto) { return 0.3; });
  const auto tables = run(*make_certainty(capture.scope), capture, 2);
  const Table& alphas = tables[1];
  const auto waits = row_of(alphas, "alpha", "1", "waits");
  EXPECT_EQ(number(alphas, waits, "pass_share"), 0);
  EXPECT_EQ(number(alphas, waits, "wait_steps"), 5);
  EXPECT_NEAR(number(alphas, waits, "sent_share"), 0.2, 1e-12);
  EXPECT_EQ(number(alphas, waits, "never_share"), 0);
  EXPECT_EQ(number(alphas, row_of(alphas, "alpha", "2", "waits"), "wait_steps"), 9);
  const auto clear = row_of(alphas, "alpha", "2", "clear");
  EXPECT_EQ(number(alphas, clear, "pass_share"), 1);
  EXPECT_EQ(number(alphas, clear, "wait_steps"), 1);
  EXPECT_EQ(number(alphas, row_of(alphas, "alpha", "5", "clear"), "pass_share"), 0);
  EXPECT_TRUE(is_empty(alphas, row_of(alphas, "alpha", "5", "clear"), "sent_share")) << "not simulated";
  EXPECT_TRUE(is_empty(tables[0], 0, "sign_majority")) << "one worker agrees with itself";
}

TEST(Certainty, WorkersAsSamples) {
  const std::size_t n = 50'000, workers = 4;
  const auto noise = normal(n * workers, 11);
  Capture capture{1, workers};
  capture.add(vector_of(n), [&](auto, std::size_t w, std::size_t i) { return noise[w * n + i]; });
  const auto tables = run(*make_certainty(capture.scope), capture);
  // |t| > 1 with three degrees of freedom
  EXPECT_NEAR(number(tables[1], row_of(tables[1], "alpha", "1", "t0"), "pass_share"), 0.391, 0.01);
}

TEST(Losses, PacketsOfKnownEnergy) {
  // Ten packets with energies 1 .. 10.
  Capture capture{3, 2};
  capture.add(vector_of(3600),
              [](auto, auto, std::size_t i) { return std::sqrt(static_cast<double>(i / 360 + 1) / 360); });
  capture.add(vector_of(90), [](auto, auto, auto) { return 1.0; });
  const auto tables = run(*make_losses(capture.scope), capture);
  const auto nmse = [&](const std::string& tensor, const std::string& which, const std::string& lost) {
    for (std::size_t r = 0; r < tables[1].rows().size(); ++r) {
      if (to_text(tables[1].at(r, "tensor")) == tensor && to_text(tables[1].at(r, "which")) == which &&
          to_text(tables[1].at(r, "lost")) == lost)
        return number(tables[1], r, "nmse");
    }
    throw std::runtime_error("no such row");
  };
  EXPECT_NEAR(nmse("t0", "smallest", "0.1"), 1 / 55.0, 1e-6);
  EXPECT_NEAR(nmse("t0", "largest", "0.1"), 10 / 55.0, 1e-6);
  EXPECT_NEAR(nmse("t0", "largest", "0.2"), 19 / 55.0, 1e-6);
  EXPECT_NEAR(nmse("t0", "smallest", "0.05"), 0.5 / 55.0, 1e-6) << "half a packet";
  EXPECT_NEAR(nmse("t0", "random", "0.3"), 0.3, 1e-12);
  for (const char* which : {"smallest", "random", "largest"})
    EXPECT_NEAR(nmse("t1", which, "0.2"), 0.2, 1e-12) << "a share of the only packet";
  EXPECT_NEAR(number(tables[0], 0, "lost_largest_10"), 10 / 55.0, 1e-6);
  EXPECT_TRUE(is_empty(tables[0], 0, "importance_q50")) << "no weights";
}

TEST(Losses, ImportanceOfKnownRatios) {
  Scope scope;
  scope.file = "memory", scope.workers = 1;
  TensorInfo info = vector_of(1000);
  info.elements = 1000, info.has_weight = true, info.name = "t";
  scope.tensors.push_back(info);
  const auto analysis = make_losses(scope);
  ASSERT_TRUE(analysis->needs_weight(0));
  std::vector<float> gradient(1000), weight(1000);
  for (std::size_t i = 0; i < 1000; ++i)
    gradient[i] = static_cast<float>(i + 1) * (i % 2 ? -1e-3F : 1e-3F), weight[i] = 1;
  gradient[999] = 0, weight[999] = 0;  // has no ratio
  weight[998] = 0;                     // an infinite one
  auto accumulator = analysis->start({0, 0, 1000, 0, 1});
  accumulator->observe({0, 0, 0, gradient, {}, weight});
  accumulator->close();
  analysis->finish(0, *accumulator);
  const auto tables = analysis->tables();
  EXPECT_NEAR(number(tables[0], 0, "importance_q50"), 0.5, 1e-6);
  EXPECT_NEAR(number(tables[0], 0, "importance_q99"), 0.990, 1e-6);
  EXPECT_NEAR(number(tables[0], 0, "above_0_1"), 900.0 / 999, 1e-9);
  EXPECT_EQ(tables[2].rows().size(), 2U);
}

}  // namespace
}  // namespace gradtool::test
