// The chunks of fft go through the transform in groups: here ones so small that there are several.
#include "lib/codecs/cuda/fft.hpp"

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/fft_case.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuFftGroups : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// One chunk at a time, two (the last group has one), and one chunk more than a group may have. Bytes may differ in
/// what cuFFT rounds otherwise for another number of rows.
TEST_P(GpuFftGroups, ArePartsOfTheWhole) {
  const CodecSpec spec = parse_codec(GetParam());
  for (const std::size_t n : {std::size_t{64 * 5}, std::size_t{64 * 5 + 1}, std::size_t{64 * 7 + 33}}) {
    CodecRun host{GetParam(), n};
    CudaRun whole{GetParam(), n};
    const auto x = gradient_like(n);
    const auto expected = host.decode(whole.encode(x));
    const auto payload = host.encode(x, {});
    const auto y = host.decode(payload);
    float largest = 0.0F;
    for (const float value : y) largest = std::max(largest, std::abs(value));
    for (const std::size_t group : {std::size_t{1}, std::size_t{128}, std::size_t{64 * 4 + 63}}) {
      const CudaFft codec{spec.params, group};
      const Footprint footprint = codec.plan(n);
      ASSERT_EQ(footprint.payload_bytes, whole.footprint().payload_bytes);
      for (const std::size_t shift : {0, 4}) {
        const std::string what = std::to_string(n) + " by " + std::to_string(group) + " shift " + std::to_string(shift);
        const auto queue = whole.queue();
        const Guarded gradient{queue, bytes_of(x), shift};
        const Guarded written{queue, footprint.payload_bytes};
        const Guarded scratch{queue, footprint.scratch_bytes};
        codec.encode(queue, gradient.as<float>(), {}, written.bytes(), scratch.bytes());
        EXPECT_LE(nmse(expected, host.decode(written.download())), 1e-6) << what;
        static_cast<void>(scratch.download());

        const Guarded source{queue, std::span<const std::byte>{payload}};
        const Guarded out{queue, bytes_of(x), shift};
        codec.decode_add(queue, source.bytes(), -0.5F, out.as<float>(), scratch.bytes());
        const auto sum = out.download_floats();
        static_cast<void>(scratch.download());
        for (std::size_t i = 0; i < n; ++i)
          ASSERT_NEAR(sum[i], x[i] - 0.5F * y[i], 2e-5F * largest) << what << " " << i;
      }
    }
  }
}

class GpuLargeFft : public NeedsGpu<testing::Test> {};

/// So many elements that there are several groups, and so many bins that a sample is taken to select them.
TEST_F(GpuLargeFft, IsTheHosts) {
  const std::size_t n = 144 * 65536 + 777;
  CodecRun host{"fft", n};
  CudaRun gpu{"fft", n};
  const auto x = gradient_like(n);
  const auto payload = gpu.encode(x);
  const auto y = host.decode(payload);
  EXPECT_LE(nmse(host.decode(host.encode(x, {})), y), 1e-6);
  const auto z = gpu.decode(payload);
  float largest = 0.0F;
  for (const float value : y) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(z[i], y[i], 2e-5F * largest) << i;
}

INSTANTIATE_TEST_SUITE_P(Variants, GpuFftGroups,
                         testing::Values("fft:chunk=64", "fft:chunk=64,select=chunk,bits=12",
                                         "fft:chunk=64,precision=fp16,theta=0"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
