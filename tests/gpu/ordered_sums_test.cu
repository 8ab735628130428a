// Sums over chunks on the GPU, in the order that is part of payloads.
#include <gtest/gtest.h>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuOrderedSums : public NeedsGpu<testing::Test> {};

__global__ void sums_kernel(const double* values, std::size_t first, std::size_t last, std::size_t stride,
                            double* out) {
  __shared__ cuda::ChunkSumsShared<2> room;
  double sums[2];
  cuda::sums_of_chunks<2>(values, stride, first, last, room, sums);
  if (threadIdx.x < 2) out[threadIdx.x] = sums[threadIdx.x];
}

/// A block adds up 8192 chunks at a time for each of two sums. A tensor has so many from 63 million elements on.
TEST_F(GpuOrderedSums, OfMoreChunksThanABlockTakesAtATimeAreTheHosts) {
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{64}, std::size_t{65}, std::size_t{8192}, std::size_t{8492}}) {
    constexpr std::size_t kFirst = 7;
    const auto x = gradient_like(2 * (kFirst + count));
    std::vector<double> values(x.begin(), x.end());
    for (std::size_t i = 8192; i < values.size(); ++i) values[i] = 100.0 * values[i] + 1.0;
    format::GroupedSum expected[2];
    for (std::size_t k = 0; k < 2; ++k) {
      for (std::size_t i = kFirst; i < kFirst + count; ++i) expected[k].add(values[k * (kFirst + count) + i]);
    }
    const cuda::Stream stream;
    const Guarded in{stream.queue(), std::as_bytes(std::span{values})};
    const Guarded out{stream.queue(), 2 * sizeof(double)};
    cuda::launch(stream.queue(), "sums", sums_kernel, 1, in.as<double>().data(), kFirst, kFirst + count, kFirst + count,
                 out.as<double>().data());
    const auto bytes = out.download();
    double sums[2];
    std::memcpy(sums, bytes.data(), sizeof sums);
    EXPECT_EQ(sums[0], expected[0].value()) << count;
    EXPECT_EQ(sums[1], expected[1].value()) << count;
  }
}

}  // namespace
}  // namespace gradtool::test
