#include "lib/reduce/powersgd_plan.hpp"

#include <algorithm>

namespace gradtool {
namespace {

constexpr std::size_t kTileColumns = 1024;
constexpr std::size_t kTileElements = 1 << 18;

}  // namespace

PowerSgdPlan::PowerSgdPlan(const Layout& layout, std::size_t rank, double least_rate) {
  for (const TensorShape& tensor : layout.tensors) {
    const std::size_t rows = tensor.rows();
    const std::size_t columns = tensor.columns();
    const std::size_t r = std::min({rank, rows, columns});
    const bool pays =
        r > 0 && static_cast<double>(rows * columns) >= least_rate * static_cast<double>(r * (rows + columns));
    if (!tensor.is_matrix() || !pays) {
      if (!raw.empty() && raw.back().first + raw.back().count == tensor.first && raw.back().after == p_size)
        raw.back().count += tensor.elements;
      else
        raw.push_back({.first = tensor.first, .count = tensor.elements, .at = p_size});
      p_size += tensor.elements;
      raw.back().after = p_size;
      continue;
    }
    Matrix matrix{.first = tensor.first,
                  .rows = rows,
                  .columns = columns,
                  .rank = r,
                  .p_at = p_size,
                  .q_at = q_size,
                  .first_tile = tiles.size(),
                  .scratch_at = scratch};
    const std::size_t width = std::min(columns, kTileColumns);
    const std::size_t height = std::max<std::size_t>(kTileElements / width, 1);
    for (std::size_t row = 0; row < rows; row += height) {
      for (std::size_t column = 0; column < columns; column += width) {
        Tile tile{.matrix = matrices.size(),
                  .row = row,
                  .column = column,
                  .rows = std::min(height, rows - row),
                  .columns = std::min(width, columns - column),
                  .p_at = p_sums,
                  .q_at = q_sums};
        p_sums += r * tile.rows;
        q_sums += r * tile.columns;
        tiles.push_back(tile);
      }
    }
    matrix.tiles = tiles.size() - matrix.first_tile;
    p_size += r * rows;
    q_size += r * columns;
    scratch += rows;
    matrices.push_back(matrix);
  }
}

}  // namespace gradtool
