// A codec's state begins anew with every window of a capture, and the worst window judges.
#include "lib/bench/windows.hpp"
#include "lib/advice/record.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/bench/bench.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/result.hpp"
#include "lib/bench/rows.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kWindowRows = 16;

/// A matrix of 16 x 16 in steps that are given: of rank 1 in iterations below 100, of full rank later.
class TwoPhases final : public GradientSource {
 public:
  explicit TwoPhases(const std::vector<std::int64_t>& iterations) {
    for (const std::int64_t iteration : iterations) steps_.push_back({.iteration = iteration});
    info_.workers = 2;
    tensors_.push_back({.name = "w",
                        .shape = {kWindowRows, kWindowRows},
                        .kind = "linear",
                        .layout = "OI",
                        .elements = kWindowRows * kWindowRows});
  }

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] const FileInfo& info() const override { return info_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return steps_; }

  void read(const ArrayPart& part, std::span<float> out) const override {
    const std::int64_t iteration = steps_[part.step].iteration;
    for (std::size_t k = 0; k < out.size(); ++k) {
      const std::size_t i = (part.first + k) / kWindowRows, j = (part.first + k) % kWindowRows;
      const float scale = 1.0F + 0.1F * static_cast<float>(part.worker) + 0.01F * static_cast<float>(iteration % 10);
      const float outer = static_cast<float>((i + 1) * (j + 2)) / 100.0F;
      out[k] = iteration < 100 ? scale * outer : (i == j ? scale : 0.0F);
    }
  }

 private:
  std::string path_ = "two_phases.h5";
  FileInfo info_;
  std::vector<TensorInfo> tensors_;
  std::vector<StepInfo> steps_;
};

ResultRow bench(const std::vector<std::int64_t>& iterations, const char* codec) {
  const TwoPhases source{iterations};
  BenchOptions options;
  BenchCut cut{.source = source, .name = "tensor", .selection = {.tensors = {0}, .skipped = {}}};
  cut.units = make_units(source.tensors(), {0}, Granularity::parse("tensor"));
  cut.elements = kWindowRows * kWindowRows;
  Measurement measurement{parse_codec(codec), Timing::isolated};
  measurement.result = run_replay({}, {.options = options,
                                       .reader = source,
                                       .units = cut.units,
                                       .codec = measurement.spec,
                                       .ranks = 2,
                                       .stop = {.min_samples = 3, .max_noise = 1e300, .timeout_seconds = 1e9}});
  measurement.rounds = {measurement.result.samples.size()};
  return RowMaker{options, {"run", 2, 1, "", 1e9}}.rows_of(cut, measurement).front();
}

TEST(Windows, EndWhereIterationsAreMissingButNotWhereTheyOverflowed) {
  std::vector<StepInfo> steps(5);
  const std::int64_t iterations[] = {3, 4, 10, 12, 13};
  for (std::size_t s = 0; s < steps.size(); ++s) steps[s].iteration = iterations[s];
  steps[3].overflowed_before = 1;
  const auto windows = windows_of(steps, 5);
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[0].end, 2U);
  EXPECT_EQ(windows[1].begin, 2U);
  EXPECT_EQ(windows[1].end, 5U);
  EXPECT_EQ(windows_of(steps, 3).back().end, 3U);
}

// Codecs that draw nothing, because draws differ with the position of a step in the file.
TEST(Windows, EndAtGapsWiderThanTheCapturesOwnDistance) {
  std::vector<StepInfo> steps;
  for (const std::int64_t iteration : {0, 10, 20, 50, 60}) steps.push_back({.iteration = iteration});
  EXPECT_EQ(stride_of(steps, 5), 10);
  ASSERT_EQ(windows_of(steps, 5).size(), 2U);
  EXPECT_EQ(windows_of(steps, 5)[1].begin, 3U);
  EXPECT_EQ(windows_of(steps, 3).size(), 1U);
  EXPECT_EQ(stride_of(steps, 1), 1);
  EXPECT_NE(phases_text(bench({0, 10, 20}, "topk")).find("One of every 10 iterations"), std::string::npos);
}

TEST(Windows, APartHasTheFirstStepsOfEach) {
  const TwoPhases whole{{3, 4, 5, 6, 7, 8, 9, 10, 200, 201, 202, 203, 204, 205, 206, 207, 300}};
  const auto windows = windows_of(whole.steps(), whole.steps().size());
  EXPECT_EQ(part_of_windows(windows, 1), (std::vector<std::size_t>{0, 1, 8, 9, 16}));
  EXPECT_EQ(part_of_windows(windows, 8), (std::vector<std::size_t>{0, 1, 2, 8, 9, 10, 16}));
  EXPECT_EQ(part_of_windows(windows, 17).size(), 17U);
  const PartOfSteps part{whole, 8};
  EXPECT_EQ(windows_of(part.steps(), part.steps().size()).size(), 3U);
  float in_part = 0.0F, in_whole = 0.0F;
  part.read_gradient_part(0, 3, 1, 7, {&in_part, 1});
  whole.read_gradient_part(0, 8, 1, 7, {&in_whole, 1});
  EXPECT_EQ(in_part, in_whole);
}

