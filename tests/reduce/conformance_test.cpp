// What every codec must do between ranks and over steps, run over the registry with the scheme it rides by default.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

std::vector<std::string> reducer_specs() {
  std::vector<std::string> specs;
  for (const auto* codec : codecs()) {
    if (codec->aggregation != Aggregation::own) specs.emplace_back(codec->name);
  }
  for (const auto& spec : own_specs()) specs.push_back(spec);
  return specs;
}

class ReducerConformance : public testing::TestWithParam<std::string> {};

TEST_P(ReducerConformance, EveryRankEndsWithTheSameFiniteBits) {
  for (const int ranks : {1, 2, 3, 5}) {
    const auto out = run_model({.codec = GetParam(), .ranks = ranks, .steps = 3});
    for (std::size_t step = 0; step < 3; ++step) {
      for (const auto& rank : out.results) {
        for (std::size_t i = 0; i < rank[step].size(); ++i) {
          ASSERT_TRUE(std::isfinite(rank[step][i])) << ranks << " ranks, step " << step << ", element " << i;
          ASSERT_EQ(std::bit_cast<std::uint32_t>(rank[step][i]), std::bit_cast<std::uint32_t>(out.results[0][step][i]))
              << ranks << " ranks, step " << step << ", element " << i;
        }
      }
    }
    EXPECT_LT(model_nmse(out), 4.0) << ranks << " ranks: the result has little to do with the gradient";
  }
}

TEST_P(ReducerConformance, WorksWithoutSideInputs) {
  const auto out = run_model({.codec = GetParam(), .steps = 2, .side_inputs = false});
  for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]);
  const auto* descriptor = parse_codec(GetParam()).descriptor;
  if (descriptor->needs_weight || descriptor->needs_second_moment)
    EXPECT_FALSE(out.note.empty()) << "a missing input must be said";
}

TEST_P(ReducerConformance, DoesNotDependOnThreads) {
  const auto one = run_model({.codec = GetParam(), .steps = 2});
  const auto three = run_model({.codec = GetParam(), .steps = 2, .threads = 3});
  EXPECT_EQ(one.results, three.results);
}

TEST_P(ReducerConformance, ResetForgets) {
  const auto once = [](int, int) { return model_gradient(small_model().elements, 1, 4); };
  const auto out = run_model({.codec = GetParam(), .steps = 2, .gradient = once, .resets_at = 1});
  // The key differs from step to step, so only methods that draw nothing give the same bits; sizes must match for all
  // whose sizes do not depend on draws.
  const auto again = run_model({.codec = GetParam(), .steps = 2, .gradient = once, .resets_at = 1});
  EXPECT_EQ(out.results, again.results);
  const auto fresh = run_model({.codec = GetParam(), .steps = 1, .gradient = once});
  EXPECT_EQ(out.results[0][0], fresh.results[0][0]);
  if (out.residuals[0].empty() || parse_codec(GetParam()).descriptor->unbiased) return;
  double first = 0.0;
  double second = 0.0;
  for (std::size_t i = 0; i < out.residuals[0].size(); ++i) {
    first += std::abs(static_cast<double>(fresh.residuals[0][i]));
    second += std::abs(static_cast<double>(out.residuals[0][i]));
  }
  EXPECT_NEAR(second, first, 0.35 * first + 1e-12) << "state survived the reset";
}

TEST_P(ReducerConformance, DegenerateGradientsStayFinite) {
  const std::size_t n = small_model().elements;
  const std::vector<std::pair<const char*, std::vector<float>>> inputs{
      {"zeros", std::vector<float>(n, 0.0F)},
      {"constant", std::vector<float>(n, 0.25F)},
      {"denormal", std::vector<float>(n, 1e-40F)},
      {"outlier",
       [n] {
         std::vector<float> x(n, 1e-6F);
         x[n / 2] = 32.0F;
         return x;
       }()},
      {"one rank only", {}},
  };
  for (const auto& [what, x] : inputs) {
    const auto out = run_model({.codec = GetParam(), .steps = 3, .gradient = [&](int rank, int step) {
                                  if (!x.empty()) return x;
                                  return rank == 0 ? model_gradient(n, 0, step) : std::vector<float>(n, 0.0F);
                                }});
    for (const auto& step : out.results[0]) {
      for (const float value : step) {
        ASSERT_TRUE(std::isfinite(value)) << what;
        if (std::string_view{what} == "zeros") ASSERT_EQ(value, 0.0F);
      }
    }
  }
}

TEST_P(ReducerConformance, TakesUnitsOfAnySize) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{31}, std::size_t{33}, std::size_t{1000}}) {
    const auto out = run_model({.codec = GetParam(), .steps = 2, .layout = Layout::flat(n)});
    for (const auto& rank : out.results) ASSERT_EQ(rank, out.results[0]) << n;
    for (const float value : out.results[0][1]) ASSERT_TRUE(std::isfinite(value)) << n;
  }
  for (const auto& [rows, columns] : {std::pair{1U, 40U}, {40U, 1U}, {3U, 5U}, {64U, 33U}}) {
    const auto out = run_model({.codec = GetParam(), .steps = 2, .layout = Layout::matrix(rows, columns)});
    for (const auto& rank : out.results) ASSERT_EQ(rank, out.results[0]) << rows << "x" << columns;
  }
}

/// Those that keep what they did not send and add it to the next step.
// Recursive doubling needs more scratch than the ring; a workspace that is too small throws.
TEST(ReducerAllReduce, DoublingFitsTheWorkspaceOfEveryCodec) {
  for (const auto& spec : reducer_specs()) {
    const auto out = run_model({.codec = spec, .steps = 2, .all_reduce = AllReduce::doubling});
    for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]) << spec;
    EXPECT_LT(model_nmse(out), 4.0) << spec;
  }
}

class ErrorFeedback : public testing::TestWithParam<std::string> {};

std::vector<std::string> feedback_specs() {
  std::vector<std::string> specs;
  for (const auto& spec : reducer_specs()) {
    if (parse_codec(spec).error_feedback) specs.push_back(spec);
  }
  return specs;
}

TEST_P(ErrorFeedback, BringsEverythingInTheEnd) {
  // Error feedback: sum of results = sum of inputs - residual / p, so the cumulative error is at most the residual's.
  const auto once = [](int rank, int) { return model_gradient(small_model().elements, rank, 0); };
  // Count sketches of the default size find nothing in a gradient as small and flat as this one.
  // Draws of the default size come by a third of the elements in 40 steps, which is not yet the end.
  const std::string text = GetParam() == "sketch"    ? "sketch:compression=1.5"
                           : GetParam() == "randomk" ? "randomk:ratio=0.1"
                                                     : GetParam();
  const auto few = run_model({.codec = text, .steps = 4, .gradient = once});
  const auto many = run_model({.codec = text, .steps = 40, .gradient = once});
  EXPECT_LT(model_nmse(many), 0.7 * model_nmse(few) + 1e-10);
}

std::string name_only(const testing::TestParamInfo<std::string>& info) {
  return test_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(Registry, ErrorFeedback, testing::ValuesIn(feedback_specs()), name_only);
INSTANTIATE_TEST_SUITE_P(Registry, ReducerConformance, testing::ValuesIn(reducer_specs()), name_only);

}  // namespace
}  // namespace gradtool::test
