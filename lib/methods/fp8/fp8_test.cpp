#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Fp8, ScalesTheLargestOfABlockToTheEndOfTheRange) {
  auto x = gradient_like(256, 3);
  for (std::size_t i = 128; i < 256; ++i) x[i] *= 1024.0F;  // blocks do not disturb each other
  CodecRun run{"fp8", x.size()};
  const auto y = run.decode(run.encode(x));
  EXPECT_LT(nmse({x.begin(), x.begin() + 128}, {y.begin(), y.begin() + 128}), 0.001);
  EXPECT_LT(nmse({x.begin() + 128, x.end()}, {y.begin() + 128, y.end()}), 0.001);
}

}  // namespace
}  // namespace gradtool::test
