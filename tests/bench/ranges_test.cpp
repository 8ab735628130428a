// A capture too large for memory is replayed range by range, which changes no figure, and takes less memory.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "lib/bench/memory.hpp"
#include "lib/bench/received.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool::test {
namespace {

ReplayResult replay(const GradientSource& source, const std::vector<Unit>& units, const char* codec,
                    std::size_t range_elements) {
  BenchOptions options;
  const ReplayPlan plan{.options = options,
                        .reader = source,
                        .units = units,
                        .codec = parse_codec(codec),
                        .ranks = 2,
                        .range_elements = range_elements,
                        .stop = {.min_samples = 3, .max_noise = 1e300, .timeout_seconds = 1e9}};
  return run_replay({}, plan);
}

void expect_same(const StepBytes& a, const StepBytes& b) {
  EXPECT_EQ(a.payload, b.payload);
  EXPECT_EQ(a.payload_max, b.payload_max);
  EXPECT_EQ(a.wire_per_rank, b.wire_per_rank);
  EXPECT_EQ(a.values_sent, b.values_sent);
  EXPECT_EQ(a.fewest_values_sent, b.fewest_values_sent);
}

/// Sums that were added in another order.
void expect_near(double a, double b) {
  EXPECT_NEAR(a, b, 1e-12 * std::abs(b));
}

class Ranges : public testing::TestWithParam<const char*> {};

TEST_P(Ranges, ChangeNoFigure) {
  const GradientReader source{GRADTOOL_SOURCE_DIR "/datasets/lenet5-fashion-mnist.h5"};
  std::vector<std::size_t> all(source.tensors().size());
  for (std::size_t t = 0; t < all.size(); ++t) all[t] = t;
  const auto units = make_units(source.tensors(), all, Granularity::parse("tensor"));
  ASSERT_GT(make_unit_ranges(units, 5000).size(), 2U);
  const ReplayResult whole = replay(source, units, GetParam(), 0);
  const ReplayResult parts = replay(source, units, GetParam(), 5000);
  ASSERT_EQ(whole.tensor_errors.size(), parts.tensor_errors.size());
  for (std::size_t t = 0; t < whole.tensor_errors.size(); ++t) {
    EXPECT_EQ(whole.tensor_errors[t].error, parts.tensor_errors[t].error);
    EXPECT_EQ(whole.tensor_errors[t].kept, parts.tensor_errors[t].kept);
    EXPECT_EQ(whole.cumulative_error[t], parts.cumulative_error[t]);
    EXPECT_EQ(whole.cumulative_energy[t], parts.cumulative_energy[t]);
  }
  ASSERT_EQ(whole.step_errors.size(), source.steps().size());
  ASSERT_EQ(parts.step_errors.size(), source.steps().size());
  for (std::size_t step = 0; step < whole.step_errors.size(); ++step) {
    EXPECT_EQ(whole.step_errors[step].sums.elements, parts.step_errors[step].sums.elements);
    expect_near(parts.step_errors[step].sums.error, whole.step_errors[step].sums.error);
    expect_near(parts.step_errors[step].cumulative_error, whole.step_errors[step].cumulative_error);
    expect_near(parts.step_errors[step].cumulative_energy, whole.step_errors[step].cumulative_energy);
    expect_near(parts.step_errors[step].residual_energy, whole.step_errors[step].residual_energy);
    expect_same(parts.step_errors[step].bytes, whole.step_errors[step].bytes);
  }
  EXPECT_EQ(parts.gradient_energy, whole.gradient_energy);
  EXPECT_EQ(parts.residual_energy, whole.residual_energy);
  EXPECT_EQ(whole.has_residual, parts.has_residual);
  EXPECT_EQ(whole.reached, parts.reached);
  EXPECT_EQ(whole.note, parts.note);
  expect_same(whole.bytes, parts.bytes);
  ASSERT_EQ(whole.units.size(), parts.units.size());
  for (std::size_t u = 0; u < whole.units.size(); ++u) {
    expect_same(whole.units[u].bytes, parts.units[u].bytes);
    for (std::size_t i = 0; i < whole.units[u].uses.size(); ++i) {
      EXPECT_EQ(whole.units[u].uses[i].calls, parts.units[u].uses[i].calls);
      EXPECT_EQ(whole.units[u].uses[i].bytes, parts.units[u].uses[i].bytes);
    }
  }
  // Three samples of every range came to three samples of a step, in which everything takes time.
  EXPECT_EQ(parts.samples.size(), 3U);
  for (const auto& sample : parts.samples) {
    EXPECT_GT(sample.phase[0], 0.0);
    EXPECT_GT(sample.phase[1], 0.0);
    EXPECT_GE(sample.total, sample.phase[0] + sample.phase[1] + sample.phase[2]);
  }
  for (const auto& unit : parts.units) EXPECT_GT(unit.encode, 0.0);
}

// Payloads of fixed and of variable size, residuals, factors that several units share nothing of, draws by unit.
INSTANTIATE_TEST_SUITE_P(Codecs, Ranges,
                         testing::Values("topk:ratio=0.01,ef=on", "qsgd", "powersgd:rank=2", "dgc", "signsgd", "vgc"));

/// Means of another program are compared in the same ranges.
TEST(ReceivedMeans, AreThoseOfAReplayInAnyRanges) {
  const GradientReader source{GRADTOOL_SOURCE_DIR "/datasets/lenet5-fashion-mnist.h5"};
  BenchCut cut{.source = source, .name = "tensor"};
  for (std::size_t t = 0; t < source.tensors().size(); ++t) cut.selection.tensors.push_back(t);
  cut.units = make_units(source.tensors(), cut.selection.tensors, Granularity::parse("tensor"));
  const auto file = std::filesystem::temp_directory_path() / fmt::format("gradtool_received_{}.h5", ::getpid());
  std::filesystem::remove(file);
  BenchOptions options;
  options.reconstruction = file.string();
  options.tensor_steps = true;
  options.update_rule = UpdateRule::parse("adam");
  Reconstruction written{options, source, cut.selection.tensors, parse_codec("qsgd")};
  ReplayPlan plan{.options = options, .reader = source, .units = cut.units, .codec = parse_codec("qsgd"), .ranks = 2};
  plan.stop = {.min_samples = 1, .max_noise = 1e300, .timeout_seconds = 1e9};
  plan.on_result = [&](std::size_t step, const Unit& unit, std::span<const float> y) { written.put(step, unit, y); };
  const ReplayResult replayed = run_replay({}, plan);
  ASSERT_TRUE(written.close());
  const ReceivedMeans means{file.string(), source};
  std::filesystem::remove(file);  // it stays open
  means.expect_all_of(cut);
  for (const std::size_t range : {std::size_t{0}, std::size_t{5000}}) {
    const ReplayResult compared = means.compare(cut, 2, range, true, options.update_rule);
    for (std::size_t t = 0; t < source.tensors().size(); ++t) {
      EXPECT_EQ(compared.tensor_errors[t].error, replayed.tensor_errors[t].error);
      EXPECT_EQ(compared.cumulative_error[t], replayed.cumulative_error[t]);
      EXPECT_EQ(compared.cumulative_energy[t], replayed.cumulative_energy[t]);
      EXPECT_EQ(compared.updates[t].error, replayed.updates[t].error);
      EXPECT_EQ(compared.updates[t].distance, replayed.updates[t].distance);
      EXPECT_GT(compared.updates[t].error, 0.0);
    }
    ASSERT_EQ(compared.tensor_steps.size(), source.steps().size() * source.tensors().size());
    for (std::size_t i = 0; i < compared.tensor_steps.size(); ++i) {
      EXPECT_EQ(compared.tensor_steps[i].sums.error, replayed.tensor_steps[i].sums.error);
      EXPECT_EQ(compared.tensor_steps[i].cumulative_error, replayed.tensor_steps[i].cumulative_error);
    }
    for (std::size_t step = 0; step < source.steps().size(); ++step)
      expect_near(compared.step_errors[step].cumulative_error, replayed.step_errors[step].cumulative_error);
  }
}

TEST(Memory, HasASentenceForWhatCannotFit) {
  constexpr std::uint64_t kElements = 2'147'483'656, kLeast = kElements * (24 + 4 * 2);
  EXPECT_EQ(too_large_for(kLeast, kElements, 2), "");
  EXPECT_EQ(too_large_for(kLeast - 1, kElements, 2),
            "2147483656 elements are reduced at once, which takes 69 GB at least with 2 ranks on this machine, and it "
            "has 69 GB");
}

TEST(Memory, IsDividedBetweenRangesUnitAndCache) {
  const auto unit = [](std::size_t n) { return Unit{.pieces = {}, .elements = n}; };
  constexpr std::uint64_t kBytes = 400'000'000;
  const MemoryPlan small = plan_memory(kBytes, {unit(1'000'000), unit(500'000)}, 2);
  EXPECT_EQ(small.range_elements, kBytes / 2 / (16 + 8 * 2));
  EXPECT_EQ(small.cache_bytes, kBytes - (16 + 8 * 2) * 1'500'000ULL - (8 + 9 * 2) * 1'000'000ULL);
  EXPECT_EQ(plan_memory(kBytes, {unit(1'000'000'000)}, 2).cache_bytes, 0U) << "one unit takes it all";
  const MemoryPlan many = plan_memory(kBytes, std::vector<Unit>(1000, unit(1'000'000)), 2);
  EXPECT_GT(many.cache_bytes, kBytes / 2 - 30'000'000U) << "as much as the ranges leave";
  EXPECT_LT(many.cache_bytes, kBytes / 2);
  EXPECT_EQ(plan_memory(kBytes, {}, 1).cache_bytes, kBytes);
  EXPECT_EQ(plan_memory(100 * kBytes, {unit(1)}, 2).range_elements, (256U << 20) / (16 + 8 * 2)) << "enough at once";
  EXPECT_GE(plan_memory(0, {unit(1)}, 1).range_elements, 1U) << "0 would mean one range";
  EXPECT_GT(bench_memory(), 1U << 20);
}

}  // namespace
}  // namespace gradtool::test
