// When buckets are ready by a file's readiness, and the schedule of an iteration made of it against one that is stepped
// through here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "lib/bench/readiness.hpp"
#include "lib/model/cost_model.hpp"

namespace gradtool::test {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

TEST(Readiness, IsTheMedianOverWorkersThatKnowIt) {
  // Three workers, two tensors; the second tensor is known to two workers, of whom the median is their mean.
  const auto timing =
      captured_timing({.ready = {0.5, kUnknown, 0.75, 0.25, 1.0, 0.5}, .backward_share = {0.5, kUnknown, 0.75}});
  ASSERT_TRUE(timing.has_value());
  EXPECT_THAT(timing->ready, ElementsAre(DoubleEq(0.75), DoubleEq(0.375)));
  EXPECT_DOUBLE_EQ(timing->share, 0.625);
}

TEST(Readiness, OfATensorThatNobodyKnowsIsTheEndOfThePass) {
  const auto timing = captured_timing({.ready = {kUnknown, 0.25}, .backward_share = {0.5}});
  ASSERT_TRUE(timing.has_value());
  EXPECT_THAT(timing->ready, ElementsAre(1.0, 0.25));
}

TEST(Readiness, IsNotKnownWithoutTheShareOfThePass) {
  EXPECT_FALSE(captured_timing({.ready = {0.5, 0.25}, .backward_share = {kUnknown}}).has_value());
  EXPECT_FALSE(captured_timing({.ready = {0.5, 0.25}, .backward_share = {0.0}}).has_value());
  EXPECT_FALSE(captured_timing({.ready = {kUnknown, kUnknown}, .backward_share = {0.5}}).has_value());
}

TEST(Readiness, AUnitIsReadyWhenTheLastOfItsTensorsIs) {
  std::vector<TensorInfo> tensors(4);
  for (auto& tensor : tensors) tensor.elements = 10;
  // The second tensor is used late in the forward pass, too, and yet complete after the third.
  const BackwardTiming timing{.ready = {1.0, 0.5, 0.25, 0.125}, .share = 0.5};
  const auto shares = [&](const std::string& granularity) {
    return ready_shares(make_units(tensors, {0, 1, 2, 3}, Granularity::parse(granularity)), timing);
  };
  EXPECT_THAT(shares("tensor"), ElementsAre(1.0, 0.5, 0.25, 0.125));
  EXPECT_THAT(shares("bucket:80B"), ElementsAre(0.25, 1.0));
  EXPECT_THAT(shares("model"), ElementsAre(1.0));
}

/// The end of an iteration, stepped through in whole time units: in each the processor does one unit of the pass, or of
/// encoding or decoding, and the link one of sending.
int stepped(int forward, int backward, std::vector<std::vector<int>> units) {  // ready, encode, communicate, decode
  std::sort(units.begin(), units.end());
  std::vector<int> encoded_at(units.size(), -1), arrived_at(units.size(), -1);
  int now = forward, done = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    while (done < units[u][0]) ++done, ++now;
    now += units[u][1];
    encoded_at[u] = now;
  }
  while (done < backward) ++done, ++now;
  int link = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    while (link < encoded_at[u]) ++link;
    link += units[u][2];
    arrived_at[u] = link;
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    while (now < arrived_at[u]) ++now;
    now += units[u][3];
  }
  return now;
}

TEST(Readiness, TheScheduleTakesTheCapturedPass) {
  // 16 time units of computation, of which the last 4 are the pass: readiness in quarters of it.
  const std::vector<std::vector<int>> units{{1, 1, 5, 1}, {3, 0, 2, 2}, {4, 2, 1, 1}};
  std::vector<UnitCost> costs;
  for (const auto& unit : units) {
    costs.push_back({.ready = unit[0] / 4.0,
                     .encode = static_cast<double>(unit[1]),
                     .communicate = static_cast<double>(unit[2]),
                     .decode = static_cast<double>(unit[3])});
  }
  EXPECT_DOUBLE_EQ(iteration_seconds(costs, 16.0, Overlap::bucket, 0.25), stepped(12, 4, units));
  EXPECT_NE(iteration_seconds(costs, 16.0, Overlap::bucket, 0.25), iteration_seconds(costs, 16.0, Overlap::bucket));
  EXPECT_DOUBLE_EQ(iteration_seconds(costs, 16.0, Overlap::none, 0.25), iteration_seconds(costs, 16.0, Overlap::none));
}

}  // namespace
}  // namespace gradtool::test
