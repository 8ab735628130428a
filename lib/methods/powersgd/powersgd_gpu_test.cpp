// PowerSGD's kernels against the CPU's functions, one by one and as whole steps.
#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/low_rank.hpp"
#include "tests/codecs/dependent_columns.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"
#include "tests/gpu/model_on_gpu.hpp"

namespace gradtool::test {
namespace {

class GpuLowRank : public NeedsGpu<testing::Test> {};

/// Matrices one behind the other in the gradient, and their factors in the messages.
struct Matrices {
  void add(std::size_t rows, std::size_t columns, std::size_t rank) {
    all.push_back({.first = elements,
                   .rows = rows,
                   .columns = columns,
                   .rank = rank,
                   .p_first = p_size,
                   .q_first = q_size,
                   .square_first = squares});
    elements += rows * columns;
    p_size += rows * rank;
    q_size += columns * rank;
    squares += rank * rank;
    largest = std::max(largest, rows * columns);
  }
  std::vector<LowRankMatrix> all;
  std::size_t elements = 0, p_size = 0, q_size = 0, squares = 0, largest = 0;
};
/// The matrices' table in device memory.
struct Table {
  Table(Queue<Space::cuda> queue, const Matrices& matrices)
      : rows{queue, std::as_bytes(std::span{matrices.all})}, largest{matrices.largest} {}
  [[nodiscard]] cuda::LowRankTable view() const { return {rows.as<const LowRankMatrix>(), largest}; }
  Guarded rows;
  std::size_t largest;
};

std::vector<float> orthonormal_on_gpu(const std::vector<float>& p, const Matrices& matrices) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const Table table{queue, matrices};
  const Guarded factors{queue, bytes_of(p)};
  Scratch<Space::cuda> planned;
  static_cast<void>(cuda::OrthonormaliseWorkspace{matrices.squares, planned});
  const Guarded scratch{queue, planned.bytes()};
  Scratch<Space::cuda> pieces{scratch.bytes()};
  cuda::orthonormalise(queue, table.view(), cuda::OrthonormaliseWorkspace{matrices.squares, pieces},
                       factors.as<float>().data());
  static_cast<void>(scratch.download());
  return factors.download_floats();
}

/// Fewer pairs of columns than a block has warps and more; fewer rows than there are parts and more.
TEST_F(GpuLowRank, ColumnsBecomeTheHostsOrthonormalOnes) {
  Matrices matrices;
  std::vector<float> p;
  std::vector<float> expected;
  std::vector<double> scratch(1100);
  for (const auto& [rows, rank] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {7, 3}, {300, 4}, {1100, 2}, {257, 22}, {60, 31}, {280, 130}}) {
    matrices.add(rows, std::max<std::size_t>(rank, 8), rank);
    auto columns = gradient_like(rows * rank, static_cast<std::uint32_t>(rows));
    for (std::size_t i = 0; i < rows; ++i) columns[i] *= 1e6F;  // columns of very different sizes
    p.insert(p.end(), columns.begin(), columns.end());
    host::orthonormalise(columns.data(), rows, std::max<std::size_t>(rank, 8), rank, scratch.data());
    expected.insert(expected.end(), columns.begin(), columns.end());
  }
  const auto found = orthonormal_on_gpu(p, matrices);
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 2e-6F) << i;
  for (auto& value : p) value *= 0x1p-60F;
  EXPECT_EQ(orthonormal_on_gpu(p, matrices), found) << "depends on the scale";
}

TEST_F(GpuLowRank, DependentAndNonFiniteColumnsAreTheHosts) {
  constexpr std::size_t kRows = 400;
  constexpr std::size_t kRank = 5;
  Matrices matrices;
  matrices.add(kRows, 8, kRank);
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
      host::orthonormalise(expected.data(), kRows, 8, kRank, scratch.data());
      const auto found = orthonormal_on_gpu(p, matrices);
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (std::isnan(expected[i]))
          ASSERT_TRUE(std::isnan(found[i])) << value << " in column " << odd << ", element " << i;
        else
          ASSERT_NEAR(found[i], expected[i], 2e-6F) << value << " in column " << odd << ", element " << i;
      }
    }
  }
}

