#include "lib/capture/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

TEST(CaptureSchedule, CountsWhatItCaptures) {
  for (const CaptureSchedule schedule : {CaptureSchedule{0, 20, 1}, CaptureSchedule{3, 20, 4},
                                         CaptureSchedule{3, 19, 4}, CaptureSchedule{19, 20, 100}}) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < 40; ++i) count += schedule.captures(i) ? 1 : 0;
    EXPECT_EQ(schedule.count(), count);
    EXPECT_TRUE(schedule.captures(schedule.first));
    EXPECT_FALSE(schedule.captures(schedule.end));
  }
  EXPECT_EQ((CaptureSchedule{3, 20, 4}.count()), 5);
  EXPECT_EQ((CaptureSchedule{5, 5, 1}.count()), 0);
}

TEST(LearningRate, FollowsItsSchedule) {
  EXPECT_EQ(LearningRate(0.1, "constant", 10).at(9), 0.1);
  const LearningRate step{0.4, "step:5:0.5", 100};
  EXPECT_DOUBLE_EQ(step.at(4), 0.4);
  EXPECT_DOUBLE_EQ(step.at(5), 0.2);
  EXPECT_DOUBLE_EQ(step.at(14), 0.1);
  const LearningRate cosine{0.2, "cosine", 100};
  EXPECT_DOUBLE_EQ(cosine.at(0), 0.2);
  EXPECT_NEAR(cosine.at(50), 0.1, 1e-15);
  EXPECT_NEAR(cosine.at(100), 0.0, 1e-15);
  EXPECT_GT(cosine.at(99), 0.0);
}

TEST(LearningRate, RefusesOtherText) {
  for (const char* text : {"", "linear", "step", "step:", "step:5", "step:0:0.1", "step:5:0", "step:5:-1", "step:x:0.1",
                           "step:5:0.1x", "step:5:inf", "cosine:3"}) {
    const auto sentence = test::sentence_of(Fault::usage, [&] { LearningRate{0.1, text, 10}; });
    EXPECT_THAT(sentence, testing::HasSubstr("--lr-schedule")) << text;
  }
}

TEST(LearningRate, StaysBelowItsLimit) {
  EXPECT_EQ(LearningRate(0.1, "step:1:2", 10).at(9), 0.1 * 512.0);
  for (const char* text : {"step:1:1e300", "step:1:10", "step:3:1e9"}) {
    const auto sentence = test::sentence_of(Fault::usage, [&] { LearningRate{0.1, text, 10}; });
    EXPECT_THAT(sentence, testing::HasSubstr("must stay below 1000000")) << text;
  }
}

}  // namespace
}  // namespace gradtool
