// qgZ between ranks: its levels, its bytes, its error.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

TEST(Qgz, WorkedExample) {
  // unit 1/8 of 4: 4 is clamped to 7 units, -4 is -8; 0.75 is a tie and goes to 2.
  std::vector<float> x(32, 0.0F);
  x[0] = 4.0F;
  x[1] = -4.0F;
  x[2] = 0.75F;
  x[3] = -1.4F;
  CodecRun run{"qgz", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 4U + 16U);
  EXPECT_EQ(payload[4], std::byte{0x87});
  EXPECT_EQ(payload[5], std::byte{0xd2});
  const auto y = run.decode(payload);
  EXPECT_EQ((std::vector<float>{y[0], y[1], y[2], y[3], y[4]}), (std::vector<float>{3.5F, -4.0F, 1.0F, -1.5F, 0.0F}));
}

constexpr std::size_t kElements = 8 * 4096;

ModelOutcome reduced(const std::string& spec, int ranks, int steps = 1) {
  const auto gradient = [](int rank, int step) { return model_gradient(kElements, rank, step); };
  return run_model(
      {.codec = spec, .ranks = ranks, .steps = steps, .layout = Layout::flat(kElements), .gradient = gradient});
}

/// (m-1)/m of the INT4 gradient in the node, (q-1)/q of an m-th of it between nodes, (p-1)/p of the INT8 result.
TEST(Qgz, SendsTheBytesOfItsLevels) {
  const std::uint64_t four_bits = kElements / 2 + 4 * kElements / 512;
  const std::uint64_t eight_bits = kElements + 4 * kElements / 512;
  for (const auto& rank : reduced("qgz:node=4", 8).wire)
    EXPECT_EQ(rank[0], four_bits * 3 / 4 + four_bits / 4 / 2 + eight_bits * 7 / 8);
  for (const auto& rank : reduced("qgz", 8).wire) EXPECT_EQ(rank[0], four_bits * 7 / 8 + eight_bits * 7 / 8);
}

/// Elements are uniform between codes, so one quantisation has unit^2/12, averaged over ranks; the one between nodes
/// and the last work on sums. A rank's own result is the independent Python decoder's business.
TEST(Qgz, ErrorIsThatOfItsQuantisations) {
  const double one = model_nmse(reduced("qgz:gather=8", 4));
  const double two = model_nmse(reduced("qgz:gather=8,node=2", 4));
  const double fine = model_nmse(reduced("qgz:bits=8,gather=8", 4));
  EXPECT_GT(two, 1.2 * one);
  EXPECT_LT(two, 4.0 * one);
  EXPECT_LT(fine, one / 50.0);
  EXPECT_GT(one, 0.0005);
  EXPECT_LT(one, 0.02);
}

TEST(Qgz, TwoLevelsGiveTheMeanWhereNothingIsLost) {
  // multiples of 1/8 of a block's largest, which is negative, survive every level; so do their sums over equal ranks
  const auto gradient = [](int, int) {
    std::vector<float> x(5000);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 7 % 16) - 8) * 0.25F;
    return x;
  };
  for (const std::string spec : {"qgz:node=2,gather=4", "qgz:node=3,bits=8", "qgz:node=5"}) {
    const auto out =
        run_model({.codec = spec, .ranks = 6, .steps = 1, .layout = Layout::flat(5000), .gradient = gradient});
    const auto expected = gradient(0, 0);
    for (const auto& rank : out.results) {
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(rank[0][i], expected[i], 1e-6) << spec << " " << i;
    }
  }
}

TEST(Qgz, SaysWhyItIsInOneLevel) {
  EXPECT_TRUE(reduced("qgz:node=2", 4).note.empty());
  EXPECT_TRUE(reduced("qgz:node=1", 4).note.empty());
  EXPECT_NE(reduced("qgz", 4).note.find("node has all ranks"), std::string::npos);
  EXPECT_NE(reduced("qgz:node=2", 5).note.find("node does not divide"), std::string::npos);
}

TEST(Qgz, ErrorFeedbackRemovesTheErrorOfTheFirstLevel) {
  const auto same = [](int rank, int) { return model_gradient(kElements, rank, 0); };
  const auto after = [&](const std::string& spec) {
    return model_nmse(
        run_model({.codec = spec, .ranks = 2, .steps = 16, .layout = Layout::flat(kElements), .gradient = same}));
  };
  EXPECT_LT(after("qgz:ef=on"), 0.05 * after("qgz"));
}

}  // namespace
}  // namespace gradtool::test
