// AdaComp: bins, soft threshold, ternary values, residue.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/encoder_run.hpp"

namespace gradtool::test {
namespace {

TEST(AdaComp, WorkedExample) {
  // Bins of 4: largest 1.0 and 0.5, scale 0.75. First step, s = 2: sent is what reaches half the bin's largest.
  EncoderRun run{"adacomp:other=4", Layout::flat(8)};
  const std::vector<float> x{1.0F, -0.5F, 0.49F, 0.0F, 0.1F, -0.5F, 0.3F, 0.2F};
  const auto payload = run.encode(x);
  EXPECT_EQ(payload.size(), 8U + 4U + 8U);  // 2 counts and 4 entries of one byte, padded
  EXPECT_EQ(run.decode(payload), (std::vector<float>{0.75F, -0.75F, 0.0F, 0.0F, 0.0F, -0.75F, 0.75F, 0.0F}));
  EXPECT_EQ(run.encoder().residual()[0], 0.25F);
  EXPECT_EQ(run.encoder().residual()[1], 0.25F);
  EXPECT_EQ(run.encoder().residual()[2], 0.49F);
  // Second step without gradient: H = G, so only the largest of each bin goes: 0.49, and -0.45 (0.3 - 0.75).
  const auto y = run.decode(run.encode(std::vector<float>(8, 0.0F)));
  const float scale = (0.49F + 0.45F) / 2.0F;
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[i], i == 2 ? scale : i == 6 ? -scale : 0.0F, 1e-7F) << i;
}

/// The algorithm as the paper states it, element by element.
std::vector<float> reference(const std::vector<float>& g, std::vector<float>& residue, std::size_t first,
                             std::size_t count, std::size_t bin, double s) {
  std::vector<float> sent(count, 0.0F);
  std::vector<std::size_t> chosen;
  double scale = 0.0;
  std::size_t bins = 0;
  for (std::size_t start = 0; start < count; start += bin, ++bins) {
    float largest = 0.0F;
    for (std::size_t j = start; j < std::min(count, start + bin); ++j) {
      residue[first + j] += g[first + j];
      largest = std::max(largest, std::abs(residue[first + j]));
    }
    for (std::size_t j = start; j < std::min(count, start + bin); ++j) {
      const float h = residue[first + j] + static_cast<float>(s - 1.0) * g[first + j];
      if (std::abs(h) >= largest && residue[first + j] != 0.0F) chosen.push_back(j);
    }
    scale += static_cast<double>(largest);
  }
  const auto mean = static_cast<float>(scale / static_cast<double>(bins));
  for (const std::size_t j : chosen) {
    sent[j] = std::copysign(mean, residue[first + j]);
    residue[first + j] -= sent[j];
  }
  return sent;
}

TEST(AdaComp, FollowsThePaperOverSteps) {
  Layout layout;
  const auto add = [&](std::vector<std::int64_t> shape, const char* kind, std::size_t elements) {
    layout.tensors.push_back({.shape = std::move(shape), .kind = kind, .first = layout.elements, .elements = elements});
    layout.elements += elements;
  };
  add({64, 32, 3, 3}, "conv", 18432);  // more than one piece
  add({17}, "norm", 17);
  add({10, 129}, "linear", 1290);
  const std::size_t n = layout.elements;
  for (const auto& [spec, s] : {std::pair{"adacomp", 2.0}, {"adacomp:s=3,conv=64,other=65", 3.0}}) {
    const std::size_t conv = s == 2.0 ? 50 : 64;
    const std::size_t other = s == 2.0 ? 500 : 65;
    EncoderRun run{spec, layout, 2};
    std::vector<float> residue(n, 0.0F);
    for (std::uint32_t step = 0; step < 8; ++step) {
      const auto x = gradient_like(n, step);
      const auto payload = run.encode(x);
      const auto y = run.decode(payload);
      std::size_t sent = 0;
      std::size_t expected_bytes = 8 + 4 * 3;
      for (std::size_t t = 0; t < 3; ++t) {
        const auto& tensor = layout.tensors[t];
        const std::size_t bin = t == 0 ? conv : other;
        const auto expected = reference(x, residue, tensor.first, tensor.elements, bin, s);
        std::size_t sent_of_tensor = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_FLOAT_EQ(y[tensor.first + i], expected[i]) << step << " " << i;
          sent_of_tensor += expected[i] != 0.0F ? 1U : 0U;
        }
        const std::size_t bins = (tensor.elements + bin - 1) / bin;
        EXPECT_GE(sent_of_tensor, bins) << "every bin sends at least its largest";
        expected_bytes += ((bin <= 64 ? 1 : 2) * (bins + sent_of_tensor) + 3) / 4 * 4;
        sent += sent_of_tensor;
      }
      EXPECT_EQ(payload.size(), expected_bytes);
      EXPECT_EQ(run.codec().values_in({payload.data(), payload.size()}, n), sent);
      for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(run.encoder().residual()[i], residue[i], 1e-7F) << step;
    }
  }
}

TEST(AdaComp, NothingIsLost) {
  const std::size_t n = 3000;
  EncoderRun run{"adacomp", Layout::flat(n)};
  std::vector<double> given(n, 0.0);
  std::vector<double> got(n, 0.0);
  for (std::uint32_t step = 0; step < 50; ++step) {
    const auto x = gradient_like(n, step);
    const auto y = run.decode(run.encode(x));
    for (std::size_t i = 0; i < n; ++i) {
      given[i] += static_cast<double>(x[i]);
      got[i] += static_cast<double>(y[i]);
    }
  }
  for (std::size_t i = 0; i < n; ++i)
    ASSERT_NEAR(given[i], got[i] + static_cast<double>(run.encoder().residual()[i]), 1e-6) << i;
}

TEST(AdaComp, ScaleMovesOnlyTheScale) {
  const std::size_t n = 2000;
  EncoderRun small{"adacomp", Layout::flat(n)};
  EncoderRun large{"adacomp", Layout::flat(n)};
  for (std::uint32_t step = 0; step < 4; ++step) {
    auto x = gradient_like(n, step);
    const auto a = small.encode(x);
    for (auto& value : x) value *= 1024.0F;
    const auto b = large.encode(x);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_TRUE(std::equal(a.begin() + 12, a.end(), b.begin() + 12));
    float first = 0.0F;
    float second = 0.0F;
    std::memcpy(&first, a.data() + 8, 4);
    std::memcpy(&second, b.data() + 8, 4);
    EXPECT_EQ(first * 1024.0F, second);
  }
}

TEST(AdaComp, RecoversFromWhatIsNotFinite) {
  EncoderRun run{"adacomp:other=4", Layout::flat(8)};
  const auto y = run.decode(run.encode(std::vector<float>{NAN, 1.0F, 0.0F, 0.0F, 1.0F, 0.0F, 0.0F, -INFINITY}));
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isnan(y[7]));
  for (const float value : run.decode(run.encode(std::vector<float>(8, 0.5F)))) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace gradtool::test