/// --steps 12:200 leaves one step of each window, which lie as far apart as any two of those.
TEST(Windows, AreTheSourcesWhereStepsAreChosen) {
  const TwoPhases whole{{10, 11, 12, 200, 201}};
  const PartOfSteps two{whole, IterationRange{12, 200}}, three{whole, IterationRange{11, 200}};
  ASSERT_EQ(two.steps().size(), 2U);
  EXPECT_EQ(windows_of(two.steps(), 2).size(), 2U);
  EXPECT_EQ(stride_of(two.steps(), 2), 1);
  EXPECT_EQ(windows_of(three.steps(), 3).size(), 2U);
  EXPECT_EQ(windows_of(PartOfSteps{whole, IterationRange{10, 12}}.steps(), 3).size(), 1U);
}

TEST(Windows, CarryNoResidualOverAGap) {
  for (const char* codec : {"topk:ratio=0.05,ef=on", "signsgd"}) {
    const ResultRow both = bench({10, 11, 12, 200, 201}, codec);
    const ResultRow early = bench({10, 11, 12}, codec), late = bench({200, 201}, codec);
    ASSERT_EQ(both.steps.size(), 5U);
    for (std::size_t s = 0; s < 5; ++s) {
      const StepErrors& alone = s < 3 ? early.steps[s] : late.steps[s - 3];
      EXPECT_EQ(both.steps[s].sums.error, alone.sums.error) << codec << " " << s;
      EXPECT_EQ(both.steps[s].cumulative_error, alone.cumulative_error) << codec << " " << s;
    }
    EXPECT_EQ(both.cumulative_nmse, std::max(early.cumulative_nmse, late.cumulative_nmse)) << codec;
  }
}

TEST(Windows, AreSeveralPhasesOnlyWhereTheTrainingWentOnBetween) {
  EXPECT_TRUE(are_phases({15, 22}, {292, 299}));
  EXPECT_TRUE(are_phases({0, 7}, {100, 107}));
  EXPECT_FALSE(are_phases({10, 17}, {20, 27}));
  EXPECT_FALSE(are_phases({50'000, 50'007}, {50'200, 50'207}));
  const ResultRow near = bench({10, 11, 12, 20, 21}, "powersgd:rank=2");
  EXPECT_EQ(near.windows, 2U);
  EXPECT_FALSE(has_phases(near));
  EXPECT_NE(phases_text(near).find("so close that they show one phase"), std::string::npos);
  // A record of before has the first iteration and the last alone.
  ResultRow old = bench({10, 11, 12, 200, 201}, "powersgd:rank=2");
  EXPECT_TRUE(has_phases(old));
  old.window_iterations.clear();
  EXPECT_TRUE(has_phases(old));
}

TEST(Windows, TheWorstJudges) {
  const ResultRow early = bench({10, 11, 12}, "powersgd:rank=2");
  const ResultRow both = bench({10, 11, 12, 200, 201}, "powersgd:rank=2");
  EXPECT_LT(judged_error(early), 1e-6);
  EXPECT_GT(judged_error(both), 0.5);
  EXPECT_GT(worst_step_error(both), both.errors->nmse());
  EXPECT_EQ(both.windows, 2U);
  ASSERT_TRUE(both.worst_window);
  EXPECT_EQ(both.worst_window->first, 200);
  EXPECT_EQ(iterations_text(both), "iterations 10 to 12 and 200 to 201");
  EXPECT_NE(phases_text(early).find("one phase"), std::string::npos);
  EXPECT_EQ(phases_text(both).find("one phase"), std::string::npos);
  const Table steps = steps_table({&both, 1});
  ASSERT_EQ(steps.rows().size(), 5U);
  for (std::size_t s = 0; s < 5; ++s) EXPECT_EQ(steps.at(s, "window"), Cell{std::int64_t{s < 3 ? 0 : 1}}) << s;
  BenchReport report;
  report.rows = {both};
  const auto json = record({}, report)["rows"][0];
  EXPECT_EQ(json["window_iterations"].dump(), "[[10,12],[200,201]]");
  EXPECT_EQ(json["steps"][2]["window"], 0);
  EXPECT_EQ(json["steps"][3]["window"], 1);
}

}  // namespace
}  // namespace gradtool::test
