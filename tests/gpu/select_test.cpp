// Selection and sparse payloads on the GPU, where codecs alone do not reach every loop.
#include "kernels/select.hpp"

#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuSelect : public NeedsGpu<testing::Test> {};

struct Chosen {
  std::vector<std::uint32_t> positions;
  std::vector<float> values;
};

Chosen on_host(const std::vector<float>& x, std::size_t k) {
  Chosen chosen{std::vector<std::uint32_t>(k), std::vector<float>(k)};
  std::vector<std::uint32_t> scratch(host::Largest::scratch_bytes(x.size(), k) / 4);
  const host::Largest largest{
      {}, {x.data(), x.size()}, {reinterpret_cast<std::byte*>(scratch.data()), 4 * scratch.size()}};
  largest.select({chosen.positions.data(), k}, chosen.values.data());
  return chosen;
}

/// `choose` makes the selection; everything lies in memory of exactly its size. With `pairs`, x is pairs.
template <class Choose>
Chosen on_gpu(const std::vector<float>& x, std::size_t room, const Choose& choose,
              std::size_t many = cuda::Select::kMany, bool pairs = false) {
  const std::size_t n = pairs ? x.size() / 2 : x.size();
  const cuda::Stream stream;
  const Guarded numbers{stream.queue(), bytes_of(x)};
  const Guarded scratch{stream.queue(), cuda::Select::scratch_bytes(n)};
  const Guarded positions{stream.queue(), 4 * room};
  const Guarded values{stream.queue(), 4 * room};
  const cuda::SelectSource from{numbers.as<float>().data(), n, pairs};
  const cuda::Select select{stream.queue(), from, scratch.bytes(), many};
  choose(select);
  select.write(positions.as<std::uint32_t>().data(), values.as<float>().data());
  std::uint32_t count = 0;
  cuda::copy(stream.queue(), HostView<std::byte>{reinterpret_cast<std::byte*>(&count), sizeof count},
             as_bytes(View<const std::uint32_t, Space::cuda>{select.count(), 1}));
  Chosen chosen{std::vector<std::uint32_t>(room), values.download_floats()};
  const auto bytes = positions.download();
  if (room > 0) std::memcpy(chosen.positions.data(), bytes.data(), bytes.size());
  static_cast<void>(scratch.download());
  EXPECT_LE(count, room);
  chosen.positions.resize(count);
  chosen.values.resize(count);
  return chosen;
}

TEST_F(GpuSelect, TheLargestAreTheHosts) {
  const std::size_t n = 70'001;
  auto x = gradient_like(n);
  for (std::size_t i = 0; i < n; i += 3) x[i] = i % 2 == 0 ? 0.004F : -0.004F;  // ties in every tile
  for (std::size_t i = 1; i < n; i += 1000) x[i] = 0.0F;
  for (const std::size_t k : {std::size_t{1}, n / 100, n / 4, n / 3, n / 2, n - 1, n}) {
    const auto host = on_host(x, k);
    const auto gpu = on_gpu(x, k, [k](const cuda::Select& select) { select.largest(k); });
    ASSERT_EQ(gpu.positions, host.positions) << k;
    expect_same(gpu.values, host.values, std::to_string(k));
  }
}

/// By a sample, which is typical, has none of the large ones (they lie where it does not look), or nothing else.
TEST_F(GpuSelect, TheLargestBySampleAreTheHosts) {
  const std::size_t n = 60'003;
  const auto place = [](std::size_t i) { return static_cast<std::uint32_t>(i / 2048) * 2654435769u >> 28; };
  const auto in_sample = [&](std::size_t i) { return i % 2048 / 128 == place(i); };
  for (const int kind : {0, 1, 2, 3}) {
    auto x = gradient_like(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (kind == 1 && in_sample(i)) x[i] *= 1e-3F;
      if (kind == 2 && in_sample(i)) x[i] *= 1e3F;
      if (kind == 3 && i % 50 != 7) x[i] = 0.0F;
    }
    for (const std::size_t k : {std::size_t{1}, n / 1000, n / 100, n / 4, n - 1, n}) {
      const auto host = on_host(x, k);
      const auto gpu = on_gpu(
          x, k, [k](const cuda::Select& select) { select.largest(k); }, 1);
      ASSERT_EQ(gpu.positions, host.positions) << kind << " " << k;
      expect_same(gpu.values, host.values, std::to_string(kind) + " " + std::to_string(k));
    }
  }
}

