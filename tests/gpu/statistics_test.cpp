// What codecs with a statistic for each tensor do only for large ones, and votes of more ranks than reducers are run
// with.
#include "kernels/cuda/terngrad.hpp"
#include "kernels/cuda/vote.hpp"
#include "kernels/law/chunk_sums.hpp"
#include "kernels/law/ternary.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuPieces : public NeedsGpu<testing::Test> {};
class GpuStatistics : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// More chunks than are added at a time, and a tensor behind them that begins anywhere.
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

/// A block adds up 8192 chunks at a time: of 63 million elements, here of one element each. Those behind weigh most.
TEST_F(GpuPieces, SumsOfMoreChunksThanABlockTakesAtATime) {
  constexpr std::size_t kPieces = 8192 + 300;
  auto x = gradient_like(kPieces);
  for (std::size_t i = 8192; i < kPieces; ++i) x[i] = 100.0F * x[i] + 1.0F;
  std::vector<cuda::TensorPiece> pieces;
  for (std::size_t i = 0; i < kPieces; ++i) pieces.push_back({i, 1, i, 0});
  const cuda::TensorRange range{0, kPieces, kPieces};
  law::GroupedSum sum, squares;
  std::uint32_t largest = 0;
  for (const float value : x) {
    sum.add(static_cast<double>(value));
    squares.add(static_cast<double>(value) * static_cast<double>(value));
    largest = std::max(largest, law::bits_of(value) & 0x7fffffffU);
  }
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const Guarded table{queue, std::as_bytes(std::span{pieces})};
  const Guarded tensor{queue, std::as_bytes(std::span{&range, 1})};
  const Guarded gradient{queue, bytes_of(x)};
  const Guarded scale{queue, sizeof(float)};
  const Guarded words{queue, 4 * kPieces};
  const Guarded scratch{queue, cuda::terngrad_scratch_bytes(kPieces)};
  cuda::terngrad_encode(queue,
                        {table.as<cuda::TensorPiece>().data(), kPieces, tensor.as<cuda::TensorRange>().data(), 1},
                        {.clip = 1.5}, gradient.as<float>().data(), {.seed = 1}, scale.as<float>().data(),
                        words.as<std::uint32_t>().data(), scratch.bytes().data());
  EXPECT_EQ(scale.download_floats()[0], law::Ternary::scale(sum.value(), squares.value(), largest, kPieces, 1.5));
  static_cast<void>(words.download());
  static_cast<void>(scratch.download());
}

class GpuVote : public NeedsGpu<testing::TestWithParam<int>> {};

TEST_P(GpuVote, IsWhatCountingSays) {
  const auto ranks = static_cast<std::size_t>(GetParam());
  const std::size_t words = 77;
  const std::size_t slot = 96;
  const std::size_t owner = ranks / 2;
  std::vector<std::uint32_t> received(ranks * slot);
  std::vector<std::uint32_t> own(words);
  for (std::size_t i = 0; i < received.size(); ++i)
    received[i] = law::draw4({.seed = 3}, i).bits[0] | (i % 3 == 0 ? law::draw4({.seed = 4}, i).bits[1] : 0);
  for (std::size_t w = 0; w < words; ++w) own[w] = received[owner * slot + w];
  std::vector<std::uint32_t> majority(words);
  for (std::size_t w = 0; w < words; ++w) {
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      std::size_t count = 0;
      for (std::size_t r = 0; r < ranks; ++r) count += received[r * slot + w] >> bit & 1U;
      majority[w] |= (count > ranks / 2 ? 1U : 0U) << bit;
    }
  }
  std::fill_n(received.begin() + static_cast<std::ptrdiff_t>(owner * slot), slot, 0xffffffffU);  // not looked at
  const cuda::Stream stream;
  const Guarded mine{stream.queue(), std::as_bytes(std::span{own})};
  const Guarded others{stream.queue(), std::as_bytes(std::span{received})};
  cuda::vote(stream.queue(), {.ranks = ranks,
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
