// zstd: nothing is lost, and sorting the bytes pays.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "tests/codecs/codec_run.hpp"

namespace gradtool::test {
namespace {

TEST(Zstd, GivesBackEveryBit) {
  for (const std::size_t n : {1U, 65536U, 200'001U}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = format::float_of(format::draw4({.seed = n}, i).bits[0]);  // NaN and all
    CodecRun run{"zstd", n};
    const auto payload = run.encode(x);
    EXPECT_LT(payload.size(), 4 * n + n / 200 + 64);  // what cannot be compressed hardly grows
    std::vector<float> out(n, -0.0F);                 // -0 + x is x, whatever x is
    run.decode_add(payload, 1.0F, out);
    for (std::size_t i = 0; i < n; ++i) {
      if (std::isnan(x[i]))
        ASSERT_TRUE(std::isnan(out[i]));
      else
        ASSERT_EQ(format::bits_of(out[i]), format::bits_of(x[i])) << i;
    }
  }
}

TEST(Zstd, ShufflingLetsItSeeTheExponents) {
  // Random mantissas, one exponent and one sign: 23 of 32 bits cannot be saved, the other bytes all but vanish.
  const std::size_t n = 300'000;
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = format::float_of(0x3f800000U | (format::draw4({.seed = 5}, i).bits[0] & 0x007fffffU));
  CodecRun run{"zstd", n};
  const double bits = 8.0 * static_cast<double>(run.encode(x).size()) / static_cast<double>(n);
  EXPECT_GT(bits, 23.0);
  EXPECT_LT(bits, 23.4);
}

}  // namespace
}  // namespace gradtool::test
