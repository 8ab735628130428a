// The low-rank kernels against the host's, where a whole step would not show which of them is wrong.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/low_rank.hpp"
#include "kernels/host/low_rank.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"
#include "tests/gpu/model_on_gpu.hpp"

namespace gradtool::test {
namespace {

class GpuLowRank : public NeedsGpu<testing::Test> {};

/// One unit's tables on the device.
struct Tables {
  Tables(Queue<Space::cuda> queue, const cuda::LowRankWork& work)
      : matrices{queue, std::as_bytes(std::span{work.matrices})},
        rows{queue, std::as_bytes(std::span{work.rows})},
        tiles{queue, std::as_bytes(std::span{work.tiles})},
        columns{queue, std::as_bytes(std::span{work.columns})},
        row_products{queue, std::as_bytes(std::span{work.row_products})},
        column_products{queue, std::as_bytes(std::span{work.column_products})},
        p_sums{queue, std::as_bytes(std::span{work.p_sums})},
        q_sums{queue, std::as_bytes(std::span{work.q_sums})} {}
  [[nodiscard]] cuda::LowRankTables views() const {
    return {.matrices = matrices.as<const cuda::LowRankMatrix>(),
            .rows = rows.as<const cuda::LowRankRows>(),
            .tiles = tiles.as<const cuda::LowRankTile>(),
            .columns = columns.as<const cuda::LowRankColumn>(),
            .pieces = {},
            .row_products = row_products.as<const cuda::LowRankTile>(),
            .column_products = column_products.as<const cuda::LowRankTile>(),
            .p_sums = p_sums.as<const cuda::LowRankSum>(),
            .q_sums = q_sums.as<const cuda::LowRankSum>()};
  }
  Guarded matrices, rows, tiles, columns, row_products, column_products, p_sums, q_sums;
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

struct Shape {
  std::size_t rows, columns, rank;
};
/// Matrices behind each other: of one part and of several along both sides, aligned until the one of 27 columns.
const std::vector<Shape> kShapes{{70, 12, 4}, {33, 1100, 4}, {600, 40, 3}, {3, 5300, 1}, {2600, 2, 2},
                                 {5, 27, 2},  {37, 516, 4},  {1, 1, 1},    {260, 131, 3}};

struct Products {
  Products() {
    std::size_t p_at = 3;  // as where something else travels in front of it
    for (const auto& [rows, columns, rank] : kShapes) {
      work.add_matrix(elements, rows, columns, rank, p_at, q_size);
      elements += rows * columns;
      p_at += rows * rank;
      q_size += columns * rank;
    }
    p_size = p_at;
  }
  cuda::LowRankWork work;
  std::size_t elements = 0, p_size = 0, q_size = 0;
};

/// Sums of up to a thousand products of numbers of about one, in float32.
void expect_near(const std::vector<float>& is, const std::vector<double>& expected, const char* what) {
  ASSERT_EQ(is.size(), expected.size());
  for (std::size_t i = 0; i < is.size(); ++i)
    ASSERT_NEAR(is[i], expected[i], 2e-5 * (1.0 + std::abs(expected[i]))) << what << " " << i;
}

TEST_F(GpuLowRank, DirectProductsAreTheHosts) {
  const Products shapes;
  ASSERT_TRUE(shapes.work.is_direct());
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const Tables tables{queue, shapes.work};
  const auto gradient = gradient_like(shapes.elements, 1);
  const auto q = gradient_like(shapes.q_size, 2);
  const auto last_p = gradient_like(shapes.p_size, 3);
  const auto last_q = gradient_like(shapes.q_size, 4);
  const auto held = gradient_like(shapes.elements, 5);
  std::vector<float> m = held;  // bits: what was held back, then the gradient
  std::vector<float> known(shapes.elements);
  for (const auto& matrix : shapes.work.matrices)
    host::rebuild_low_rank({matrix.rows, matrix.columns, matrix.columns}, matrix.rank, last_p.data() + matrix.p_at,
                           matrix.rows, last_q.data() + matrix.q_at, matrix.columns, known.data() + matrix.first,
                           m.data() + matrix.first);
  for (std::size_t i = 0; i < m.size(); ++i) m[i] += gradient[i];

  for (const std::size_t shift : {std::size_t{0}, std::size_t{4}}) {
    for (const bool holds : {true, false}) {
      const auto& factor = holds ? m : gradient;
      std::vector<double> p(shapes.p_size, 0.0);
      std::vector<double> next_q(shapes.q_size, 0.0);
      std::vector<float> weights(shapes.p_size, 0.0F);
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = last_p[weights.size() - 1 - i];
      for (const auto& matrix : shapes.work.matrices) {
        for (std::size_t j = 0; j < matrix.rank; ++j) {
          for (std::size_t r = 0; r < matrix.rows; ++r) {
            for (std::size_t c = 0; c < matrix.columns; ++c) {
              const double x = factor[matrix.first + r * matrix.columns + c];
              p[matrix.p_at + j * matrix.rows + r] += x * static_cast<double>(q[matrix.q_at + j * matrix.columns + c]);
              next_q[matrix.q_at + j * matrix.columns + c] +=
                  x * static_cast<double>(weights[matrix.p_at + j * matrix.rows + r]);
            }
          }
        }
      }
      const Guarded on_gradient{queue, bytes_of(gradient), shift};
      const Guarded on_held{queue, bytes_of(held), shift};
      const Guarded on_last_p{queue, bytes_of(last_p)};
      const Guarded on_last_q{queue, bytes_of(last_q), shift};
      const Guarded on_q{queue, bytes_of(q), shift};
      const Guarded on_p{queue, bytes_of(std::vector<float>(shapes.p_size, 0.0F))};
      const Guarded p_parts{queue, 4 * shapes.work.p_parts};
      const Guarded q_parts{queue, 4 * shapes.work.q_parts};
      cuda::LowRankHeld what;
      if (holds) what = {on_held.as<float>().data(), on_last_p.as<float>().data(), on_last_q.as<float>().data()};
      cuda::project_rows(queue, tables.views(), on_gradient.as<float>().data(), what, on_q.as<float>().data(),
                         p_parts.as<float>().data(), on_p.as<float>().data());
      EXPECT_EQ(on_gradient.download_floats(), gradient);
      EXPECT_EQ(on_held.download_floats(), holds ? m : held);
      EXPECT_EQ(on_q.download_floats(), q);
      expect_near(on_p.download_floats(), p, "p");
      on_p.upload(bytes_of(weights));
      cuda::project_columns(queue, tables.views(), (holds ? on_held : on_gradient).as<float>().data(),
                            on_p.as<float>().data(), q_parts.as<float>().data(), on_q.as<float>().data());
      expect_near(on_q.download_floats(), next_q, "q");
      static_cast<void>(p_parts.download());
      static_cast<void>(q_parts.download());
    }
  }
}

TEST_F(GpuLowRank, DirectProductsAreForFewColumns) {
  cuda::LowRankWork work;
  EXPECT_FALSE(work.is_direct());
  work.add_matrix(0, 1000000, 3, 4, 0, 0);
  EXPECT_TRUE(work.is_direct());
  EXPECT_LE(work.matrices[0].q_parts, 1024U);
  work.add_matrix(0, 9, 9, 5, 0, 0);
  EXPECT_FALSE(work.is_direct());
}

/// What is held back may be written down after any step, or be left to the next one.
TEST_F(GpuLowRank, WritingDownWhatIsHeldBackChangesNoBit) {
  ModelSetup setup{.codec = "powersgd:rank=4,min_compression_rate=0", .ranks = 2, .steps = 4, .resets_at = 3};
  const auto late = run_model_on_gpu(setup);
  setup.settles = true;
  const auto soon = run_model_on_gpu(setup);
  for (std::size_t r = 0; r < late.results.size(); ++r) {
    EXPECT_EQ(late.results[r], soon.results[r]);
    EXPECT_EQ(late.residuals[r], soon.residuals[r]);
  }
}

}  // namespace
}  // namespace gradtool::test
