// The sums and masks of importance-weighted pruning on the GPU, one step at a time.
#include <algorithm>

#include "kernels/marks.hpp"
#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/params.hpp"
#include "lib/methods/iwp/chunk_moments.hpp"
#include "lib/methods/iwp/format.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuIwp : public NeedsGpu<testing::Test> {};

TEST_F(GpuIwp, MomentsAreTheHosts) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const std::size_t group = format::kSumGroup * format::kSumChunk;
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, format::kSumChunk, format::kSumChunk + 1, group + 777}) {
    const auto x = gradient_like(n);
    const auto expected = moments(Queue<Space::host>{}, {x.data(), x.size()});
    const Guarded view{queue, bytes_of(x), 4};
    const Guarded sums{queue, sizeof(double) * cuda::moment_sums(n)};
    const Guarded factor{queue, sizeof(float)};
    cuda::moments_of_chunks(queue, view.as<float>(), sums.as<double>().data());
    const double most = 0.5 * std::sqrt(expected.squares);
    cuda::clip_factor(queue, sums.as<double>().data(), n, most, factor.as<float>().data());
    const auto bytes = sums.download();
    std::vector<double> found(cuda::moment_sums(n));
    if (n > 0) std::memcpy(found.data(), bytes.data(), bytes.size());
    format::GroupedSum sum, squares;
    for (std::size_t c = 0; c < found.size() / 2; ++c) {
      sum.add(found[c]);
      squares.add(found[found.size() / 2 + c]);
    }
    EXPECT_EQ(sum.value(), expected.sum) << n;
    EXPECT_EQ(squares.value(), expected.squares) << n;
    EXPECT_EQ(factor.download_floats()[0], format::clip_factor(expected.squares, most)) << n;
  }
}

class GpuMasks : public NeedsGpu<testing::TestWithParam<std::string>> {
 protected:
  /// The bits of a bitmap with one mark, the first, that a payload is read into.
  std::vector<std::uint32_t> marked(const std::vector<std::byte>& payload, std::size_t n) const {
    const cuda::Stream stream;
    const auto queue = stream.queue();
    std::vector<std::uint32_t> words(mark_words(n));
    words[0] = 1;
    const Guarded source{queue, payload};
    const Guarded target{queue, std::as_bytes(std::span{words})};
    const auto shape = shape_of(n);
    const Guarded scratch{queue, cuda::sparse_scratch_bytes(shape)};
    cuda::mark_sparse(queue, shape, source.bytes(), target.as<std::uint32_t>().data(), scratch.bytes());
    const auto bytes = target.download();
    std::memcpy(words.data(), bytes.data(), bytes.size());
    static_cast<void>(scratch.download());
    return words;
  }
  [[nodiscard]] static cuda::SparseShape shape_of(std::size_t n) {
    const IndexCoding coding{GetParam()};
    return {.n = n, .most = n, .automatic = coding.automatic(), .fixed = coding.fixed(), .value_bits = 0};
  }
};

TEST_P(GpuMasks, MarkWhatTheyState) {
  const IndexCoding coding{GetParam()};
  for (const std::size_t n : {std::size_t{1}, std::size_t{70}, std::size_t{50'021}}) {
    std::vector<std::uint32_t> positions;
    std::vector<std::uint32_t> expected(mark_words(n));
    expected[0] = 1;
    for (std::size_t i = 0; i < n; ++i) {
      if (format::draw4({.seed = 9}, i).bits[0] % 13 != 0) continue;
      positions.push_back(static_cast<std::uint32_t>(i));
      expected[i / 32] |= 1U << i % 32;
    }
    const auto choice = coding.choose({positions.data(), positions.size()}, n);
    std::vector<std::byte> payload(sizeof(SparseHeader) + choice.bytes);
    const SparseHeader header{payload.size(), static_cast<std::uint32_t>(positions.size()),
                              static_cast<std::uint32_t>(choice.code)};
    std::memcpy(payload.data(), &header, sizeof header);
    IndexCoding::write({}, choice, {positions.data(), positions.size()}, n, payload.data() + sizeof header);
    EXPECT_EQ(marked(payload, n), expected) << n;
  }
}

/// Nothing behind the last element, or counts of marks would be wrong.
TEST_P(GpuMasks, MarkAllWhereTheyContradictThemselves) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{1000}}) {
    const SparseHeader header{sizeof(SparseHeader), static_cast<std::uint32_t>(n + 1), 0};
    std::vector<std::byte> payload(sizeof header);
    std::memcpy(payload.data(), &header, sizeof header);
    std::vector<std::uint32_t> all(mark_words(n), 0xffffffffU);
    if (n % 32 != 0) all.back() = (1U << n % 32) - 1;
    EXPECT_EQ(marked(payload, n), all) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, GpuMasks, testing::Values("auto", "u32", "bitmap", "elias"));

}  // namespace
}  // namespace gradtool::test