/// The columns that the CPU drops, although the products of the two differ in their last bits; several matrices at
/// once, with one part of P and with many.
TEST_F(GpuLowRank, DropsTheHostsColumns) {
  constexpr std::size_t kRank = DependentColumns::kRank;
  for (std::uint32_t draw = 0; draw < 4; ++draw) {
    Matrices matrices;
    std::vector<float> p;
    for (const std::size_t rows : {8U, 33U, 700U, 5000U}) {
      for (const std::size_t columns : {2U, 64U, 4096U, 100'000U}) {
        matrices.add(rows, columns, kRank);
        const auto more = DependentColumns{rows, columns, 100 + draw}.p;
        p.insert(p.end(), more.begin(), more.end());
      }
    }
    const auto found = orthonormal_on_gpu(p, matrices);
    for (const LowRankMatrix& matrix : matrices.all) {
      const auto first = found.begin() + static_cast<std::ptrdiff_t>(matrix.p_first);
      const std::vector<float> own(first, first + static_cast<std::ptrdiff_t>(kRank * matrix.rows));
      auto host = DependentColumns{matrix.rows, matrix.columns, draw}.p;
      std::vector<double> scratch(matrix.rows);
      host::orthonormalise(host.data(), matrix.rows, matrix.columns, kRank, scratch.data());
      for (std::size_t j = 0; j < kRank; ++j) {
        const bool dropped = is_dropped(own, matrix.rows, j);
        EXPECT_EQ(dropped, is_dropped(host, matrix.rows, j));
        EXPECT_EQ(dropped, DependentColumns::kDropped[j])
            << "column " << j << " of " << matrix.rows << " elements, matrix of " << matrix.columns << " columns";
      }
    }
  }
}

struct Shape {
  std::size_t rows, columns;
};
/// Fewer columns than one row of threads has and more than it has; remainders of 4 along both sides.
const std::vector<Shape> kShapes{{70, 12}, {3, 1300}, {5, 27}, {33, 1100}, {600, 40}, {2600, 2}, {1, 1}, {260, 131}};

/// Products of factors have the CPU's bits on matrices of every shape in one launch, and so has what is left of the
/// residual after them, with and without a gradient that is added.
TEST_F(GpuLowRank, RebuildsAndUpdatesTheHostsBits) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{4}, std::size_t{11}}) {
    Matrices matrices;
    for (const auto& [rows, columns] : kShapes) matrices.add(rows, columns, std::min({rank, rows, columns}));
    const Table table{queue, matrices};
    const auto p = gradient_like(matrices.p_size, 1);
    const auto q = gradient_like(matrices.q_size, 2);
    const auto before = gradient_like(matrices.elements, 3);
    const auto gradient = gradient_like(matrices.elements, 4);
    std::vector<float> product(matrices.elements);
    auto settled = before;
    for (const auto& matrix : matrices.all) {
      host::rebuild_low_rank({matrix.rows, matrix.columns, matrix.columns}, matrix.rank, p.data() + matrix.p_first,
                             matrix.rows, q.data() + matrix.q_first, matrix.columns, product.data() + matrix.first,
                             settled.data() + matrix.first);
    }
    const auto sum = [&](std::vector<float> x) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += gradient[i];
      return x;
    };
    const Guarded on_p{queue, bytes_of(p)};
    const Guarded on_q{queue, bytes_of(q)};
    const Guarded on_gradient{queue, bytes_of(gradient)};
    for (const std::size_t shift : {std::size_t{0}, std::size_t{4}}) {
      const Guarded out{queue, 4 * matrices.elements, shift};
      cuda::rebuild_low_rank(queue, table.view(), on_p.as<float>().data(), on_q.as<float>().data(),
                             out.as<float>().data());
      EXPECT_EQ(out.download_floats(), product) << "rank " << rank;
      for (const bool subtracts : {true, false}) {
        for (const bool adds : {true, false}) {
          const Guarded residual{queue, bytes_of(before), shift};
          cuda::update_residual(queue, table.view(), subtracts ? on_p.as<float>().data() : nullptr,
                                subtracts ? on_q.as<float>().data() : nullptr,
                                adds ? on_gradient.as<float>().data() : nullptr, residual.as<float>().data());
          const auto& left = subtracts ? settled : before;
          EXPECT_EQ(residual.download_floats(), adds ? sum(left) : left) << "rank " << rank;
        }
      }
    }
    EXPECT_EQ(on_p.download_floats(), p);
    EXPECT_EQ(on_q.download_floats(), q);
    EXPECT_EQ(on_gradient.download_floats(), gradient);
  }
}