/// With and without a sample, and up to the last pair of an odd number; NaN, infinity and ties among the powers.
TEST_F(GpuSelect, PairsAreSelectedByTheirPowers) {
  for (const std::size_t n : {1, 2, 3, 2049, 20'002, 20'003}) {
    auto x = gradient_like(2 * n);
    for (std::size_t i = 6; i + 1 < x.size(); i += 14) x[i] = x[i + 1] = 0.25F;
    x[2 * (n / 2)] = NAN;
    x[2 * n - 1] = 1e30F;
    std::vector<float> powers(n);
    for (std::size_t i = 0; i < n; ++i) powers[i] = format::float_of(format::power_pattern(x[2 * i], x[2 * i + 1]));
    for (const std::size_t k : {std::size_t{1}, (n + 6) / 7, n}) {
      for (const std::size_t many : {std::size_t{1}, cuda::Select::kMany}) {
        const auto host = on_host(powers, k);
        const auto gpu = on_gpu(
            x, k, [k](const cuda::Select& select) { select.largest(k); }, many, true);
        ASSERT_EQ(gpu.positions, host.positions) << n << " " << k << " " << many;
        expect_same(gpu.values, host.values, std::to_string(n) + " " + std::to_string(k));
      }
    }
  }
}

TEST_F(GpuSelect, FindsADigitOfEveryPattern) {
  // Patterns that differ in one of the three digits only, among zeros.
  for (const std::uint32_t base : {0u, 0x3f800000u, 0x7f7fffffu - 600u}) {
    for (const std::uint32_t step : {1u, 1u << 9, 1u << 20}) {
      std::vector<float> x(5000, 0.0F);
      for (std::uint32_t i = 0; i < 40; ++i)
        x[(i * 7919 + 13) % 5000] = format::float_of((base + i % 20 * step) & 0x7fffffffu);
      for (const std::size_t k : {std::size_t{1}, std::size_t{7}, std::size_t{39}, std::size_t{60}}) {
        const auto host = on_host(x, k);
        const auto gpu = on_gpu(x, k, [k](const cuda::Select& select) { select.largest(k); });
        ASSERT_EQ(gpu.positions, host.positions) << base << " " << step << " " << k;
      }
    }
  }
}

TEST_F(GpuSelect, AThresholdTakesWhatReachesIt) {
  const std::size_t n = 10'007;
  auto x = gradient_like(n);
  x[77] = NAN;
  for (const float low : {0.0F, 1e-4F, 0.02F, 1e30F, INFINITY}) {
    std::vector<std::uint32_t> expected;
    for (std::size_t i = 0; i < n; ++i) {
      if (x[i] != 0.0F && !(std::fabs(x[i]) < low)) expected.push_back(static_cast<std::uint32_t>(i));
    }
    const std::uint32_t pattern = std::max(1u, format::bits_of(low));
    const auto gpu = on_gpu(x, n, [&](const cuda::Select& select) { select.at_least(pattern); });
    EXPECT_EQ(gpu.positions, expected) << low;
  }
}

/// More units of codes, and of words of a bitmap, than one block walks over at a time.
TEST_F(GpuSelect, LongIndexSectionsAreTheHosts) {
  for (const bool elias : {true, false}) {
    if (!elias && cuda::emulated()) continue;
    const std::size_t n = elias ? 1'100'000 : 9'000'000;
    std::vector<float> x(n, 0.0F);
    for (std::size_t i = 1; i < n; i += 2) x[i] = 1.0F + static_cast<float>(i % 1000);
    const std::string spec = elias ? "topk:ratio=0.5,index=elias" : "topk:ratio=0.5,index=bitmap";
    CodecRun host{spec, n};
    CudaRun gpu{spec, n};
    const auto payload = host.encode(x);
    ASSERT_TRUE(gpu.encode(x) == payload) << spec;
    expect_same(gpu.decode(payload), host.decode(payload), spec);
  }
}

}  // namespace
}  // namespace gradtool::test
