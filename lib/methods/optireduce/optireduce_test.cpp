// OptiReduce against the exact mean, against a Hadamard matrix, and its errors against their expectation.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "kernels/vector.hpp"
#include "lib/methods/optireduce/format.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

/// Normal gradients, independent between ranks and steps.
std::vector<float> independent(std::size_t n, int rank, int step) {
  const auto draws = normal(n, 100U + static_cast<std::uint32_t>(100 * step + rank));
  return {draws.begin(), draws.end()};
}

/// The mean over steps of sum (x-y)^2 / sum x^2.
double mean_nmse(const ModelOutcome& out) {
  const int steps = static_cast<int>(out.results[0].size());
  double sum = 0.0;
  for (int step = 0; step < steps; ++step) sum += model_nmse(out, step);
  return sum / steps;
}

TEST(OptireduceFormat, BlocksArePowersOfTwoThatHoldTheVector) {
  const auto expect = [](std::size_t n, std::size_t block, std::size_t order, std::size_t columns) {
    const format::RotationShape shape{n, block};
    EXPECT_EQ(shape.order, order) << n;
    EXPECT_EQ(shape.columns, columns) << n;
  };
  expect(0, 1024, 1, 0);
  expect(1, 1024, 1, 1);
  expect(5, 1024, 8, 1);
  expect(1024, 1024, 1024, 1);
  expect(1025, 1024, 1024, 2);
  expect(7, 1, 1, 7);
}

TEST(OptireduceFormat, ATailIsCutByTheLossOnAverage) {
  constexpr std::size_t kPackets = 7;
  std::size_t cut = 0;
  for (std::uint32_t step = 0; step < 4000; ++step) {
    const format::MessageLoss message{format::PacketLoss::tail, 0.2, {.seed = 3, .step = step}, 40, kPackets};
    std::size_t lost = 0;
    for (std::size_t i = 0; i < kPackets; ++i) {
      if (message.loses(i)) ++lost;
      EXPECT_EQ(message.loses(i), i >= kPackets - 2 ? i + 1 == kPackets || message.loses(kPackets - 2) : false);
    }
    EXPECT_TRUE(lost == 1 || lost == 2);  // 1.4 on average
    cut += lost;
  }
  EXPECT_NEAR(static_cast<double>(cut) / 4000.0, 1.4, 0.04);  // 5 standard deviations
}

/// The order of additions that sums have with --all-reduce transpose: rank s first, then s + 1, ... (mod p).
TEST(Optireduce, WithoutLossAndRotationIsTheTransposeAllReduceBitForBit) {
  const std::size_t n = small_model().elements;
  for (const int ranks : {1, 2, 3, 5}) {
    const auto out = run_model({.codec = "optireduce:loss=0,hadamard=off", .ranks = ranks, .steps = 1, .threads = 2});
    run_threads(ranks, [&](Communicator<Space::host>& comm) {
      comm.set_all_reduce(AllReduce::transpose);
      const auto me = static_cast<std::size_t>(comm.rank());
      auto sums = out.inputs[me][0];
      const HostView<float> view{sums.data(), n};
      Arena<Space::host> arena{4 * n};
      comm.all_reduce_sum({}, as_writable_bytes(view), Dtype::f32, arena.take_bytes(4 * n));
      scale({}, view, 1.0F / static_cast<float>(ranks));
      EXPECT_TRUE(out.results[me][0] == sums) << ranks << " ranks";
      // Shards differ by an element, and the all-gather relays other ranks' shards.
      EXPECT_NEAR(static_cast<double>(out.wire[me][0]), static_cast<double>(comm.traffic().bytes_sent), 4.0 * ranks);
    });
    for (int s = 0; s < ranks; ++s) {
      const Segment shard = ring_segment(n, s, ranks);
      for (std::size_t i = shard.first; i < shard.first + shard.count; ++i) {
        float sum = out.inputs[static_cast<std::size_t>(s)][0][i];
        for (int k = 1; k < ranks; ++k) sum += out.inputs[static_cast<std::size_t>((s + k) % ranks)][0][i];
        ASSERT_EQ(out.results[0][0][i], sum * (1.0F / static_cast<float>(ranks)));
      }
    }
  }
}