/// Products of skinny matrices against sums in float64: one part of the rows and many, fewer columns than a warp has
/// lanes and more, ranks on both sides of what one pass takes. Factors of other matrices are left alone.
TEST_F(GpuLowRank, SkinnyProductsAreTheSums) {
  Matrices matrices;
  for (const auto& [rows, columns] : kShapes)
    for (const std::size_t rank : {1U, 4U, 7U}) matrices.add(rows, columns, std::min({rank, rows, columns}));
  matrices.add(20, 8193, 2);
  matrices.add(40, 30, 9);
  const auto m = gradient_like(matrices.elements, 1), p = gradient_like(matrices.p_size, 2),
             q = gradient_like(matrices.q_size, 3);
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const Table table{queue, matrices};
  const Guarded on_m{queue, bytes_of(m), 4}, on_p{queue, bytes_of(p)}, on_q{queue, bytes_of(q)};
  const Guarded made_p{queue, bytes_of(p)}, made_q{queue, bytes_of(q)};
  const cuda::SkinnyProducts products{matrices.all, matrices.q_size};
  const Guarded sums{queue, 4 * products.sums()};
  const float* from = on_m.as<float>().data();
  products.project(queue, table.view(), from, on_q.as<float>().data(), made_p.as<float>().data());
  products.project_columns(queue, table.view(), from, on_p.as<float>().data(), sums.as<float>(),
                           made_q.as<float>().data());
  static_cast<void>(sums.download());
  const auto found_p = made_p.download_floats(), found_q = made_q.download_floats();
  for (const LowRankMatrix& matrix : matrices.all) {
    const auto at = [&](std::size_t i, std::size_t k) { return double{m[matrix.first + i * matrix.columns + k]}; };
    // out[j * count + o] is near the sum of `length` products, or what it was.
    const auto expect_sums = [&](const std::vector<float>& out, std::size_t first, const std::vector<float>& before,
                                 std::size_t count, std::size_t length, const auto& term) {
      for (std::size_t i = 0; i < matrix.rank * count; ++i) {
        double sum = 0.0, size = 0.0;
        for (std::size_t l = 0; l < length; ++l) {
          const double product = term(i / count, i % count, l);
          sum += product, size += std::abs(product);
        }
        if (format::is_skinny(matrix))
          ASSERT_NEAR(out[first + i], sum, 1e-6 * size + 1e-30) << matrix.rows << " x " << matrix.columns;
        else
          ASSERT_EQ(out[first + i], before[first + i]) << matrix.rows << " x " << matrix.columns;
      }
    };
    expect_sums(found_p, matrix.p_first, p, matrix.rows, matrix.columns,
                [&](auto j, auto i, auto k) { return at(i, k) * double{q[matrix.q_first + j * matrix.columns + k]}; });
    expect_sums(found_q, matrix.q_first, q, matrix.columns, matrix.rows,
                [&](auto j, auto k, auto i) { return at(i, k) * double{p[matrix.p_first + j * matrix.rows + i]}; });
  }
}

/// The shapes next to each other.
Layout all_shapes() {
  Layout layout;
  for (const auto& [rows, columns] : kShapes) {
    const Layout matrix = Layout::matrix(rows, columns);
    layout.tensors.push_back(matrix.tensors[0]);
    layout.tensors.back().first = layout.elements;
    layout.elements += matrix.elements;
  }
  return layout;
}

/// A whole step at ranks on both sides of what one pass over Q takes, on matrices of every shape, whose gradients have
/// all ranks, or one and two that are less than the factors'.
TEST_F(GpuLowRank, StepsAreTheHosts) {
  const auto of_rank = [](std::size_t rank) {
    return [rank](int sender, int step) {
      std::vector<float> x;
      for (const auto& [rows, columns] : kShapes) {
        const auto seed = static_cast<std::uint32_t>(100 * rows + 10 * static_cast<std::size_t>(step));
        const auto left = gradient_like(rows * rank, seed);  // the ranks' sum has no higher rank
        const auto right = gradient_like(columns * rank, seed + 1 + static_cast<std::uint32_t>(sender));
        for (std::size_t i = 0; i < rows; ++i) {
          for (std::size_t k = 0; k < columns; ++k) {
            float sum = 0.0F;
            for (std::size_t r = 0; r < rank; ++r) sum += left[r * rows + i] * right[r * columns + k];
            x.push_back(sum);
          }
        }
      }
      return x;
    };
  };
  struct Case {
    const char* codec;
    std::function<std::vector<float>(int, int)> gradient;
  };
  for (const auto& [codec, gradient] :
       {Case{"powersgd:rank=3,min_compression_rate=0", {}}, Case{"powersgd:rank=9,min_compression_rate=0,ef=off", {}},
        Case{"powersgd:rank=4,min_compression_rate=0,ef=off", of_rank(1)},
        Case{"powersgd:rank=4,min_compression_rate=0", of_rank(2)}}) {
    const ModelSetup setup{.codec = codec, .ranks = 2, .steps = 3, .layout = all_shapes(), .gradient = gradient};
    const auto host = run_model(setup);
    const auto gpu = run_model_on_gpu(setup);
    for (std::size_t step = 0; step < 3; ++step) {
      const auto& expected = host.results[0][step];
      const auto& found = gpu.results[0][step];
      double error = 0.0;
      double energy = 0.0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double off = static_cast<double>(found[i]) - static_cast<double>(expected[i]);
        error += off * off;
        energy += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
      }
      EXPECT_LT(error, 1e-8 * energy) << codec << ", step " << step;
      EXPECT_EQ(gpu.results[0][step], gpu.results[1][step]) << "ranks differ";
    }
  }
}

/// The residual may be brought up to date after any step, or in the next one.
TEST_F(GpuLowRank, SettlingChangesNoBit) {
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
