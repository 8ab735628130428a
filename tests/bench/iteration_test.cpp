// The schedule of an iteration against examples worked out by hand, its bounds, and the FFT paper's scaling figure.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lib/model/cost_model.hpp"

namespace gradtool::test {
namespace {

// 3 s of computation: forward ends at 1, backward at 3 when nothing is encoded between.
constexpr double kCompute = 3.0;

double bucket(const std::vector<UnitCost>& units) {
  return iteration_seconds(units, kCompute, Overlap::bucket);
}
double none(const std::vector<UnitCost>& units) {
  return iteration_seconds(units, kCompute, Overlap::none);
}

TEST(Iteration, OneUnitOverlapsNothing) {
  const std::vector<UnitCost> units{{1.0, 0.5, 2.0, 0.25}};
  EXPECT_DOUBLE_EQ(bucket(units), 5.75);
  EXPECT_DOUBLE_EQ(none(units), 5.75);
  EXPECT_DOUBLE_EQ(bucket({}), kCompute);
}

TEST(Iteration, TheSecondUnitIsComputedWhileTheFirstIsSent) {
  // Ready at 2 and at 3. The link carries the first from 2 to 2.9 and the second from 3 to 3.5.
  EXPECT_DOUBLE_EQ(bucket({{0.5, 0.0, 0.9, 0.0}, {1.0, 0.0, 0.5, 0.0}}), 3.5);
  // Here the first is under way until 4: the second waits for the link.
  EXPECT_DOUBLE_EQ(bucket({{0.5, 0.0, 2.0, 0.0}, {1.0, 0.0, 0.5, 0.0}}), 4.5);
}

TEST(Iteration, EncodingDelaysTheBackwardPassAndDecodingWaitsForIt) {
  // First ready at 2, encoded by 3, sent by 3.5. The backward pass goes on from 3 to 4; second encoded by 5, sent by
  // 5.1. Decoding begins when the last is encoded: first from 5 to 5.2, second, which arrived at 5.1, to 5.5.
  EXPECT_DOUBLE_EQ(bucket({{0.5, 1.0, 0.5, 0.2}, {1.0, 1.0, 0.1, 0.3}}), 5.5);
  // The processor waits for a slow second message, which arrives at 8.
  EXPECT_DOUBLE_EQ(bucket({{0.5, 1.0, 0.5, 0.2}, {1.0, 1.0, 3.0, 0.3}}), 8.3);
}

TEST(Iteration, UnitsAreTakenAsTheyBecomeReady) {
  EXPECT_DOUBLE_EQ(bucket({{1.0, 0.0, 0.5, 0.0}, {0.5, 0.0, 2.0, 0.0}}), 4.5);
  // The model counts the rest of the backward pass after the last unit: tensors that are not reduced.
  EXPECT_DOUBLE_EQ(bucket({{0.5, 0.0, 0.1, 0.0}}), kCompute);
}

TEST(Iteration, KeepsItsBounds) {
  std::mt19937 draw{7};
  std::uniform_real_distribution<double> seconds{0.0, 1.0};
  for (int round = 0; round < 500; ++round) {
    std::vector<UnitCost> units(1 + round % 9);
    double codec = 0.0;
    double sent = 0.0;
    for (std::size_t u = 0; u < units.size(); ++u) {
      units[u] = {static_cast<double>(u + 1) / static_cast<double>(units.size()), seconds(draw) * (round % 3),
                  seconds(draw) * (round % 4), seconds(draw)};
      codec += units[u].encode + units[u].decode;
      sent += units[u].communicate;
    }
    const double time = bucket(units);
    EXPECT_LE(time, none(units) + 1e-12);
    EXPECT_GE(time, std::max(kCompute + codec, sent) - 1e-12);
    for (auto& unit : units) unit.communicate = 0.0;  // an infinitely fast network
    EXPECT_NEAR(bucket(units), kCompute + codec, 1e-12);
  }
}

TEST(Iteration, AUnitIsReadyWhenTheFirstOfItsTensorsIs) {
  std::vector<TensorInfo> tensors(4);
  for (std::size_t t = 0; t < 4; ++t) tensors[t].elements = 10 * (t + 1);  // 100 in all
  const auto shares = [&](const std::string& granularity) {
    return ready_shares(make_units(tensors, {0, 1, 2, 3}, Granularity::parse(granularity)), tensors);
  };
  EXPECT_EQ(shares("tensor"), (std::vector<double>{1.0, 0.9, 0.7, 0.4}));
  EXPECT_EQ(shares("bucket:280B"), (std::vector<double>{0.7, 1.0}));  // the last two tensors, then the first two
  EXPECT_EQ(shares("model"), std::vector<double>{1.0});
}

// Wang et al. 2020 (FFT), figure 16, AlexNet on 32 GPUs: 0.4 s of computation, an uncompressed all-gather of 2.2 s, no
// codec time. Bars read off: SGD about 5, FFT 25.5, TernGrad 22, QSGD 20.5, top-k 18.
TEST(Iteration, GivesTheScalingOfTheFftPaper) {
  constexpr int kRanks = 32;
  constexpr double kBytes = 250e6;
  Network network;
  network.link = {0.0, (kRanks - 1) * kBytes / 2.2};
  const auto speedup = [&](CollectiveUse::Kind kind, double ratio) {
    const std::vector<CollectiveUse> uses{{kind, 1.0, kBytes / ratio}};
    const UnitCost unit{.communicate = model_step(uses, network, kRanks, kRanks).seconds};
    return kRanks * 0.4 / iteration_seconds(std::vector<UnitCost>{unit}, 0.4, Overlap::none);
  };
  const auto gathered = [&](double ratio) { return speedup(CollectiveUse::Kind::all_gather, ratio); };
  EXPECT_NEAR(gathered(1.0), 4.9, 0.05);
  EXPECT_NEAR(gathered(21.3), 25.4, 0.05);
  EXPECT_NEAR(gathered(16.0), 23.8, 0.05);
  EXPECT_NEAR(gathered(10.7), 21.1, 0.05);
  EXPECT_NEAR(gathered(6.67), 17.5, 0.05);
  // The figure's baseline gathers: an uncompressed ring on the same links does as well as a gather at p/2 = 16 times
  // compression, and the FFT's gain over it would be 1.07, not 5.2.
  EXPECT_NEAR(speedup(CollectiveUse::Kind::all_reduce, 1.0), gathered(16.0), 1e-9);
  EXPECT_NEAR(gathered(21.3) / speedup(CollectiveUse::Kind::all_reduce, 1.0), 1.07, 0.005);
}

}  // namespace
}  // namespace gradtool::test