TEST(Optireduce, WithoutLossTheRotationCostsOnlyRounding) {
  for (const char* spec : {"optireduce:loss=0", "optireduce:loss=0,block=2", "optireduce:loss=0,block=65536"}) {
    const auto out = run_model({.codec = spec, .ranks = 3, .steps = 2, .threads = 2});
    for (int step = 0; step < 2; ++step) EXPECT_LT(model_nmse(out, step), 1e-12) << spec;
  }
}

/// Compares the messages with the definition: H[i][j] = (-1)^(number of bits that i and j share) / sqrt(order). The
/// signs are those of the draws that all ranks share.
TEST(Optireduce, SendsTheHadamardTransformOfBlocksThatLieAcrossTheVector) {
  constexpr std::size_t kOrder = 16;
  constexpr std::size_t n = 100;
  constexpr std::size_t kColumns = 7;
  const auto out = run_model({.codec = "optireduce:loss=0,block=16",
                              .ranks = 2,
                              .steps = 1,
                              .layout = Layout::flat(n),
                              .gradient = [](int rank, int step) { return independent(n, rank, step); }});
  const format::DrawKey shared = format::shared_by_ranks({.seed = 9});
  const auto sent = floats_of(out.messages[0][0][0]);  // the second half, to rank 1
  ASSERT_EQ(sent.size(), kOrder * kColumns / 2);
  for (std::size_t at = 0; at < sent.size(); ++at) {
    const std::size_t row = (at + sent.size()) / kColumns;
    const std::size_t column = (at + sent.size()) % kColumns;
    double expected = 0.0;
    for (std::size_t j = 0; j < kOrder; ++j) {
      const std::size_t i = j * kColumns + column;
      if (i >= n) continue;
      const bool sign = (format::draw4(shared, i / 128).bits[i / 32 % 4] >> i % 32 & 1U) != 0;
      const bool minus = (std::popcount(row & j) % 2 == 1) != sign;
      expected += (minus ? -1.0 : 1.0) * static_cast<double>(out.inputs[0][0][i]) / 4.0;
    }
    ASSERT_NEAR(sent[at], expected, 1e-6);
  }
}

/// The mean over what arrived has the variance E[1/arrived] for p ranks with independent gradients, each of which but
/// the owner's own is lost with probability q; arrived - 1 is binomial, so that this is (1 - q^p) / (p (1 - q)).
TEST(Optireduce, LostContributionsCostWhatTheMeanOfFewerCosts) {
  constexpr std::size_t n = 20000;
  constexpr double q = 0.3;
  for (const char* hadamard : {"on", "off"}) {
    for (const int ranks : {2, 4}) {
      const auto out = run_model({.codec = std::string{"optireduce:loss=0.3,model=iid,direction=push,packet=40,"
                                                       "hadamard="} +
                                           hadamard,
                                  .ranks = ranks,
                                  .steps = 5,
                                  .layout = Layout::flat(n),
                                  .gradient = [](int rank, int step) { return independent(n, rank, step); }});
      const double expected = (1.0 - std::pow(q, ranks)) / (1.0 - q) - 1.0;
      EXPECT_NEAR(mean_nmse(out), expected, 0.06 * expected) << ranks << " ranks, hadamard=" << hadamard;
    }
  }
}

/// With equal gradients nothing is lost on the way to where they are averaged, unless missing ones count as zero: then
/// the mean lacks k/p, where k of p - 1 are lost.
TEST(Optireduce, EqualGradientsSurviveUnlessMissingOnesAreZero) {
  constexpr std::size_t n = 20000;
  constexpr double q = 0.2;
  const auto equal = [](int, int step) { return independent(n, 0, step); };
  ModelSetup setup{.codec = "optireduce:loss=0.2,model=iid,direction=push,packet=40",
                   .ranks = 4,
                   .steps = 5,
                   .layout = Layout::flat(n),
                   .gradient = equal};
  EXPECT_LT(mean_nmse(run_model(setup)), 1e-12);
  setup.codec += ",average=all";
  const double expected = (3.0 * q * (1.0 - q) + 9.0 * q * q) / 16.0;
  EXPECT_NEAR(mean_nmse(run_model(setup)), expected, 0.06 * expected);
}

