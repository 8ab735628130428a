// Steps between the collectives of methods that spread a power iteration over ranks, on the CPU.
#include "lib/codecs/low_rank_steps.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/vector.hpp"

namespace gradtool {

LowRankPlan::LowRankPlan(const Layout& layout, const std::function<std::size_t(const TensorShape&)>& rank_of) {
  for (const TensorShape& tensor : layout.tensors) {
    const std::size_t r = rank_of(tensor);
    if (r > 0) {
      const std::size_t rows = tensor.rows();
      const std::size_t columns = tensor.columns();
      matrices.push_back({.first = tensor.first,
                          .rows = rows,
                          .columns = columns,
                          .rank = r,
                          .p_first = p_size,
                          .q_first = q_size,
                          .column_first = ranks,
                          .square_first = squares});
      p_size += r * rows;
      q_size += r * columns;
      ranks += r;
      squares += r * r;
      continue;
    }
    const bool continues = !uncompressed.empty() &&
                           uncompressed.back().first + uncompressed.back().count == tensor.first &&
                           uncompressed.back().message_first + uncompressed.back().count == p_size;
    if (continues)
      uncompressed.back().count += tensor.elements;
    else
      uncompressed.push_back({.first = tensor.first, .count = tensor.elements, .message_first = p_size});
    p_size += tensor.elements;
  }
}

namespace {

/// A column of Q starts a power iteration when it is neither zero nor not finite.
bool starts_iteration(HostView<const float> column) {
  double squares = 0.0;
  for (const float x : column.span()) squares += static_cast<double>(x) * static_cast<double>(x);
  return squares > 0.0 && std::isfinite(squares);
}

}  // namespace

HostLowRankSteps::HostLowRankSteps(const LowRankPlan& plan, Queue<Space::host> /*queue*/) : plan_{plan} {
  for (const LowRankMatrix& matrix : plan.matrices) cut(matrix);
}

void HostLowRankSteps::cut(const LowRankMatrix& matrix) {
  const std::size_t width = std::min(matrix.columns, kTileColumns);
  const std::size_t height = std::max<std::size_t>(kTileElements / width, 1);
  const std::size_t first_tile = tiles_.size();
  for (std::size_t row = 0; row < matrix.rows; row += height) {
    for (std::size_t column = 0; column < matrix.columns; column += width) {
      const host::MatrixTile shape{.rows = std::min(height, matrix.rows - row),
                                   .columns = std::min(width, matrix.columns - column),
                                   .stride = matrix.columns};
      tiles_.push_back({cuts_.size(), row, column, shape, p_sums_, q_sums_});
      p_sums_ += matrix.rank * shape.rows;
      q_sums_ += matrix.rank * shape.columns;
    }
  }
  cuts_.push_back({first_tile, tiles_.size() - first_tile, rows_});
  rows_ += matrix.rows;
}

template <class Body>
void HostLowRankSteps::for_each_tile(Queue<Space::host> queue, const Body& body) const {
  parallel_parts(queue, tiles_.size(), tiles_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
    const Tile& tile = tiles_[t];
    const LowRankMatrix& matrix = plan_.matrices[tile.matrix];
    body(tile, matrix, matrix.first + tile.row * matrix.columns + tile.column);
  });
}
template <class Body>
void HostLowRankSteps::for_each_cut(Queue<Space::host> queue, const Body& body) const {
  parallel_parts(queue, cuts_.size(), cuts_.size(), 1,
                 [&](std::size_t m, std::size_t, std::size_t) { body(cuts_[m], plan_.matrices[m]); });
}

/// Draws every rank's columns from the same key.
void HostLowRankSteps::draw_columns(Queue<Space::host> queue, HostView<float> q, const format::DrawKey& key,
                                    bool redraw_all) const {
  for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
    for (std::size_t j = 0; j < matrix.rank; ++j) {
      const std::size_t first = matrix.q_first + j * matrix.columns;
      const auto column = q.part(first, matrix.columns);
      if (!redraw_all && starts_iteration(column)) continue;
      for (std::size_t k = 0; k < matrix.columns; ++k) column[k] = format::normal(key, first + k);
    }
  });
}

