// Codecs with a memory of their own that have a CUDA version, against their host versions over several steps: payloads,
// results and what is held back are the same bits.
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/encoder_run.hpp"
#include "tests/codecs/not_finite.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"
#include "tests/gpu/model_on_gpu.hpp"

namespace gradtool::test {
namespace {

class GpuEncoder : public NeedsGpu<testing::TestWithParam<std::string>> {};

void expect_the_hosts(const ModelSetup& setup, const std::string& what) {
  const auto host = run_model(setup);
  const auto gpu = run_model_on_gpu(setup);
  EXPECT_EQ(gpu.note, host.note) << what;
  for (std::size_t r = 0; r < gpu.results.size(); ++r) {
    EXPECT_EQ(gpu.payload[r], host.payload[r]) << what << " rank " << r;
    expect_same(gpu.residuals[r], host.residuals[r], what + " residual of rank " + std::to_string(r));
    for (std::size_t step = 0; step < gpu.results[r].size(); ++step) {
      expect_same(gpu.results[r][step], host.results[r][step],
                  what + " rank " + std::to_string(r) + " step " + std::to_string(step));
    }
  }
}

TEST_P(GpuEncoder, IsTheHosts) {
  expect_the_hosts({.codec = GetParam(), .ranks = 2, .steps = 6, .resets_at = 4}, "model");
  expect_the_hosts({.codec = GetParam(), .ranks = 2, .side_inputs = false, .layout = several_tensors()}, "tensors");
  expect_the_hosts({.codec = GetParam(), .ranks = 1, .layout = Layout::flat(40'009)}, "flat");
}

/// Values that compare, cancel and overflow in every way.
TEST_P(GpuEncoder, IsTheHostsForDegenerateGradients) {
  const auto gradient = [](int rank, int step) {
    const std::size_t n = several_tensors().elements;
    auto x = model_gradient(n, rank, step);
    for (std::size_t i = 0; i < n; i += 5) x[i] = 0.0F;
    for (std::size_t i = 3; i < n; i += 97) x[i] = 1e-40F * static_cast<float>(1 + i % 3);
    for (std::size_t i = 700; i < 900; ++i) x[i] = i % 2 == 0 ? 0.01F : -0.01F;
    if (step == 1) x[1000] = 3e38F;
    if (step == 2) x[5000] = INFINITY;
    if (step == 3) x[12'000] = NAN;
    return x;
  };
  expect_the_hosts({.codec = GetParam(), .ranks = 1, .steps = 5, .layout = several_tensors(), .gradient = gradient},
                   "degenerate");
}

/// NaNs that arithmetic makes, over steps in which they stay in what is kept.
TEST_P(GpuEncoder, IsTheHostsForDegenerateNaNs) {
  const Layout layout = Layout::matrix(20, 27);
  for (const auto& [what, odd] : not_finite_gradients(layout.elements)) {
    if (what != "infinities of both signs" && what != "everything") continue;  // each NaN takes a while
    const auto gradient = [&odd = odd](int rank, int step) {
      return step == 1 ? odd : model_gradient(odd.size(), rank, step);
    };
    expect_the_hosts({.codec = GetParam(), .ranks = 1, .steps = 3, .layout = layout, .gradient = gradient}, what);
  }
}

/// A NaN that went through an addition is sent as the one NaN, whichever went in (docs/adr/0006).
TEST_P(GpuEncoder, WritesTheHostsNaN) {
  const Layout layout = several_tensors();
  EncoderRun host{GetParam(), layout};
  EncoderRun plain{GetParam(), layout};
  CudaRun gpu{GetParam(), layout};
  const auto encoder = gpu.codec().make_encoder(layout.elements, 1, gpu.queue());
  if (encoder == nullptr) return;  // its memory is a reducer's
  for (std::uint32_t step = 0; step < 3; ++step) {
    auto x = gradient_like(layout.elements, step);
    auto same = x;
    const std::uint32_t nans[] = {0x7fffffffU, 0xffc00001U, 0x7fa12345U, 0xffa12345U};
    for (std::size_t i = 0; i < 16 && step < 2; ++i) {  // tensors of both kinds
      x[640 + i] = x[7000 + 3 * i] = format::float_of(nans[(i + step) % 4]);
      same[640 + i] = same[7000 + 3 * i] = format::float_of(0x7fc00000U);
    }
    const Guarded gradient{gpu.queue(), bytes_of(x)};
    gpu.payload().poison(0xA5);
    encoder->encode(gpu.queue(), gradient.as<float>(), {}, {}, gpu.payload().bytes(), gpu.scratch().bytes());
    const auto expected = host.encode(x);
    auto payload = gpu.payload().download();
    ASSERT_GE(payload.size(), expected.size());
    payload.resize(expected.size());  // which it states itself
    EXPECT_EQ(plain.encode(same), expected) << "step " << step;
    EXPECT_EQ(payload, expected) << "step " << step;
  }
}

std::vector<std::string> cuda_encoders() {
  std::vector<std::string> specs;
  for (const auto& spec : specs_to_test()) {
    const CodecDescriptor& codec = *parse_codec(spec).descriptor;
    if (codec.memory && codec.gpu.codec != nullptr) specs.push_back(spec);
  }
  specs.emplace_back("dct:ratio=0.05,refresh=2");
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, GpuEncoder, testing::ValuesIn(cuda_encoders()),
                         [](const auto& info) { return test_name(info.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuEncoder);

}  // namespace
}  // namespace gradtool::test
