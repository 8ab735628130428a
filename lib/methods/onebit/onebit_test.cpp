#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(OneBit, WorkedExample) {
  // columns (1, 3, -4), (-1, -2, -3), (0, 2, 4)
  const std::vector<float> x{1.0F, -1.0F, 0.0F, 3.0F, -2.0F, 2.0F, -4.0F, -3.0F, 4.0F};
  CodecRun run{"onebit", Layout::matrix(3, 3)};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 3U * 8U + 4U);
  float means[6];
  std::memcpy(means, payload.data(), sizeof means);
  EXPECT_EQ((std::vector<float>{means, means + 6}), (std::vector<float>{2.0F, -4.0F, 0.0F, -2.0F, 2.0F, 0.0F}));
  EXPECT_EQ(run.decode(payload), (std::vector<float>{2.0F, -2.0F, 2.0F, 2.0F, -2.0F, 2.0F, -4.0F, -2.0F, 2.0F}));
}

/// Straight from the definition, in float64.
std::vector<float> expected(const std::vector<float>& x, std::size_t first, std::size_t rows, std::size_t columns) {
  std::vector<float> y(rows * columns);
  for (std::size_t c = 0; c < columns; ++c) {
    double sum[2] = {0.0, 0.0};
    double count[2] = {0.0, 0.0};
    for (std::size_t r = 0; r < rows; ++r) {
      const float value = x[first + r * columns + c];
      sum[value < 0.0F ? 1 : 0] += static_cast<double>(value);
      count[value < 0.0F ? 1 : 0] += 1.0;
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const int kind = x[first + r * columns + c] < 0.0F ? 1 : 0;
      y[r * columns + c] = static_cast<float>(sum[kind] / count[kind]);
    }
  }
  return y;
}

TEST(OneBit, EveryColumnOfEveryTensorHasItsMeans) {
  struct Shape {
    std::size_t rows, columns;
  };
  const std::vector<Shape> shapes{{200, 1201}, {3, 27}, {20'000, 1}, {1, 33}, {70, 2}, {1, 1}};
  Layout layout;
  for (const auto& [rows, columns] : shapes) {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
    layout.tensors.push_back({.shape = shape, .first = layout.elements, .elements = rows * columns});
    layout.elements += rows * columns;
  }
  const auto x = gradient_like(layout.elements, 4);
  for (const int threads : {1, 3}) {
    CodecRun run{"onebit", layout, threads};
    const auto y = run.decode(run.encode(x));
    CodecRun whole{"onebit:means=tensor", layout, threads};
    const auto z = whole.decode(whole.encode(x));
    for (std::size_t t = 0; t < shapes.size(); ++t) {
      const std::size_t first = layout.tensors[t].first;
      const auto want = expected(x, first, shapes[t].rows, shapes[t].columns);
      const auto want_whole = expected(x, first, shapes[t].rows * shapes[t].columns, 1);
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(y[first + i], want[i], 1e-9) << "tensor " << t << " element " << i;
        ASSERT_NEAR(z[first + i], want_whole[i], 1e-9) << "tensor " << t << " element " << i;
      }
    }
  }
}

/// Within a kind the error is the variance, so sum (x - y)^2 = sum x^2 - sum y^2.
TEST(OneBit, ErrorIsTheVarianceWithinKinds) {
  const auto x = gradient_like(64 * 500, 4);
  CodecRun run{"onebit", Layout::matrix(64, 500)};
  const auto y = run.decode(run.encode(x));
  double before = 0.0;
  double after = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    before += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    after += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  }
  EXPECT_NEAR(nmse(x, y), 1.0 - after / before, 1e-6);
}

TEST(OneBit, DoesNotDependOnAFactor) {
  auto x = gradient_like(64 * 50, 6);
  CodecRun run{"onebit", Layout::matrix(64, 50)};
  const auto y = run.decode(run.encode(x));
  for (auto& value : x) value *= 0x1p-14F;
  const auto scaled = run.decode(run.encode(x));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(scaled[i], y[i] * 0x1p-14F);
}

}  // namespace
}  // namespace gradtool::test
