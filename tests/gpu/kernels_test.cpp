// The kernels below the codecs, where the codec alone cannot show that the bytes are the host's, and at sizes that need
// every loop of a grid.
#include "kernels/blas.hpp"
#include "kernels/vector.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuKernels : public NeedsGpu<testing::Test> {};

TEST_F(GpuKernels, VectorLoopsRoundAsTheHost) {
  const cuda::Stream stream;
  for (const std::size_t n : {1, 3, 4, 5, 1023, 100'003, 9'000'001}) {
    for (const std::size_t shift : {0, 4}) {
      const auto x = gradient_like(n);
      const auto y = gradient_like(n, 2);
      const Guarded in{stream.queue(), bytes_of(x)};
      const Guarded out{stream.queue(), bytes_of(y), shift};
      cuda::add_scaled(stream.queue(), in.as<float>(), -0.3F, out.as<float>());
      cuda::scale(stream.queue(), out.as<float>(), 1.7F);
      std::vector<float> expected = y;
      for (std::size_t i = 0; i < n; ++i) expected[i] += -0.3F * x[i];
      for (float& value : expected) value *= 1.7F;
      expect_same(out.download_floats(), expected, "n " + std::to_string(n) + " shift " + std::to_string(shift));
    }
  }
}

/// Units that are aligned, one whose `from` is not, and one whose `to` is not.
TEST_F(GpuKernels, UnitsAreSubtractedAsOnTheHost) {
  const cuda::Stream stream;
  const std::size_t starts[] = {0, 1024, 1029, 3000};
  const auto x = gradient_like(4000);
  const auto y = gradient_like(4000, 2);
  const Guarded from{stream.queue(), bytes_of(x)};
  const Guarded to{stream.queue(), bytes_of(y)};
  std::vector<cuda::Unit> units;
  std::vector<float> expected = y;
  for (std::size_t u = 0; u + 1 < std::size(starts); ++u) {
    const std::size_t first = starts[u], n = starts[u + 1] - first - 1, at = u == 1 ? first + 1 : first;
    units.push_back({from.as<float>().data() + at, to.as<float>().data() + first, n});
    for (std::size_t i = 0; i < n; ++i) expected[first + i] -= x[at + i];
  }
  cuda::subtract(stream.queue(), units);
  expect_same(to.download_floats(), expected, "units");
}

/// Products of many shapes in one call, more than one launch stores addresses of, and again with fewer. Elements
/// between columns are left alone.
TEST_F(GpuKernels, ManyProductsAreTheSums) {
  struct Place {
    std::size_t m, n, k, a, b, c, gap;
    bool a_transposed, b_transposed;
  };
  std::vector<Place> places;
  std::size_t a_size = 0, b_size = 0, c_size = 0;
  for (std::size_t i = 0; i < 300; ++i) {
    const Place place{1 + i % 7, 1 + i % 5, 1 + i % 11, a_size, b_size, c_size, i % 3, i % 2 == 1, i % 4 >= 2};
    a_size += place.m * place.k;
    b_size += place.k * place.n;
    c_size += (place.m + place.gap) * place.n;
    places.push_back(place);
  }
  const auto a = gradient_like(a_size, 1), b = gradient_like(b_size, 2), before = gradient_like(c_size, 3);
  const cuda::Stream stream;
  const Guarded on_a{stream.queue(), bytes_of(a)}, on_b{stream.queue(), bytes_of(b)};
  const auto blas = cuda::Blas::of_this_thread();
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{128}, places.size()}) {
    const Guarded on_c{stream.queue(), bytes_of(before)};
    const Guarded work{stream.queue(), blas->work_bytes(count)};
    std::vector<cuda::Product> products;
    std::vector<float> expected = before;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& [m, n, k, first_a, first_b, first_c, gap, a_transposed, b_transposed] = places[i];
      products.push_back({m,
                          n,
                          k,
                          {on_a.as<float>().data() + first_a, a_transposed ? k : m, a_transposed},
                          {on_b.as<float>().data() + first_b, b_transposed ? n : k, b_transposed},
                          on_c.as<float>().data() + first_c,
                          m + gap});
      for (std::size_t row = 0; row < m; ++row) {
        for (std::size_t column = 0; column < n; ++column) {
          double sum = 0.0;
          for (std::size_t l = 0; l < k; ++l) {
            sum += double{a[first_a + (a_transposed ? row * k + l : l * m + row)]} *
                   double{b[first_b + (b_transposed ? l * n + column : column * k + l)]};
          }
          expected[first_c + column * (m + gap) + row] = static_cast<float>(-0.5 * sum);
        }
      }
    }
    blas->multiply(stream.queue(), work.bytes(), -0.5F, products);
    const auto found = on_c.download_floats();
    double most = 0.0;
    for (const float value : expected) most = std::max(most, std::abs(double{value}));
    for (std::size_t i = 0; i < c_size; ++i) ASSERT_NEAR(found[i], expected[i], 1e-6 * most) << count << " " << i;
  }
}

/// More buckets than there are warps in the grid, and pieces of large ones.
TEST_F(GpuKernels, LargeQsgdIsTheHosts) {
  for (const char* spec : {"qsgd:bits=4,bucket=32", "qsgd:bits=3,bucket=512,norm=l2", "qsgd:bits=8,bucket=1048576"}) {
    const std::size_t n = 4'200'001;
    CodecRun host{spec, n};
    CudaRun gpu{spec, n};
    const auto x = gradient_like(n);
    const auto payload = host.encode(x, {});
    ASSERT_EQ(gpu.encode(x, {}), payload) << spec;
    expect_same(gpu.decode(payload), host.decode(payload), spec);
  }
}

TEST_F(GpuKernels, EveryHalfIsDecodedAndEncodedAsOnTheHost) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const auto bytes = std::as_bytes(std::span{halves});
  for (const std::string spec : {"fp16", "bf16"}) {
    CudaRun gpu{spec, halves.size()};
    std::vector<float> values(halves.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = spec == "fp16" ? format::f32_from_f16(halves[i]) : format::f32_from_bf16(halves[i]);
    std::vector<float> sums(halves.size(), 0.0F);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += 1.0F * values[i];
    expect_same(gpu.decode(bytes), sums, spec);
    const auto payload = gpu.encode(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t code = 0;
      std::memcpy(&code, payload.data() + 2 * i, 2);
      const std::uint16_t expected =
          spec == "fp16" ? format::f16_from_f32(values[i]) : format::bf16_from_f32(values[i]);
      ASSERT_EQ(code, expected) << spec << " " << i;
    }
  }
}

}  // namespace
}  // namespace gradtool::test
