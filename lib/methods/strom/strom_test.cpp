// Strom's threshold: the rule, its residual, the sizes of its forms.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Strom, SendsTauWithTheSignAboveTau) {
  const std::vector<float> x{0.25F, -0.25F, 0.2500001F, -0.3F, 7.0F, 0.0F, -0.0F, 1e-40F};
  const std::vector<float> expected{0.0F, 0.0F, 0.25F, -0.25F, 0.25F, 0.0F, 0.0F, 0.0F};
  for (const char* spec : {"strom:tau=0.25", "strom:tau=0.25,index=words", "strom:tau=0.25,index=bitmap",
                           "strom:tau=0.25,index=elias", "strom:tau=0.25,index=u32", "strom:tau=0.25,form=dense"}) {
    CodecRun run{spec, x.size()};
    EXPECT_EQ(run.decode(run.encode(x)), expected) << spec;
  }
}

TEST(Strom, LargeValuesDrainByTauAStep) {
  // u = g + e; the residual of a constant gradient above tau grows by g - tau, one below it is sent every tau/g steps.
  CodecRun run{"strom:tau=0.25", 2};
  std::vector<float> residual(2, 0.0F);
  std::vector<double> got(2, 0.0);
  for (int step = 0; step < 100; ++step) {
    residual[0] += step == 0 ? 10.0F : 0.0F;
    residual[1] += 0.0625F;
    const auto payload = run.encode(residual);
    const auto y = run.decode(payload);
    run.decode_add(payload, -1.0F, residual);
    for (std::size_t i = 0; i < 2; ++i) got[i] += static_cast<double>(y[i]);
    EXPECT_EQ(y[0], step < 39 ? 0.25F : 0.0F) << step;  // 0.25 is not above 0.25
    EXPECT_LE(std::abs(residual[1]), 0.25F);
  }
  EXPECT_EQ(got[0] + static_cast<double>(residual[0]), 10.0);
  EXPECT_EQ(got[1] + static_cast<double>(residual[1]), 6.25);
}

TEST(Strom, AutoIsTheSmallestForm) {
  const std::size_t n = 20'000;
  const auto x = gradient_like(n, 3);
  for (const char* tau : {"0.0001", "0.004", "0.01", "0.02"}) {
    const auto size = [&](const std::string& rest) {
      return CodecRun{"strom:tau=" + std::string{tau} + rest, n}.encode(x).size();
    };
    const std::size_t best = std::min({size(",index=words"), size(",index=bitmap"), size(",index=elias")});
    EXPECT_EQ(size(""), best) << tau;
    EXPECT_GE(size(",index=u32"), size(",index=words")) << tau;
    EXPECT_EQ(size(",form=dense"), n / 4);
  }
}

TEST(Strom, AllFormsSayTheSame) {
  const std::size_t n = 5003;
  auto x = gradient_like(n, 4);
  CodecRun words{"strom:tau=0.003,index=words", n};
  const auto expected = words.decode(words.encode(x));
  std::size_t sent = 0;
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(expected[i], std::abs(x[i]) > 0.003F ? std::copysign(0.003F, x[i]) : 0.0F);
    sent += expected[i] != 0.0F ? 1U : 0U;
  }
  EXPECT_EQ(words.encode(x).size(), 16 + 4 * sent);
  for (const char* form : {"index=bitmap", "index=elias", "index=u32", "form=dense"}) {
    CodecRun run{std::string{"strom:tau=0.003,"} + form, n, 2};
    EXPECT_EQ(run.decode(run.encode(x)), expected) << form;
  }
}

TEST(Strom, NothingSentIsAHeader) {
  CodecRun run{"strom:tau=1", 1000};
  EXPECT_EQ(run.encode(gradient_like(1000)).size(), 16U);
}

}  // namespace
}  // namespace gradtool::test