void HostLowRankSteps::first_product(const Workspace& work, Queue<Space::host> queue, const State& state,
                                     HostView<float> gradient, const format::DrawKey& key, bool redraw_all) const {
  draw_columns(queue, state.q, key, redraw_all);
  for (const LowRankPlan::Uncompressed& part : plan_.uncompressed)
    std::copy_n(gradient.data() + part.first, part.count, state.p.data() + part.message_first);
  project(work, queue, state.matrices(gradient), state.q, state.p, state.residual.empty() ? nullptr : gradient.data());
}

void HostLowRankSteps::project(const Workspace& work, Queue<Space::host> queue, HostView<float> m,
                               HostView<const float> q, HostView<float> p, const float* added) const {
  for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
    host::project_rows(tile.shape, m.data() + first, added == nullptr ? nullptr : added + first, matrix.rank,
                       q.data() + matrix.q_first + tile.column, matrix.columns, work.p_sums.data() + tile.p_sums_first);
  });
  for_each_cut(queue, [&](const Cut& cut, const LowRankMatrix& matrix) {
    float* out = p.data() + matrix.p_first;
    std::fill_n(out, matrix.rank * matrix.rows, 0.0F);
    for (std::size_t t = cut.first_tile; t < cut.first_tile + cut.tiles; ++t) {
      const Tile& tile = tiles_[t];
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        float* to = out + j * matrix.rows + tile.row;
        const float* from = work.p_sums.data() + tile.p_sums_first + j * tile.shape.rows;
        for (std::size_t i = 0; i < tile.shape.rows; ++i) to[i] += from[i];
      }
    }
  });
}

void HostLowRankSteps::second_product(const Workspace& work, Queue<Space::host> queue, const State& state,
                                      HostView<float> gradient) const {
  for_each_cut(queue, [&](const Cut& cut, const LowRankMatrix& matrix) {
    host::orthonormalise(state.p.data() + matrix.p_first, matrix.rows, matrix.columns, matrix.rank,
                         work.columns.data() + cut.first_row);
  });
  const float* m = state.matrices(gradient).data();
  for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
    host::project_columns(tile.shape, m + first, matrix.rank, state.p.data() + matrix.p_first + tile.row, matrix.rows,
                          work.q_sums.data() + tile.q_sums_first);
  });
  for_each_cut(queue, [&](const Cut& cut, const LowRankMatrix& matrix) {
    float* q = state.q.data() + matrix.q_first;
    std::fill_n(q, matrix.rank * matrix.columns, 0.0F);
    for (std::size_t t = cut.first_tile; t < cut.first_tile + cut.tiles; ++t) {
      const Tile& tile = tiles_[t];
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        float* to = q + j * matrix.columns + tile.column;
        const float* from = work.q_sums.data() + tile.q_sums_first + j * tile.shape.columns;
        for (std::size_t k = 0; k < tile.shape.columns; ++k) to[k] += from[k];
      }
    }
  });
}

void HostLowRankSteps::scatter(Queue<Space::host> /*queue*/, HostView<const float> message, float share,
                               HostView<float> out) const {
  for (const LowRankPlan::Uncompressed& part : plan_.uncompressed) {
    const float* from = message.data() + part.message_first;
    float* to = out.data() + part.first;
    for (std::size_t i = 0; i < part.count; ++i) to[i] = from[i] * share;
  }
}

void HostLowRankSteps::rebuild(Queue<Space::host> queue, const State& state, HostView<float> gradient,
                               HostView<const float> lost) const {
  for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
    const auto multiply = [&](HostView<const float> q, float* residual) {
      host::rebuild_low_rank(tile.shape, matrix.rank, state.p.data() + matrix.p_first + tile.row, matrix.rows,
                             q.data() + matrix.q_first + tile.column, matrix.columns, gradient.data() + first,
                             residual);
    };
    const bool other = !state.residual.empty() && lost.data() != state.q.data();
    if (other) multiply(lost, state.residual.data() + first);  // its product in the gradient is written over
    multiply(state.q, state.residual.empty() || other ? nullptr : state.residual.data() + first);
  });
}

void HostLowRankSteps::product(Queue<Space::host> queue, HostView<const float> p, HostView<const float> q,
                               HostView<float> out) const {
  for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
    host::rebuild_low_rank(tile.shape, matrix.rank, p.data() + matrix.p_first + tile.row, matrix.rows,
                           q.data() + matrix.q_first + tile.column, matrix.columns, out.data() + first, nullptr);
  });
}

}  // namespace gradtool
