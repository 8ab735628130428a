// NaNs of emulated kernels: those that a GPU's arithmetic makes.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/src/nan.hpp"

namespace {

/// Results of a block of 32 threads, which have x and y as their operands; volatile, so that the compiler computes none
/// of them.
template <class T, class Operation>
std::vector<T> played(T x, T y, const Operation& operation) {
  std::vector<T> results(32);
  emulation::launch(nullptr, "test", {1, 1, 1}, {32, 1, 1}, 0, [&] {
    const volatile T a = x;
    const volatile T b = y;
    results[threadIdx.x] = operation(a, b);
    __syncthreads();  // other threads run in between
    if (operation(a, b) == T{1}) results[threadIdx.x] = T{1};
  });
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return results;
}

template <class Operation>
void expect_nan(float x, float y, const Operation& operation, const char* what) {
  for (const float result : played(x, y, operation))
    EXPECT_EQ(std::bit_cast<std::uint32_t>(result), 0x7fffffffU) << what;
  // A NaN of float64 is looked at after it is rounded.
  const auto wide = [&](double a, double b) { return static_cast<double>(static_cast<float>(operation(a, b))); };
  for (const double result : played<double>(x, y, wide))
    EXPECT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(result)), 0x7fffffffU) << what << " of float64";
}

class EmulatedNan : public testing::Test {
 protected:
  void SetUp() override {
    if (!emulation::makes_gpu_nan()) GTEST_SKIP() << "NaNs are the host's in this build";
  }
};

TEST_F(EmulatedNan, IsTheGpusWhereArithmeticMakesIt) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_nan(
      kInfinity, kInfinity, [](auto a, auto b) { return a - b; }, "inf - inf");
  expect_nan(
      kInfinity, -kInfinity, [](auto a, auto b) { return a + b; }, "inf + -inf");
  expect_nan(
      kInfinity, 0.0F, [](auto a, auto b) { return a * b; }, "inf * 0");
  expect_nan(
      0.0F, 0.0F, [](auto a, auto b) { return a / b; }, "0 / 0");
  expect_nan(
      -1.0F, 0.0F, [](auto a, auto /*b*/) { return std::sqrt(a); }, "sqrt(-1)");
  expect_nan(
      kInfinity, 0.0F, [](auto a, auto b) { return std::fma(a, b, b); }, "fma");
}

TEST_F(EmulatedNan, IsTheGpusWhereASignallingOneComesIn) {
  for (const std::uint32_t bits : {0x7fa12345U, 0xffa12345U}) {
    const auto results = played(std::bit_cast<std::uint32_t>(1.0F), bits, [](std::uint32_t a, std::uint32_t b) {
      return std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
    });
    for (const std::uint32_t result : results) EXPECT_EQ(result, 0x7fffffffU);
  }
}

/// Four at a time, which the compiler makes of loops.
TEST_F(EmulatedNan, ReplacesOnlyTheNanAmongNeighbours) {
  std::vector<float> x{1.0F, std::numeric_limits<float>::infinity(), 3.0F, 4.0F};
  emulation::launch(nullptr, "test", {1, 1, 1}, {1, 1, 1}, 0, [&] {
    for (int i = 0; i < 4; ++i)
      x[static_cast<std::size_t>(i)] -= x[static_cast<std::size_t>(i)] * 0.5F + x[static_cast<std::size_t>(i)] * 0.5F;
  });
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(x[0], 0.0F);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(x[1]), 0x7fffffffU);
  EXPECT_EQ(x[2], 0.0F);
  EXPECT_EQ(x[3], 0.0F);
}

TEST_F(EmulatedNan, ComparisonsAndConversionsToIntegersStay) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float result :
       played(nan, 1.0F, [](float a, float b) { return (a < b || a > b || a == b) ? 1.0F : 2.0F; }))
    EXPECT_EQ(result, 2.0F);
  for (const float result :
       played(1e30F, 0.0F, [](float a, float b) { return static_cast<float>(static_cast<int>(a)) + b; }))
    EXPECT_EQ(result, -0x1p31F);  // on x86
}

TEST_F(EmulatedNan, TheHostsArithmeticKeepsItsOwn) {
  played(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(),
         [](float a, float b) { return a - b; });
  const volatile float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(std::bit_cast<std::uint32_t>(infinity - infinity), 0xffc00000U);
}

}  // namespace
