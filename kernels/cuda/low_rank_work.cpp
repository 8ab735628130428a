// How the low-rank kernels' work is cut into tiles.
#include <algorithm>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/low_rank.hpp"
#include "lib/core/error.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kPiece = 4096;       ///< elements of a tensor sent as it is that one block moves
constexpr std::size_t kRowsOfTile = 32;    ///< that one group of threads rebuilds
constexpr std::size_t kLeastRows = 256;    ///< of a first factor, in one block
constexpr std::size_t kMostRowTiles = 64;  ///< of one first factor

// A part of the second product: 2^15 elements for a block, so that sums of parts are a few hundredths of the traffic;
// larger where columns are so long that adding up parts would take its time.
constexpr std::size_t kLeastRowsOfPart = 256;
constexpr std::size_t kMostRowParts = 1024;

std::uint32_t narrow(std::size_t value) {
  expects(value <= 0xffffffffu, "a matrix is too large for the GPU's low-rank kernels");
  return static_cast<std::uint32_t>(value);
}

std::size_t parts_of(std::size_t length, std::size_t part) {
  return (length + part - 1) / part;
}

template <class Body>
void for_each_tile(const LowRankMatrix& matrix, std::size_t high, std::size_t wide, Body&& body) {
  for (std::size_t row = 0; row < matrix.rows; row += high) {
    for (std::size_t column = 0; column < matrix.columns; column += wide)
      body(LowRankTile{.row = narrow(row),
                       .rows = narrow(std::min(high, matrix.rows - row)),
                       .column = narrow(column),
                       .columns = narrow(std::min(wide, matrix.columns - column))});
  }
}

/// A factor of `size` numbers at `to` is the sum of parts, which lie at `at`; a single part is written in place.
void add_sums(std::vector<LowRankSum>& sums, std::size_t& at, std::size_t parts, std::size_t size, std::size_t to) {
  if (parts == 1) return;
  for (std::size_t i = 0; i < size; i += kSumColumns)
    sums.push_back({at + i, size, parts, to + i, narrow(std::min(kSumColumns, size - i))});
  at += parts * size;
}

}  // namespace

void LowRankWork::add_matrix(std::size_t first, std::size_t height, std::size_t width, std::size_t rank,
                             std::size_t p_at, std::size_t q_at) {
  const std::uint32_t index = narrow(matrices.size());
  const std::size_t matrix_pairs = rank * (rank + 1) / 2;
  const std::size_t in_block = std::max(kLeastRows, (height + kMostRowTiles - 1) / kMostRowTiles);
  const std::size_t first_tile = rows.size();
  for (std::size_t row = 0; row < height; row += in_block) {
    rows.push_back({index, narrow(row), narrow(std::min(in_block, height - row)), sums});
    sums += matrix_pairs;
  }
  const std::size_t tile_columns = std::min<std::size_t>(width, 4 * kThreads);
  const std::size_t tile_rows = kRowsOfTile * (kThreads / std::min<std::size_t>(kThreads, (tile_columns + 3) / 4));
  LowRankMatrix matrix{.first = first,
                       .rows = height,
                       .columns = width,
                       .rank = rank,
                       .p_at = p_at,
                       .q_at = q_at,
                       .first_tile = first_tile,
                       .tiles = rows.size() - first_tile,
                       .pairs_at = pairs,
                       .square_at = squares};
  for_each_tile(matrix, tile_rows, tile_columns, [&](LowRankTile tile) {
    tile.matrix = index;
    tiles.push_back(tile);
  });
  for (std::size_t j = 0; j < rank; ++j) columns.push_back({q_at + j * width, width});
  if (rank <= kMostDirectRank) cut_products(matrix);
  matrices.push_back(matrix);
  pairs += matrix_pairs;
  squares += rank * rank;
}

void LowRankWork::cut_products(LowRankMatrix& matrix) {
  const std::uint32_t index = narrow(matrices.size());
  const std::size_t high = std::max(kLeastRowsOfPart, parts_of(matrix.rows, kMostRowParts));
  for_each_tile(matrix, kProductRows, kPartColumns, [&](LowRankTile tile) {
    tile.matrix = index;
    tile.part = narrow(tile.column / kPartColumns);
    row_products.push_back(tile);
  });
  for_each_tile(matrix, high, kProductColumns, [&](LowRankTile tile) {
    tile.matrix = index;
    tile.part = narrow(tile.row / high);
    column_products.push_back(tile);
  });
  matrix.p_parts = parts_of(matrix.columns, kPartColumns);
  matrix.p_parts_at = p_parts;
  add_sums(p_sums, p_parts, matrix.p_parts, matrix.rank * matrix.rows, matrix.p_at);
  matrix.q_parts = parts_of(matrix.rows, high);
  matrix.q_parts_at = q_parts;
  add_sums(q_sums, q_parts, matrix.q_parts, matrix.rank * matrix.columns, matrix.q_at);
  ++direct;
}

void LowRankWork::add_piece(std::size_t first, std::size_t at, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kPiece) pieces.push_back({first + i, at + i, std::min(kPiece, count - i)});
}

}  // namespace gradtool::cuda
