// The vote of signsgd on the GPU, for more ranks than reducers are tested with.
#include <algorithm>
#include <cstring>

#include "kernels/draws.hpp"
#include "lib/methods/signsgd/reducer.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuVote : public NeedsGpu<testing::TestWithParam<int>> {};

TEST_P(GpuVote, IsWhatCountingSays) {
  const auto ranks = static_cast<std::size_t>(GetParam());
  const std::size_t words = 77;
  const std::size_t slot = 96;
  const std::size_t owner = ranks / 2;
  std::vector<std::uint32_t> received(ranks * slot);
  std::vector<std::uint32_t> own(words);
  for (std::size_t i = 0; i < received.size(); ++i)
    received[i] = format::draw4({.seed = 3}, i).bits[0] | (i % 3 == 0 ? format::draw4({.seed = 4}, i).bits[1] : 0);
  for (std::size_t w = 0; w < words; ++w) own[w] = received[owner * slot + w];
  std::vector<std::uint32_t> majority(words);
  for (std::size_t w = 0; w < words; ++w) {
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      std::size_t count = 0;
      for (std::size_t r = 0; r < ranks; ++r) count += received[r * slot + w] >> bit & 1U;
      majority[w] |= (count > ranks / 2 ? 1U : 0U) << bit;
    }
  }
  std::fill_n(received.begin() + static_cast<std::ptrdiff_t>(owner * slot), slot,
              0xffffffffU);  // The owner's slot is not read.
  const cuda::Stream stream;
  const Guarded mine{stream.queue(), std::as_bytes(std::span{own})};
  const Guarded others{stream.queue(), std::as_bytes(std::span{received})};
  vote(stream.queue(), format::Votes{.ranks = ranks,
                                     .owner = owner,
                                     .own = mine.as<std::uint32_t>().data(),
                                     .received = others.as<std::uint32_t>().data(),
                                     .slot = slot,
                                     .words = words});
  const auto bytes = mine.download();
  EXPECT_EQ(std::memcmp(bytes.data(), majority.data(), bytes.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuVote, testing::Values(1, 2, 3, 4, 8, 15, 16, 33, 100));

}  // namespace
}  // namespace gradtool::test