/// Lost means are zero: the share q of the energy, in whatever basis.
TEST(Optireduce, LostMeansCostTheirShareOfTheEnergy) {
  constexpr std::size_t n = 20000;
  for (const char* model : {"tail", "iid"}) {
    for (const char* hadamard : {"on", "off"}) {
      const auto out = run_model({.codec = std::string{"optireduce:loss=0.1,direction=pull,packet=40,model="} + model +
                                           ",hadamard=" + hadamard,
                                  .ranks = 3,
                                  .steps = 5,
                                  .layout = Layout::flat(n),
                                  .gradient = [](int rank, int step) { return independent(n, rank, step); }});
      EXPECT_NEAR(mean_nmse(out), 0.1, 0.01) << model << ", hadamard=" << hadamard;
      EXPECT_NEAR(out.tallies[0].part / out.tallies[0].whole, 1.0, 1e-12);
      EXPECT_NEAR(out.tallies[1].part / out.tallies[1].whole, 0.9, 0.02);
    }
  }
}

/// A gradient with outliers loses whole ones without the rotation, and a little of everything with it.
TEST(Optireduce, RotationMakesTheLargestErrorSmallerAtTheSameNmse) {
  constexpr std::size_t n = 30000;
  const auto heavy = [](int, int step) {
    auto x = independent(n, 0, step);
    for (std::size_t i = 0; i < n; i += 50) x[i] *= 20.0F;
    return x;
  };
  for (const char* model : {"tail", "iid"}) {
    const auto run = [&](const char* hadamard) {
      return run_model(
          {.codec = std::string{"optireduce:loss=0.05,packet=400,model="} + model + ",hadamard=" + hadamard,
           .ranks = 2,
           .steps = 10,
           .layout = Layout::flat(n),
           .gradient = heavy});
    };
    const auto largest = [](const ModelOutcome& out) {
      double error = 0.0;
      for (std::size_t step = 0; step < out.results[0].size(); ++step) {
        for (std::size_t i = 0; i < n; ++i)
          error = std::max(error, std::abs(static_cast<double>(out.inputs[0][step][i]) -
                                           static_cast<double>(out.results[0][step][i])));
      }
      return error;
    };
    const auto on = run("on");
    const auto off = run("off");
    EXPECT_NEAR(mean_nmse(on), 0.05, 0.01) << model;
    EXPECT_NEAR(mean_nmse(off), 0.05, 0.01) << model;
    EXPECT_LT(largest(on), 0.5 * largest(off)) << model;
  }
}

TEST(Optireduce, WhenEverythingIsLostOwnersKeepTheirOwn) {
  constexpr std::size_t n = 90;
  const auto gradient = [](int rank, int step) { return independent(n, rank, step); };
  for (const char* model : {"tail", "iid"}) {
    ModelSetup setup{.codec = std::string{"optireduce:loss=1,hadamard=off,direction=push,model="} + model,
                     .ranks = 3,
                     .steps = 1,
                     .layout = Layout::flat(n),
                     .gradient = gradient};
    const auto push = run_model(setup);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(push.results[1][0][i], push.inputs[i / 30][0][i]);
    setup.codec = std::string{"optireduce:loss=1,direction=pull,model="} + model;
    EXPECT_EQ(run_model(setup).results[0][0], std::vector<float>(n, 0.0F));
    setup.ranks = 1;
    EXPECT_LT(model_nmse(run_model(setup)), 1e-12);
  }
}

TEST(Optireduce, RefusesWhatIsNotAPowerOfTwoOrNotWholeElements) {
  for (const char* spec : {"optireduce:block=1000", "optireduce:packet=1438"})
    EXPECT_THROW(run_model({.codec = spec, .ranks = 1, .steps = 1}), Error) << spec;
}

}  // namespace
}  // namespace gradtool::test
