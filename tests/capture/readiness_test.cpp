// ReadinessLog gets the times of backward passes from the tests, so that no clock is asked.
#include "lib/capture/readiness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradtool {
namespace {

using testing::ElementsAre;
using testing::IsNan;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

TEST(ReadinessLog, GivesMediansOfShares) {
  ReadinessLog log{2, 3};
  // Worker 0: passes of 4, 2 and 8 s within 8, 8 and 16 s. Shares of the first tensor are 1, 1, 0.5; of the second 0.5,
  // 0.25, 0.5; the third was not used once.
  log.add(0, {.seconds = 4.0, .ready = {4.0, 2.0, 1.0}}, 8.0);
  log.add(0, {.seconds = 2.0, .ready = {2.0, 0.5, kUnknown}}, 8.0);
  log.add(0, {.seconds = 8.0, .ready = {4.0, 4.0, 1.0}}, 16.0);
  const std::vector<std::size_t> all{0, 1, 2}, last{2};
  const Readiness readiness = log.medians(all);
  EXPECT_THAT(readiness.ready, ElementsAre(1.0, 0.5, (0.25 + 0.125) / 2.0, IsNan(), IsNan(), IsNan()));
  EXPECT_THAT(readiness.backward_share, ElementsAre(0.5, IsNan()));
  EXPECT_THAT(log.medians(last).ready, ElementsAre((0.25 + 0.125) / 2.0, IsNan()));
}

TEST(ReadinessLog, LeavesOutPassesThatAreNotKnown) {
  ReadinessLog log{1, 1};
  log.add(0, {}, 1.0);
  log.add(0, {.seconds = 1.0, .ready = {0.5}}, 0.0);
  const std::vector<std::size_t> all{0};
  EXPECT_THAT(log.medians(all).ready, ElementsAre(IsNan()));
  EXPECT_THAT(log.medians(all).backward_share, ElementsAre(IsNan()));
}

TEST(ReadinessLog, ForgetsOldIterations) {
  ReadinessLog log{1, 1};
  const std::vector<std::size_t> all{0};
  for (std::size_t i = 0; i < 10 * ReadinessLog::kIterations; ++i) log.add(0, {.seconds = 1.0, .ready = {0.25}}, 2.0);
  for (std::size_t i = 0; i <= ReadinessLog::kIterations / 2; ++i) log.add(0, {.seconds = 1.0, .ready = {0.75}}, 2.0);
  EXPECT_THAT(log.medians(all).ready, ElementsAre(0.75));
}

}  // namespace
}  // namespace gradtool
