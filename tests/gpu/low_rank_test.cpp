// The low-rank kernels against the host's, where a whole step would not show which of them is wrong.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/low_rank.hpp"
#include "kernels/host/low_rank.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuLowRank : public NeedsGpu<testing::Test> {};

/// One unit's tables on the device.
struct Tables {
  Tables(Queue<Space::cuda> queue, const cuda::LowRankWork& work)
      : matrices{queue, std::as_bytes(std::span{work.matrices})},
        rows{queue, std::as_bytes(std::span{work.rows})},
        tiles{queue, std::as_bytes(std::span{work.tiles})},
        columns{queue, std::as_bytes(std::span{work.columns})} {}
  [[nodiscard]] cuda::LowRankTables views() const {
    return {.matrices = matrices.as<const cuda::LowRankMatrix>(),
            .rows = rows.as<const cuda::LowRankRows>(),
            .tiles = tiles.as<const cuda::LowRankTile>(),
            .columns = columns.as<const cuda::LowRankColumn>(),
            .pieces = {}};
  }
  Guarded matrices, rows, tiles, columns;
};

std::vector<float> orthonormal_on_gpu(const std::vector<float>& p, const cuda::LowRankWork& work) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const Tables tables{queue, work};
  const Guarded factors{queue, bytes_of(p)};
  const Guarded sums{queue, 8 * work.sums};
  const Guarded pairs{queue, 8 * work.pairs};
  const Guarded first{queue, 8 * work.squares};
  const Guarded second{queue, 8 * work.squares};
  const Guarded product{queue, 8 * work.squares};
  cuda::orthonormalise(
      queue, tables.views(),
      {sums.as<double>(), pairs.as<double>(), first.as<double>(), second.as<double>(), product.as<double>()},
      factors.as<float>().data());
  for (const auto* room : {&sums, &pairs, &first, &second, &product}) static_cast<void>(room->download());
  return factors.download_floats();
}

/// Ranks on both sides of where pairs of columns outnumber a block's threads; rows of one tile and of several.
TEST_F(GpuLowRank, ColumnsBecomeTheHostsOrthonormalOnes) {
  cuda::LowRankWork work;
  std::vector<float> p;
  std::vector<float> expected;
  std::vector<double> scratch(1100);
  for (const auto& [rows, rank] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {7, 3}, {300, 4}, {1100, 2}, {257, 22}, {60, 31}, {280, 130}}) {
    work.add_matrix(0, rows, 8, rank, p.size(), 0);
    auto columns = gradient_like(rows * rank, static_cast<std::uint32_t>(rows));
    for (std::size_t i = 0; i < rows; ++i) columns[i] *= 1e6F;  // columns of very different sizes
    p.insert(p.end(), columns.begin(), columns.end());
    host::orthonormalise(columns.data(), rows, rank, scratch.data());
    expected.insert(expected.end(), columns.begin(), columns.end());
  }
  const auto is = orthonormal_on_gpu(p, work);
  for (std::size_t i = 0; i < is.size(); ++i) ASSERT_NEAR(is[i], expected[i], 2e-6F) << i;
  for (auto& value : p) value *= 0x1p-60F;
  EXPECT_EQ(orthonormal_on_gpu(p, work), is) << "depends on the scale";
}

TEST_F(GpuLowRank, DependentAndNonFiniteColumnsAreTheHosts) {
  constexpr std::size_t kRows = 400;
  constexpr std::size_t kRank = 5;
  cuda::LowRankWork work;
  work.add_matrix(0, kRows, 8, kRank, 0, 0);
  std::vector<double> scratch(kRows);
  const auto x = gradient_like(kRows * kRank);
  for (const std::size_t odd : {std::size_t{0}, std::size_t{2}, std::size_t{4}}) {
    for (const float value : {0.0F, 1.0F, INFINITY, NAN}) {
      auto p = x;
      float* column = p.data() + odd * kRows;
      if (value == 0.0F)
        std::fill_n(column, kRows, 0.0F);
      else if (value == 1.0F)
        for (std::size_t i = 0; i < kRows; ++i) column[i] = 2.0F * p[(odd == 0 ? 1 : 0) * kRows + i];
      else
        column[17] = value;
      auto expected = p;
      host::orthonormalise(expected.data(), kRows, kRank, scratch.data());
      const auto is = orthonormal_on_gpu(p, work);
      if (value == 1.0F) {  // the host's is the rounding of the column before it, made as long as the others
        const float* dropped = is.data() + std::max<std::size_t>(odd, 1) * kRows;
        EXPECT_EQ(std::count(dropped, dropped + kRows, 0.0F), kRows) << "twin of a column, at " << odd;
        continue;
      }
      for (std::size_t i = 0; i < is.size(); ++i) {
        if (std::isnan(expected[i]))
          ASSERT_TRUE(std::isnan(is[i])) << value << " in column " << odd << ", element " << i;
        else
          ASSERT_NEAR(is[i], expected[i], 2e-6F) << value << " in column " << odd << ", element " << i;
      }
    }
  }
}

/// Bits: a few terms in one order, here and on the host.
TEST_F(GpuLowRank, RebuildsTheHostsBits) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{4}, std::size_t{11}}) {
    for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{70, 12}, {3, 1300}, {5, 27}}) {
      cuda::LowRankWork work;
      work.add_matrix(0, rows, columns, rank, 0, 0);
      const Tables tables{queue, work};
      const auto p = gradient_like(rows * rank, 1);
      const auto q = gradient_like(columns * rank, 2);
      auto left = gradient_like(rows * columns, 3);
      std::vector<float> out(rows * columns);
      const Guarded on_p{queue, bytes_of(p)};
      const Guarded on_q{queue, bytes_of(q)};
      const Guarded on_left{queue, bytes_of(left)};
      const Guarded on_out{queue, bytes_of(out)};
      cuda::rebuild_low_rank(queue, tables.views(), on_p.as<float>().data(), on_q.as<float>().data(),
                             on_out.as<float>().data(), on_left.as<float>().data());
      host::rebuild_low_rank({rows, columns, columns}, rank, p.data(), rows, q.data(), columns, out.data(),
                             left.data());
      EXPECT_EQ(on_out.download_floats(), out) << rows << " x " << columns << ", rank " << rank;
      EXPECT_EQ(on_left.download_floats(), left) << rows << " x " << columns << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace gradtool::test
