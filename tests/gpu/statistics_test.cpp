// Tests the paths that GPU codecs with a statistic for each tensor take for large tensors alone.
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuStatistics : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// More chunks than a thread adds up at a time, and a tensor behind them that begins at no special address.
TEST_P(GpuStatistics, OfManyChunksAreTheHosts) {
  constexpr std::size_t kFirst = 1030 * 7680 / 2 + 3;
  constexpr std::size_t kAll = kFirst + 700;
  Layout layout = Layout::flat(kFirst);
  layout.tensors.push_back({.shape = {700}, .first = kFirst, .elements = 700});
  layout.elements = kAll;
  const auto small = gradient_like(50'021);
  std::vector<float> x(kAll);
  for (std::size_t i = 0; i < kAll; ++i) x[i] = small[i % small.size()];
  const EncodeContext context{.key = {.seed = 4, .step = 1}};
  const auto expected = CodecRun{GetParam(), layout}.encode(x, context);
  const auto payload = CudaRun{GetParam(), layout}.encode(x, context);
  ASSERT_EQ(payload.size(), expected.size());
  EXPECT_EQ(std::memcmp(payload.data(), expected.data(), 4 * 4), 0) << "the statistics differ";
  EXPECT_TRUE(payload == expected) << "the codes differ";
}

INSTANTIATE_TEST_SUITE_P(Codecs, GpuStatistics, testing::Values("efsignsgd", "terngrad", "onebit"));

}  // namespace
}  // namespace gradtool::test
