#include "lib/reduce/powersgd_products.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/host/low_rank.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/ops.hpp"

namespace gradtool {
namespace {

using host::MatrixTile;
using Matrix = PowerSgdPlan::Matrix;
using Raw = PowerSgdPlan::Raw;
using Tile = PowerSgdPlan::Tile;

template <class F>
void for_each_tile(const PowerSgdPlan& plan, Queue<Space::host> queue, F&& body) {
  parallel_parts(queue, plan.tiles.size(), plan.tiles.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
    const Tile& tile = plan.tiles[t];
    const Matrix& matrix = plan.matrices[tile.matrix];
    body(tile, matrix, MatrixTile{.rows = tile.rows, .columns = tile.columns, .stride = matrix.columns},
         matrix.first + tile.row * matrix.columns + tile.column);
  });
}
template <class F>
void for_each_matrix(const PowerSgdPlan& plan, Queue<Space::host> queue, F&& body) {
  parallel_parts(queue, plan.matrices.size(), plan.matrices.size(), 1,
                 [&](std::size_t m, std::size_t, std::size_t) { body(plan.matrices[m]); });
}

}  // namespace

void powersgd_first_product(const PowerSgdPlan& plan, const PowerSgdState<Space::host>& state, Queue<Space::host> queue,
                            HostView<float> gradient, HostView<float> message, HostView<float> sums) {
  float* m = state.held(gradient);
  for (const Raw& raw : plan.raw) std::memcpy(message.data() + raw.at, gradient.data() + raw.first, 4 * raw.count);
  for_each_tile(plan, queue, [&](const Tile& tile, const Matrix& matrix, const MatrixTile& shape, std::size_t at) {
    host::project_rows(shape, m + at, state.residual.empty() ? nullptr : gradient.data() + at, matrix.rank,
                       state.q.data() + matrix.q_at + tile.column, matrix.columns, sums.data() + tile.p_at);
  });
  for_each_matrix(plan, queue, [&](const Matrix& matrix) {
    float* p = message.data() + matrix.p_at;
    std::fill_n(p, matrix.rank * matrix.rows, 0.0F);
    for (std::size_t t = matrix.first_tile; t < matrix.first_tile + matrix.tiles; ++t) {
      const Tile& tile = plan.tiles[t];
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        float* to = p + j * matrix.rows + tile.row;
        const float* from = sums.data() + tile.p_at + j * tile.rows;
        for (std::size_t i = 0; i < tile.rows; ++i) to[i] += from[i];
      }
    }
  });
}

void powersgd_second_product(const PowerSgdPlan& plan, const PowerSgdState<Space::host>& state,
                             Queue<Space::host> queue, HostView<float> gradient, HostView<float> message,
                             HostView<float> sums, HostView<double> scratch) {
  const float* m = state.held(gradient);
  for_each_matrix(plan, queue, [&](const Matrix& matrix) {
    host::orthonormalise(message.data() + matrix.p_at, matrix.rows, matrix.rank, scratch.data() + matrix.scratch_at);
  });
  for_each_tile(plan, queue, [&](const Tile& tile, const Matrix& matrix, const MatrixTile& shape, std::size_t at) {
    host::project_columns(shape, m + at, matrix.rank, message.data() + matrix.p_at + tile.row, matrix.rows,
                          sums.data() + tile.q_at);
  });
  for_each_matrix(plan, queue, [&](const Matrix& matrix) {
    float* q = state.q.data() + matrix.q_at;
    std::fill_n(q, matrix.rank * matrix.columns, 0.0F);
    for (std::size_t t = matrix.first_tile; t < matrix.first_tile + matrix.tiles; ++t) {
      const Tile& tile = plan.tiles[t];
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        float* to = q + j * matrix.columns + tile.column;
        const float* from = sums.data() + tile.q_at + j * tile.columns;
        for (std::size_t k = 0; k < tile.columns; ++k) to[k] += from[k];
      }
    }
  });
}

void powersgd_rebuild(const PowerSgdPlan& plan, const PowerSgdState<Space::host>& state, Queue<Space::host> queue,
                      HostView<float> gradient, HostView<float> message, float share) {
  scale(queue, state.q, share);
  for (const Raw& raw : plan.raw) {
    const auto part = message.part(raw.at, raw.count);
    scale(queue, part, share);
    std::memcpy(gradient.data() + raw.first, part.data(), 4 * raw.count);
  }
  for_each_tile(plan, queue, [&](const Tile& tile, const Matrix& matrix, const MatrixTile& shape, std::size_t at) {
    host::rebuild_low_rank(shape, matrix.rank, message.data() + matrix.p_at + tile.row, matrix.rows,
                           state.q.data() + matrix.q_at + tile.column, matrix.columns, gradient.data() + at,
                           state.residual.empty() ? nullptr : state.residual.data() + at);
  });
}

}  // namespace gradtool
