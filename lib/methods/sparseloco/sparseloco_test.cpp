// SparseLoCo: what is chosen of each chunk, the four bins, decaying error feedback, clipping. The reader follows whole
// steps between ranks in NumPy.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/chunk_select.hpp"
#include "tests/codecs/encoder_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

/// The k largest magnitudes by a full sort.
std::vector<std::uint16_t> by_sorting(const std::vector<float>& x, std::size_t k) {
  std::vector<std::uint16_t> order(x.size());
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return std::abs(x[a]) > std::abs(x[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(ChunkSelect, TakesTheLargestAndOfEqualOnesTheFirst) {
  const auto expect_chosen = [](const std::vector<float>& x) {
    for (const std::size_t k : {std::size_t{1}, std::size_t{2}, std::size_t{64}, x.size() / 2, x.size()}) {
      if (k < 1 || k > x.size()) continue;
      std::vector<std::uint16_t> positions(k);
      host::largest_of_chunk(x.data(), x.size(), k, positions.data());
      ASSERT_EQ(positions, by_sorting(x, k)) << k << " of " << x.size();
    }
  };
  for (const std::size_t n : {1U, 2U, 15U, 16U, 17U, 63U, 64U, 100U, 1000U, 4095U, 4096U}) {
    for (std::uint32_t seed = 0; seed < 4; ++seed) expect_chosen(gradient_like(n, seed));
    expect_chosen(std::vector<float>(n, 0.0F));
    expect_chosen(std::vector<float>(n, -0.25F));
    auto coarse = gradient_like(n, 7);
    for (auto& value : coarse) value = std::round(value * 1000.0F);  // many ties
    expect_chosen(coarse);
    coarse[n / 2] = INFINITY;
    expect_chosen(coarse);
  }
}

TEST(SparseLoco, WorkedExample) {
  // Two elements of 64 are sent, with k = 128 of 4096. So few have bins of magnitudes: 4 is above the mean of 3, code
  // 3, and -2 is below it, code 1.
  EncoderRun run{"sparseloco:k=128,beta=0.5", Layout::flat(64)};
  std::vector<float> x(64, 0.125F);
  x[3] = 4.0F;
  x[60] = -2.0F;
  const auto payload = run.encode(x);
  EXPECT_EQ(payload.size(), 8U + 4U + 4U);
  EXPECT_EQ(std::to_integer<unsigned>(payload[8]), 3U);             // 3 in 12 bits,
  EXPECT_EQ(std::to_integer<unsigned>(payload[9]), 60U % 16 * 16);  // then 60
  EXPECT_EQ(std::to_integer<unsigned>(payload[10]), 60U / 16);
  EXPECT_EQ(std::to_integer<unsigned>(payload[12]), 3U + (1U << 2));
  const auto y = run.decode(payload);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(y[i], i == 3 ? 4.0F : i == 60 ? -2.0F : 0.0F) << i;
  EXPECT_EQ(run.encoder().residual()[0], 0.125F);
  EXPECT_EQ(run.encoder().residual()[3], 0.0F);
  // The next step halves what is left: 0.0625 everywhere but at 3 and 60, and the lowest two of equal ones are sent.
  const auto next = run.decode(run.encode(std::vector<float>(64, 0.0F)));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(next[i], i < 2 ? 0.0625F : 0.0F) << i;
}

TEST(SparseLoco, BinsOverSixDeviations) {
  // The codec sends 16 of 64 elements: mean 0.75, deviation 1, so that borders are at -1.5, 0 and 1.5.
  EncoderRun run{"sparseloco:k=1024", Layout::flat(64)};
  std::vector<float> x(64, 0.0F);
  std::fill_n(x.begin() + 10, 15, 1.0F);
  x[50] = -3.0F;
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 8U + 24U + 4U);
  for (const std::size_t byte : {32U, 33U, 34U}) EXPECT_EQ(std::to_integer<unsigned>(payload[byte]), 0b10101010U);
  EXPECT_EQ(std::to_integer<unsigned>(payload[35]), 0b00101010U);
  EXPECT_EQ(run.decode(payload), x);
}

TEST(SparseLoco, LargeAndSmallOfEitherSign) {
  EncoderRun run{"sparseloco:k=4096,bins=magnitude", Layout::flat(8)};
  // Mean magnitude 3: large ones are 8 and -6.
  const std::vector<float> x{1.0F, 3.0F, 8.0F, -1.0F, -2.0F, -6.0F, 1.0F, 2.0F};
  const auto y = run.decode(run.encode(x));
  EXPECT_EQ(y, (std::vector<float>{1.75F, 1.75F, 8.0F, -1.5F, -1.5F, -6.0F, 1.75F, 1.75F}));
}

TEST(SparseLoco, RatioIsThatOfThePaper) {
  // Covenant-72B: 64 values of 14 bits in 4096 elements of 32, more than 146 times less, codebooks not counted.
  const std::size_t chunks = 16;
  EncoderRun run{"sparseloco", Layout::matrix(256, 256)};
  const auto payload = run.encode(gradient_like(chunks * 4096));
  const double without_codebooks = static_cast<double>(payload.size() - 8 * chunks);
  EXPECT_NEAR(static_cast<double>(4 * 4096 * chunks) / without_codebooks, 32.0 / (14.0 * 64.0 / 4096.0), 1.46);
}

/// A chunk of 64 x 64 of a matrix, not 4096 elements in a row, shares its 64 places.
TEST(SparseLoco, BlocksOfMatricesHaveTheirOwnShare) {
  EncoderRun run{"sparseloco", Layout::matrix(128, 192)};
  auto x = gradient_like(128 * 192);
  for (std::size_t row = 0; row < 64; ++row) {
    for (std::size_t column = 64; column < 128; ++column) x[row * 192 + column] *= 1000.0F;
  }
  const auto y = run.decode(run.encode(x));
  std::vector<std::size_t> sent(6, 0);
  for (std::size_t i = 0; i < y.size(); ++i) sent[i / 192 / 64 * 3 + i % 192 / 64] += y[i] != 0.0F ? 1U : 0U;
  for (const std::size_t count : sent) {
    EXPECT_LE(count, 64U);
    EXPECT_GE(count, 48U);  // a codebook's entry may be 0, where values of both signs share a bin
  }
}

TEST(SparseLoco, WithoutDecayNothingIsLost) {
  const std::size_t n = 9000;
  EncoderRun run{"sparseloco:beta=1", Layout::flat(n)};
  std::vector<double> given(n, 0.0);
  std::vector<double> got(n, 0.0);
  for (std::uint32_t step = 0; step < 60; ++step) {
    const auto x = gradient_like(n, step);
    const auto y = run.decode(run.encode(x));
    for (std::size_t i = 0; i < n; ++i) {
      given[i] += static_cast<double>(x[i]);
      got[i] += static_cast<double>(y[i]);
    }
  }
  for (std::size_t i = 0; i < n; ++i)
    ASSERT_NEAR(given[i], got[i] + static_cast<double>(run.encoder().residual()[i]), 1e-5) << i;
}

TEST(SparseLoco, ClipsToTheMedianNormOfEachTensor) {
  // Three ranks send the same direction at norms 1, 2 and 10: the mean of 1, 2 and 2 is left, tensor by tensor.
  const Layout layout = several_tensors();
  const auto scaled = [&](int rank, int /*step*/) {
    auto x = gradient_like(layout.elements, 3);
    for (auto& value : x) value *= rank == 0 ? 1.0F : rank == 1 ? 2.0F : 10.0F;
    return x;
  };
  const auto sum = [&](const char* codec, int ranks) {
    const auto out = run_model({.codec = codec, .ranks = ranks, .steps = 1, .layout = layout, .gradient = scaled});
    double total = 0.0;
    for (const float value : out.results[0][0]) total += std::abs(static_cast<double>(value));
    return total;
  };
  const double one = sum("sparseloco", 1);
  EXPECT_NEAR(sum("sparseloco", 3), one * 13.0 / 3.0, one * 0.02);  // the codebooks are rounded to 8 bits
  EXPECT_NEAR(sum("sparseloco:clip=median", 3), one * 5.0 / 3.0, one * 0.02);
  EXPECT_NEAR(sum("sparseloco:clip=median", 2), one, one * 0.02);  // the lower of two is the median
}

TEST(SparseLoco, RecoversFromWhatIsNotFinite) {
  EncoderRun run{"sparseloco", Layout::flat(8192)};
  auto x = gradient_like(8192);
  x[5] = NAN;
  const auto y = run.decode(run.encode(x));
  EXPECT_TRUE(std::isnan(y[5]));
  for (std::size_t i = 4096; i < 8192; ++i) ASSERT_TRUE(std::isfinite(y[i])) << "another chunk";
  for (const float value : run.decode(run.encode(gradient_like(8192)))) ASSERT_TRUE(std::isfinite(value));
}

TEST(SparseLoco, KeepsTheLargestFloatsFinite) {
  EncoderRun run{"sparseloco", Layout::flat(4096)};
  std::vector<float> x(4096, 0.0F);
  x[7] = std::numeric_limits<float>::max();  // bfloat16 would round it to infinity
  EXPECT_EQ(run.decode(run.encode(x))[7], 0x1.fep127F);
}

TEST(SparseLoco, RefusesPositionsThatAreNoneOfTheChunk) {
  EncoderRun run{"sparseloco", Layout::flat(100)};
  auto payload = run.encode(gradient_like(100));
  payload[8] = std::byte{0xff};  // the only position of the first chunk, of 64 elements
  EXPECT_THROW(static_cast<void>(run.decode(payload)), Error);
}

}  // namespace
}  // namespace gradtool::test
