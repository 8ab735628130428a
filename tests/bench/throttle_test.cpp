// Samples that were taken while a clock was held down are discarded and counted. The clock is played here; NVML too.
#include "lib/bench/throttle.hpp"

#include <gtest/gtest.h>

#include "lib/bench/replay.hpp"
#include "lib/comm/launch.hpp"
#include "tests/io/sample.hpp"

namespace gradtool::test {
namespace {

/// `none` on one rank, four samples asked for. One unit: the clock is looked at twice for each sample.
ReplayResult replay_with(ClockReasons reasons) {
  const TempFile file;
  constexpr std::size_t kElementsEach = 5;
  {
    WriterOptions options = sample_options(Dtype::f32);
    options.info.workers = 1;
    options.tensors = {{.name = "w", .shape = {kElementsEach}, .kind = "linear", .dtype = Dtype::f32}};
    options.with_loss = false;
    GradientWriter writer{file.path(), options};
    writer.begin_step({.iteration = 0});
    writer.put_gradient(0, 0, sample_values(0, 0, 0, kElementsEach));
    writer.end_step();
    writer.close();
  }
  const GradientReader reader{file.path()};
  const auto units = make_units(reader.tensors(), {0}, Granularity{});
  const BenchOptions options;
  const ReplayPlan plan{.options = options,
                        .reader = reader,
                        .units = units,
                        .codec = parse_codec("none"),
                        .stop = {.min_samples = 4, .max_noise = 1e300, .timeout_seconds = 1e9},
                        .clock_reasons = std::move(reasons)};
  StepLoader loader{reader, 1, kElementsEach, {}};
  ReplayResult result;
  run_threads(1, [&](Communicator<Space::host>& comm) { replay_rank(plan, comm, loader, true, result); });
  return result;
}

TEST(Throttle, DiscardsAndCountsWhatWasHeldDown) {
  int looks = 0;
  const auto result = replay_with([&looks]() -> std::uint64_t {
    ++looks;
    if (looks == 1 || looks == 6) return 0x40;  // before the first sample, behind the third
    return looks == 8 ? 0x80 | 0x01 : 0x00;     // behind the fourth
  });
  EXPECT_EQ(result.samples.size(), 4U);
  EXPECT_EQ(looks, 2 * 7);
  EXPECT_EQ(result.clock_note,
            "3 samples discarded: the GPU's clock was held down (hardware thermal slowdown, power brake)");
}

TEST(Throttle, KeepsWhatIsOnlyIdleOrAtItsPowerCap) {
  const auto result = replay_with([] { return std::uint64_t{0x01 | 0x02 | 0x04 | 0x10 | 0x100}; });
  EXPECT_EQ(result.samples.size(), 4U);
  EXPECT_EQ(result.clock_note, "");
}

TEST(Throttle, EndsWhereNoSampleIsGood) {
  const auto result = replay_with([] { return std::uint64_t{0x20}; });
  EXPECT_EQ(result.samples.size(), 0U);
  EXPECT_EQ(result.clock_note, "200 samples discarded: the GPU's clock was held down (software thermal slowdown)");
}

TEST(Throttle, ReadsNvmlByEitherName) {
  std::string why_not;
  const auto reasons = nvml_clock_reasons("00000000:3B:00.0", why_not, FAKE_NVML);
  ASSERT_TRUE(reasons) << why_not;
  EXPECT_EQ(why_not, "");
  EXPECT_EQ(reasons(), 0x45U);
}

TEST(Throttle, SaysWhyNothingWatches) {
  std::string why_not;
  EXPECT_FALSE(nvml_clock_reasons("00000000:3B:00.0", why_not, "libnothing-of-that-name.so.1"));
  EXPECT_EQ(why_not, "there is no NVML here");
  EXPECT_FALSE(nvml_clock_reasons("00000000:00:00.0", why_not, FAKE_NVML));
  EXPECT_EQ(why_not, "NVML: finding the GPU: Not Found");
}

}  // namespace
}  // namespace gradtool::test
