// DeMo: the transform, what is sent and stays in the momentum, averages over senders or all, signs. The reader follows
// whole steps between ranks in NumPy, with the momentum of elements that the paper has.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "lib/methods/demo/cosine.hpp"
#include "tests/codecs/encoder_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

double basis(std::size_t n, std::size_t k, std::size_t i) {
  const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2.0 * static_cast<double>(n));
  return std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n)) * std::cos(angle);
}

TEST(Cosine, IsTheDefinitionAndItsInverse) {
  for (const auto& [rows, columns] :
       {std::pair{64U, 64U}, {1U, 1U}, {1U, 7U}, {2U, 64U}, {33U, 5U}, {63U, 64U}, {8U, 9U}}) {
    const Layout layout = Layout::matrix(rows, columns);
    const TensorChunks chunks{layout, 64, 0, [](std::size_t) { return std::size_t{0}; }};
    if (chunks.chunks().size() != 1) continue;  // a row or a column is no matrix
    const TensorChunk& chunk = chunks.chunks()[0];
    const CosineBases bases{chunks};
    const auto x = gradient_like(layout.elements);
    std::vector<float> c(layout.elements);
    host::cosine_forward(chunk, bases, x.data(), c.data());
    for (std::size_t u = 0; u < chunk.rows; ++u) {
      for (std::size_t v = 0; v < chunk.columns; v += 3) {
        double sum = 0.0;
        for (std::size_t i = 0; i < layout.elements; ++i)
          sum += static_cast<double>(x[i]) * basis(chunk.rows, u, i / chunk.columns) *
                 basis(chunk.columns, v, i % chunk.columns);
        ASSERT_NEAR(c[v * chunk.rows + u], sum, 1e-7) << rows << "x" << columns << " " << u << " " << v;
      }
    }
    std::vector<float> block(64 * 64);
    host::cosine_inverse(chunk, bases, c.data(), block.data());
    for (std::size_t i = 0; i < layout.elements; ++i)
      ASSERT_NEAR(block[i / chunk.columns * 64 + i % chunk.columns], x[i], 1e-7) << rows << "x" << columns << " " << i;
  }
}

/// amount times one coefficient's basis on a matrix of 64 x 64.
std::vector<float> wave(std::size_t u, std::size_t v, double amount) {
  std::vector<float> x(4096);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(amount * basis(64, u, i / 64) * basis(64, v, i % 64));
  return x;
}

std::vector<float> sum_of(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float off = 1e-6F) {
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], off) << i;
}

TEST(Demo, SendsTheLargestWaveAndKeepsTheOthers) {
  EncoderRun run{"demo:k=1,beta=0.5", Layout::matrix(64, 64)};
  const auto payload = run.encode(sum_of(wave(3, 5, 4.0), wave(10, 0, 1.0)));
  EXPECT_EQ(payload.size(), 8U);
  expect_near(run.decode(payload), wave(3, 5, 4.0));
  EXPECT_NEAR(run.encoder().residual()[0 * 64 + 10], 1.0F, 1e-6F);
  EXPECT_EQ(run.encoder().residual()[5 * 64 + 3], 0.0F);
  expect_near({run.encoder().target({}).data(), run.encoder().target({}).data() + 4096},
              sum_of(wave(3, 5, 4.0), wave(10, 0, 1.0)));
  // The rest decays by half, and the new gradient adds to it: 0.5 and 0.25 at (10, 0), against 0.7 elsewhere.
  expect_near(run.decode(run.encode(sum_of(wave(10, 0, 0.25), wave(2, 2, 0.7)))), wave(10, 0, 0.75));
}

TEST(Demo, RatioIsThatOfThePaper) {
  // The largest 4 of 4096 in 17 bits each: 1,927 times less than float32, the scale of the tensor not counted.
  const std::size_t n = 64 * 4096;
  EncoderRun run{"demo:k=4,values=sign", Layout::matrix(512, 512)};
  const auto payload = run.encode(gradient_like(n));
  EXPECT_NEAR(4.0 * static_cast<double>(n) / static_cast<double>(payload.size() - 4), 32.0 * 4096.0 / (4.0 * 17.0),
              19.0);
}

