#include "lib/capture/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

TEST(CaptureSchedule, CountsWhatItCaptures) {
  for (const CaptureSchedule schedule :
       {CaptureSchedule{0, 20, 1}, CaptureSchedule{3, 20, 4}, CaptureSchedule{3, 19, 4}, CaptureSchedule{19, 20, 100},
        CaptureSchedule{2, 37, 1, 3, 5}, CaptureSchedule{0, 5, 1, 2, 2}}) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < 40; ++i) count += schedule.captures(i) ? 1 : 0;
    EXPECT_EQ(schedule.count(), count);
    EXPECT_TRUE(schedule.captures(schedule.first));
    EXPECT_FALSE(schedule.captures(schedule.end));
  }
  EXPECT_EQ((CaptureSchedule{3, 20, 4}.count()), 5);
  EXPECT_EQ((CaptureSchedule{5, 5, 1}.count()), 0);
}

TEST(CaptureSchedule, PlacesWindowsEvenly) {
  const CaptureSchedule three{15, 300, 1, 3, 8};
  EXPECT_EQ(three.window_begin(0), 15);
  EXPECT_EQ(three.window_begin(1), 153);  // 15 + 277 / 2, rounded down
  EXPECT_EQ(three.window_begin(2), 292);
  EXPECT_TRUE(three.captures(160));
  EXPECT_FALSE(three.captures(161));
  EXPECT_TRUE(three.captures(299));
  // The shortest training for its windows leaves one iteration between each and the next.
  const CaptureSchedule tight{0, 4 * 3 + 3, 1, 4, 3};
  for (std::int64_t i = 0; i < 15; ++i) EXPECT_EQ(tight.captures(i), i % 4 != 3) << i;
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

TEST(LearningRate, DropsAtMilestones) {
  const LearningRate rate{0.4, "milestones:3,5,50:0.5", 20};
  EXPECT_EQ(rate.at(2), 0.4);
  EXPECT_EQ(rate.at(3), 0.2);
  EXPECT_EQ(rate.at(4), 0.2);
  EXPECT_EQ(rate.at(5), 0.1);
  EXPECT_EQ(rate.at(19), 0.1);
  EXPECT_EQ(LearningRate(0.4, "milestones:7:0.5", 20).at(7), 0.2);
}

TEST(LearningRate, WarmsUp) {
  const LearningRate constant{0.4, "warmup:4:constant", 100};
  EXPECT_DOUBLE_EQ(constant.at(0), 0.1);
  EXPECT_DOUBLE_EQ(constant.at(2), 0.3);
  EXPECT_EQ(constant.at(3), 0.4);
  EXPECT_EQ(constant.at(99), 0.4);
  const LearningRate cosine{0.4, "warmup:20:cosine", 100};
  EXPECT_DOUBLE_EQ(cosine.at(9), 0.2);
  EXPECT_EQ(cosine.at(20), 0.4);
  EXPECT_NEAR(cosine.at(60), 0.2, 1e-15);
  EXPECT_NEAR(cosine.at(100), 0.0, 1e-15);
  const LearningRate milestones{0.4, "warmup:2:milestones:5,8:0.1", 10};
  EXPECT_DOUBLE_EQ(milestones.at(0), 0.2);
  EXPECT_EQ(milestones.at(4), 0.4);
  EXPECT_DOUBLE_EQ(milestones.at(9), 0.004);
  EXPECT_DOUBLE_EQ(LearningRate(0.4, "warmup:1:step:3:0.5", 10).at(3), 0.2);
}

TEST(LearningRate, RefusesOtherText) {
  for (const char* text : {"",
                           "linear",
                           "step",
                           "step:",
                           "step:5",
                           "step:0:0.1",
                           "step:5:0",
                           "step:5:-1",
                           "step:x:0.1",
                           "step:5:0.1x",
                           "step:5:inf",
                           "cosine:3",
                           "step:5,6:0.1",
                           "milestones:5",
                           "milestones::0.1",
                           "milestones:5,5:0.1",
                           "milestones:6,5:0.1",
                           "milestones:5,:0.1",
                           "milestones:0:0.1",
                           "warmup",
                           "warmup:",
                           "warmup:5",
                           "warmup:5:",
                           "warmup:0:cosine",
                           "warmup:x:cosine",
                           "warmup:5:warmup:5:cosine"}) {
    const auto sentence = test::sentence_of(Fault::usage, [&] { LearningRate{0.1, text, 10}; });
    EXPECT_THAT(sentence, testing::HasSubstr("--lr-schedule")) << text;
  }
}

TEST(LearningRate, StaysBelowItsLimit) {
  EXPECT_EQ(LearningRate(0.1, "step:1:2", 10).at(9), 0.1 * 512.0);
  for (const char* text : {"step:1:1e300", "step:1:10", "step:3:1e9", "milestones:4,9:1e4"}) {
    const auto sentence = test::sentence_of(Fault::usage, [&] { LearningRate{0.1, text, 10}; });
    EXPECT_THAT(sentence, testing::HasSubstr("must stay below 1000000")) << text;
  }
}

}  // namespace
}  // namespace gradtool
