// The tables of payload hashes, on the GPU.
#include "tests/codecs/golden_lines.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuGolden : public NeedsGpu<testing::Test> {};

TEST_F(GpuGolden, PayloadsHaveTheirHashes) {
  std::size_t checked = 0;
  for (const auto* codec : codecs()) {
    for (const auto& line : golden_lines(codec->name)) {
      // `tones` and `impulse` are inputs whose payloads do not hang on a transform's last bits.
      const bool equal =
          codec->determinism == Determinism::cross_backend || line.input == "tones" || line.input == "impulse";
      if (codec->gpu.codec == nullptr || !equal) continue;
      const auto x = golden_input(line.input);
      CudaRun run{line.spec, x.size()};
      EXPECT_EQ(hash_of(run.encode(x, kGoldenContext)), line.hash) << line.spec << " " << line.input;
      ++checked;
    }
  }
  EXPECT_GE(checked, 80U);
}

}  // namespace
}  // namespace gradtool::test
