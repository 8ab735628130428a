// How many steps a replay computes for its errors and its samples.
#include <gtest/gtest.h>

#include <atomic>

#include "lib/bench/replay.hpp"
#include "lib/bench/windows.hpp"
#include "lib/codecs/registry.hpp"

#include "lib/io/changed_source.hpp"

namespace gradtool::test {
namespace {

/// Counts how often the first tensor of rank 0 is read: once for each step that is computed.
class CountedSteps final : public ChangedSource {
 public:
  explicit CountedSteps(const GradientSource& source) : ChangedSource{source} {}
  void read(const ArrayPart& part, std::span<float> out) const override {
    if (part.tensor == 0 && part.worker == 0 && part.first == 0) ++read_;
    source().read(part, out);
  }
  [[nodiscard]] std::size_t read() const { return read_; }

 private:
  mutable std::atomic<std::size_t> read_ = 0;
};

struct Replayed {
  ReplayResult result;
  std::size_t steps = 0;  ///< that were computed
};

Replayed replay(double timeout_seconds, Timing timing = Timing::isolated, std::size_t range_elements = 0,
                std::size_t steps = 2, bool also_concurrent = true) {
  const GradientReader file{GRADTOOL_SOURCE_DIR "/datasets/lenet5-fashion-mnist.h5"};
  const PartOfSteps part{file, steps};
  const CountedSteps source{part};
  std::vector<std::size_t> all(source.tensors().size());
  for (std::size_t t = 0; t < all.size(); ++t) all[t] = t;
  const auto units = make_units(source.tensors(), all, Granularity::parse("tensor"));
  BenchOptions options;
  const ReplayPlan plan{.options = options,
                        .reader = source,
                        .units = units,
                        .codec = parse_codec("topk:ratio=0.01,ef=on"),
                        .ranks = 2,
                        .range_elements = range_elements,
                        .timing = timing,
                        .stop = {.min_samples = 3, .max_noise = 1e300, .timeout_seconds = timeout_seconds},
                        .also_concurrent = also_concurrent};
  Replayed replayed;
  replayed.result = run_replay({}, plan);
  replayed.steps = source.read();
  return replayed;
}

constexpr double kNoTime = 1e-12;  // seconds
constexpr double kMuchTime = 1e9;

TEST(Sampling, TakesTheLastStepsOfTheErrorsWhereAStepFillsTheTime) {
  for (const std::size_t range : {std::size_t{0}, std::size_t{5000}}) {
    const Replayed slow = replay(kNoTime, Timing::isolated, range);
    EXPECT_EQ(slow.steps, 2U);
    ASSERT_EQ(slow.result.samples.size(), 1U);
    EXPECT_GT(slow.result.samples.front().phase[0], 0.0);
    EXPECT_GT(slow.result.samples.front().phase[2], 0.0);
    EXPECT_GT(slow.result.seconds, slow.result.limit);
    ASSERT_TRUE(slow.result.concurrent);
    EXPECT_GT(slow.result.concurrent->times.phase[0], 0.0);
    EXPECT_GT(slow.result.concurrent->times.phase[2], 0.0);
    EXPECT_GT(slow.result.concurrent->seconds, slow.result.concurrent->limit);
    for (const auto& unit : slow.result.units) EXPECT_GT(unit.encode, 0.0);
  }
}

TEST(Sampling, ChangesNoErrorWhereItTakesThoseSteps) {
  const ReplayResult slow = replay(kNoTime).result, fast = replay(kMuchTime).result;
  ASSERT_EQ(slow.step_errors.size(), fast.step_errors.size());
  for (std::size_t step = 0; step < fast.step_errors.size(); ++step) {
    EXPECT_EQ(slow.step_errors[step].sums.error, fast.step_errors[step].sums.error);
    EXPECT_EQ(slow.step_errors[step].residual_energy, fast.step_errors[step].residual_energy);
    EXPECT_EQ(slow.step_errors[step].bytes.wire_per_rank, fast.step_errors[step].bytes.wire_per_rank);
  }
  for (std::size_t u = 0; u < fast.units.size(); ++u) {
    for (std::size_t i = 0; i < fast.units[u].uses.size(); ++i)
      EXPECT_EQ(slow.units[u].uses[i].calls, fast.units[u].uses[i].calls);
  }
}

TEST(Sampling, ComputesStepsOfItsOwnOtherwise) {
  EXPECT_EQ(replay(kMuchTime).steps, 2U + 3U);
  EXPECT_FALSE(replay(kMuchTime).result.concurrent);
  EXPECT_FALSE(replay(kNoTime, Timing::isolated, 0, 2, false).result.concurrent);
  // The results of other ranks, which take part in concurrent times, are not decoded for the errors.
  EXPECT_EQ(replay(kNoTime, Timing::concurrent).steps, 2U + 1U);
  // A step that nothing warmed up for is no sample.
  EXPECT_EQ(replay(kNoTime, Timing::isolated, 0, 1).steps, 1U + 1U);
}

}  // namespace
}  // namespace gradtool::test