TEST(Demo, SignsLeaveTheirTrueValuesOutOfTheMomentum) {
  EncoderRun run{"demo:k=2,beta=1,values=sign", Layout::matrix(64, 64)};
  const auto x = sum_of(sum_of(wave(3, 5, 4.0), wave(10, 0, -2.0)), wave(1, 1, 0.5));
  expect_near(run.decode(run.encode(x)), sum_of(wave(3, 5, 3.0), wave(10, 0, -3.0)));
  for (std::size_t i = 0; i < 4096; ++i) ASSERT_NEAR(run.encoder().residual()[i], i == 65 ? 0.5F : 0.0F, 1e-5F) << i;
}

TEST(Demo, AveragesOverThoseThatSent) {
  // Both ranks send (3, 5); only one sends (0, 7).
  const auto gradient = [](int rank, int /*step*/) {
    return rank == 0 ? sum_of(wave(3, 5, 4.0), wave(0, 7, 2.0)) : sum_of(wave(3, 5, 2.0), wave(1, 1, 1.0));
  };
  const auto result = [&](const char* codec) {
    return run_model({.codec = codec, .ranks = 2, .steps = 1, .layout = Layout::matrix(64, 64), .gradient = gradient})
        .results[0][0];
  };
  const auto three = [](double a, double b, double c) {
    return sum_of(sum_of(wave(3, 5, a), wave(0, 7, b)), wave(1, 1, c));
  };
  expect_near(result("demo:k=2"), three(3.0, 2.0, 1.0));
  expect_near(result("demo:k=2,average=all"), three(3.0, 1.0, 0.5));
  const auto signs = result("demo:k=2,sign=on");
  const auto mean = three(3.0, 2.0, 1.0);
  for (std::size_t i = 0; i < signs.size(); ++i) {
    if (std::abs(mean[i]) > 1e-5F) ASSERT_EQ(signs[i], mean[i] > 0.0F ? 1.0F : -1.0F) << i;
  }
}

TEST(Demo, EverythingComesInTheEndWithoutDecay) {
  // The momentum that ranks hold and the results add up to the gradients, because coefficients are sent exactly.
  const Layout layout = several_tensors();
  const int steps = 20;
  const auto out = run_model({.codec = "demo:beta=1,average=all,k=256", .ranks = 3, .steps = steps, .layout = layout});
  std::vector<double> missing(layout.elements, 0.0);  // what went in, less what came out or is held
  double energy = 0.0;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto x = model_gradient(layout.elements, rank, step);
      for (std::size_t i = 0; i < x.size(); ++i) {
        missing[i] += static_cast<double>(x[i]) / 3.0;
        energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
    }
  }
  double off = 0.0;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    // The target of the last step is what was held before that step's coefficients were taken out.
    for (int step = 0; step + 1 < steps; ++step)
      missing[i] -= static_cast<double>(out.results[0][static_cast<std::size_t>(step)][i]);
    for (const auto& rank : out.inputs) missing[i] -= static_cast<double>(rank[steps - 1][i]) / 3.0;
    off += missing[i] * missing[i];
  }
  EXPECT_LT(off, 1e-10 * energy);
}

TEST(Demo, RecoversFromWhatIsNotFinite) {
  EncoderRun run{"demo", Layout::flat(8192)};
  auto x = gradient_like(8192);
  x[5] = NAN;
  const auto y = run.decode(run.encode(x));
  EXPECT_TRUE(std::isnan(y[0]));
  for (std::size_t i = 4096; i < 8192; ++i) ASSERT_TRUE(std::isfinite(y[i])) << "another chunk";
  for (const float value : run.decode(run.encode(gradient_like(8192)))) ASSERT_TRUE(std::isfinite(value));
}

TEST(Demo, RefusesPositionsThatAreNoneOfTheChunk) {
  EncoderRun run{"demo", Layout::flat(100)};
  auto payload = run.encode(gradient_like(100));
  payload[8 + 1] = std::byte{0xff};  // two chunks of a value each, then positions
  EXPECT_THROW(static_cast<void>(run.decode(payload)), Error);
}

}  // namespace
}  // namespace gradtool::test
