#include <gtest/gtest.h>

#include "kernels/float_bits.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Bf16, PayloadIsTheUpperHalfRoundedToEven) {
  const std::vector<float> x{1.0F, -2.5F, format::float_of(0x3f808000), format::float_of(0x3f818000), 3.4e38F, 1e-40F};
  const std::vector<std::uint16_t> expected{0x3f80, 0xc020, 0x3f80, 0x3f82, 0x7f80, 0x0001};
  CodecRun run{"bf16", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 12U);
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, payload.data() + 2 * i, 2);
    EXPECT_EQ(code, expected[i]) << x[i];
  }
}

/// Mantissas are spread evenly enough that the error is that of a uniform one: the mean of (2^-9 2^e u)^2/3 over x^2.
TEST(Bf16, ErrorIsThatOfAUniformMantissa) {
  const auto x = gradient_like(1 << 16, 3);
  CodecRun run{"bf16", x.size()};
  const double measured = nmse(x, run.decode(run.encode(x)));
  double expected = 0.0;
  double energy = 0.0;
  for (const float value : x) {
    const double spacing = std::ldexp(1.0, std::ilogb(value) - 7);
    expected += spacing * spacing / 12.0;
    energy += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(measured, expected / energy, 0.02 * expected / energy);
}

}  // namespace
}  // namespace gradtool::test
