#include "kernels/lanes.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace gradtool::host {
namespace {

/// The dot product of two vectors of whole lanes, and b times their elements after it.
struct Products {
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const float* a, const float* b, std::size_t count, float* out) {
    Lanes<Bytes> sum, scaled, x, y;
    for (std::size_t i = 0; i < count; i += Lanes<Bytes>::kCount) {
      x.load(a + i);
      y.load(b + i);
      sum.add_product(x, y);
      scaled.add_product(x, b[i]);
    }
    out[0] = sum.sum();
    scaled.store(out + 1);
  }
};

TEST(Lanes, BitsDoNotDependOnTheWidthOfRegisters) {
  constexpr std::size_t kCount = 64;
  std::vector<float> a(kCount), b(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = 1.0F / static_cast<float>(3 * i + 1);
    b[i] = static_cast<float>(i % 7) - 2.7F;
  }
  // Scalar sums in the order that the header states.
  std::vector<float> want(17), lane(16);
  for (std::size_t i = 0; i < kCount; ++i) {
    lane[i % 16] += a[i] * b[i];
    want[1 + i % 16] += a[i] * b[i / 16 * 16];
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  want[0] = lane[0];
  std::vector<float> out(17);
  Products::run<16>(a.data(), b.data(), kCount, out.data());
  EXPECT_EQ(out, want);
  Products::run<32>(a.data(), b.data(), kCount, out.data());
  EXPECT_EQ(out, want);
  Products::run<64>(a.data(), b.data(), kCount, out.data());
  EXPECT_EQ(out, want);
  out.assign(17, 0.0F);
  run_with_vectors<Products>(static_cast<const float*>(a.data()), static_cast<const float*>(b.data()), kCount,
                             out.data());
  EXPECT_EQ(out, want) << "in this processor's registers";
}

}  // namespace
}  // namespace gradtool::host
