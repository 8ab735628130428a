// Codecs of blocks, buckets and windows on the GPU against the host, for block sizes of every kind: blocks that lie in
// a window of 128 elements, that do not, that are held in registers, and that are cut into pieces.
#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

const EncodeContext kBlockContext{.key = {.seed = 42, .step = 3, .rank = 1, .tensor = 9}};

class GpuBlockFormat : public NeedsGpu<testing::TestWithParam<std::string>> {};

void compare(const std::string& spec, const std::vector<float>& x, const std::string& what) {
  const std::size_t n = x.size();
  CodecRun host{spec, n};
  CudaRun gpu{spec, n};
  const auto payload = host.encode(x, kBlockContext);
  const std::vector<float> start = gradient_like(n, 8);
  std::vector<float> expected = start;
  host.decode_add(payload, -0.3F, expected);
  for (const std::size_t shift : {0, 4, 8, 12}) {  // bytes behind a 16-byte border
    ASSERT_EQ(gpu.encode(x, kBlockContext, 0xA5, shift), payload) << what << " shift " << shift;
    if (shift > 4) continue;
    std::vector<float> out = start;
    gpu.decode_add(payload, -0.3F, out, shift);
    expect_same(out, expected, what + " shift " + std::to_string(shift));
  }
}

TEST_P(GpuBlockFormat, WritesTheHostsPayloadForBlocksOfAnySize) {
  for (const std::size_t n : {1, 3, 33, 129, 500, 4097})
    compare(GetParam(), gradient_like(n), "n " + std::to_string(n));
}

/// Each block of up to 1000 elements sees one of these values alone.
TEST_P(GpuBlockFormat, WritesTheHostsPayloadForDegenerateValues) {
  const std::vector<float> values{0.0F, -0.0F, 1e-40F, 0x1p-101F, 3e38F, INFINITY, -INFINITY, NAN, -NAN};
  auto x = gradient_like(9001);
  for (std::size_t i = 0; i < values.size(); ++i) x[1000 * i + 700] = values[i];
  compare(GetParam(), x, "all values");
  for (const float value : {0.0F, 1e-40F, 0x1p-101F, 3e38F, NAN})
    compare(GetParam(), std::vector<float>(300, value), "nothing but " + std::to_string(value));
}

std::vector<std::string> block_specs() {
  std::vector<std::string> specs{"natural"};
  const auto add = [&](const std::string& format, std::initializer_list<int> blocks) {
    for (const int block : blocks) {
      for (const char* rounding : {"nearest", "stochastic"})
        specs.push_back(format + "block=" + std::to_string(block) + ",rounding=" + rounding);
    }
  };
  add("int8:", {32, 64, 96, 128, 2048, 8224});
  add("fp8:format=e4m3,", {4, 8, 12, 16, 128, 132, 512, 4100});
  add("fp8:format=e5m2,", {4, 12, 128, 4100});
  add("fp8:scale=unit,", {128});
  for (const char* row : {"4", "12", "128", "512", "4100"}) {
    for (const char* rounding : {"nearest", "stochastic"})
      specs.push_back(std::string{"fp8:scale=row,row="} + row + ",rounding=" + rounding);
  }
  for (const char* format : {"e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m0", "int8"}) {
    for (const char* rounding : {"nearest", "stochastic"}) {
      for (const char* scale : {"block", "unit"})
        specs.push_back(std::string{"mx:format="} + format + ",rounding=" + rounding + ",scale=" + scale);
    }
  }
  for (const char* bits : {"4", "8"}) {
    for (const char* block : {"32", "96", "512", "8224"})
      specs.push_back(std::string{"qgz:bits="} + bits + ",block=" + block);
  }
  for (int bits = 2; bits <= 8; ++bits) {
    for (const char* bucket : {"32", "96", "512", "8224"}) {
      for (const char* norm : {"max", "l2"})
        specs.push_back("qsgd:bits=" + std::to_string(bits) + ",bucket=" + bucket + ",norm=" + norm);
    }
  }
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Formats, GpuBlockFormat, testing::ValuesIn(block_specs()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
