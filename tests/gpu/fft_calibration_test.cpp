// range=calibrated of fft: the memory of an encoder on the GPU decides as the host's over steps.
#include <cmath>

#include "kernels/law/fft_payload.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuFftCalibration : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// Learns, stays while the gradient grows a little, learns again after it has grown a lot, and sees zeros and a NaN.
TEST_P(GpuFftCalibration, DecidesAsTheHost) {
  for (const std::size_t n : {std::size_t{3}, std::size_t{5000}, std::size_t{70'001}}) {
    CodecRun host{GetParam(), n};
    CudaRun gpu{GetParam(), n};
    const auto on_host = host.codec().make_encoder(n, 1, host.queue());
    const auto encoder = gpu.codec().make_encoder(n, 1, gpu.queue());
    ASSERT_EQ(encoder == nullptr, n < law::kFftSmallest);
    if (encoder == nullptr) continue;
    for (const float factor : {1.0F, 0.9F, 1.1F, 1.0F, 0.0F, 16.0F, 17.0F, NAN, 16.0F, 1.0F}) {
      auto x = gradient_like(n, static_cast<std::uint32_t>(n));
      for (auto& value : x) value *= factor;
      on_host->encode(host.queue(), {x.data(), n}, {}, {}, host.payload(), host.scratch());
      const std::vector<std::byte> expected{host.payload().data(), host.payload().data() + host.payload().size()};
      const Guarded gradient{gpu.queue(), bytes_of(x)};
      encoder->encode(gpu.queue(), gradient.as<float>(), {}, {}, gpu.payload().bytes(), gpu.scratch().bytes());
      const auto payload = gpu.payload().download();
      law::FftHeader is;
      law::FftHeader should;
      std::memcpy(&is, payload.data(), sizeof is);
      std::memcpy(&should, expected.data(), sizeof should);
      ASSERT_EQ(is.bytes, should.bytes) << factor;
      ASSERT_EQ(is.mantissa, should.mantissa) << factor;
      ASSERT_EQ(is.pbase, should.pbase) << factor;
      ASSERT_EQ(std::isnan(is.scale), std::isnan(should.scale)) << factor;
      if (!std::isnan(should.scale)) ASSERT_NEAR(is.scale, should.scale, 1e-5F * should.scale) << factor;
      EXPECT_EQ(encoder->note(), on_host->note()) << factor;
      if (std::isnan(factor)) continue;
      const auto y = host.decode(expected);  // with whatever m the header says
      EXPECT_LE(nmse(y, gpu.decode(expected)), 1e-9) << factor;
      EXPECT_LE(nmse(y, host.decode(payload)), 1e-3) << factor;
    }
    encoder->reset(gpu.queue());
    on_host->reset({});
    EXPECT_EQ(encoder->note(), on_host->note());
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, GpuFftCalibration,
                         testing::Values("fft:range=calibrated,calibrate=2",
                                         "fft:range=calibrated,calibrate=1,mantissa=5,chunk=1024",
                                         "fft:range=calibrated,calibrate=3,bits=8,select=chunk,chunk=2000"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
