#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// What PowerSGD does beside its two products, on the GPU, for all matrices of a unit at once: the steps of
/// kernels/host/low_rank.hpp. Factors are stored column after column. Sums have a fixed order, so equal input gives
/// equal bits on every GPU of a kind, whatever else it does; they are not those of the CPU.
namespace gradtool::cuda {

/// A matrix and where its factors lie. Offsets count elements.
struct LowRankMatrix {
  std::size_t first;  ///< in the gradient
  std::size_t rows, columns, rank;
  std::size_t p_at, q_at;         ///< in the two messages
  std::size_t first_tile, tiles;  ///< to orthonormalise
  std::size_t pairs_at;           ///< of its Gram matrix, rank (rank + 1) / 2 doubles
  std::size_t square_at;          ///< of its triangles, rank^2 doubles
};
/// Rows of a first factor that one block adds up.
struct LowRankRows {
  std::uint32_t matrix;
  std::uint32_t row, rows;
  std::size_t sums_at;
};
/// A part of a matrix that one block rebuilds.
struct LowRankTile {
  std::uint32_t matrix;
  std::uint32_t row, rows;
  std::uint32_t column, columns;
};
/// A column of a second factor.
struct LowRankColumn {
  std::size_t at, length;
};
/// A stretch of a tensor that is sent as it is.
struct LowRankPiece {
  std::size_t first;  ///< in the gradient
  std::size_t at;     ///< in the first message
  std::size_t count;
};

/// The work of a unit, cut up on the host once.
struct LowRankWork {
  std::vector<LowRankMatrix> matrices;
  std::vector<LowRankRows> rows;
  std::vector<LowRankTile> tiles;
  std::vector<LowRankColumn> columns;
  std::vector<LowRankPiece> pieces;
  std::size_t sums = 0, pairs = 0, squares = 0;  ///< doubles to orthonormalise in

  void add_matrix(std::size_t first, std::size_t rows, std::size_t columns, std::size_t rank, std::size_t p_at,
                  std::size_t q_at);
  void add_piece(std::size_t first, std::size_t at, std::size_t count);
};
/// The same in device memory.
struct LowRankTables {
  View<const LowRankMatrix, Space::cuda> matrices;
  View<const LowRankRows, Space::cuda> rows;
  View<const LowRankTile, Space::cuda> tiles;
  View<const LowRankColumn, Space::cuda> columns;
  View<const LowRankPiece, Space::cuda> pieces;
};

/// Columns of q that are zero or not finite, or with `all` every one, are drawn from a standard normal distribution:
/// element i of q is law::normal(key, i).
void revive_columns(Queue<Space::cuda> queue, const LowRankTables& tables, const law::DrawKey& key, bool all, float* q);

/// Gradient to message, and back times `factor`.
void gather_pieces(Queue<Space::cuda> queue, const LowRankTables& tables, const float* gradient, float* message);
void scatter_pieces(Queue<Space::cuda> queue, const LowRankTables& tables, const float* message, float factor,
                    float* gradient);

/// Doubles in which `orthonormalise` works.
struct LowRankSums {
  View<double, Space::cuda> sums, pairs;             ///< LowRankWork::sums, pairs
  View<double, Space::cuda> first, second, product;  ///< LowRankWork::squares each
};
/// The columns of every first factor in `p` become orthonormal, by Cholesky-QR twice on Gram matrices in float64: two
/// passes over p and one that writes it, where Gram-Schmidt would need 2 rank. A column of which less than 10^-7 is
/// left when the others are taken out becomes zero (the host's bound is 10^-8; a Gram matrix in float64 resolves no
/// less).
void orthonormalise(Queue<Space::cuda> queue, const LowRankTables& tables, const LowRankSums& room, float* p);

/// out := p qᵀ on every matrix, and, where `left` is not null, left -= p qᵀ.
void rebuild_low_rank(Queue<Space::cuda> queue, const LowRankTables& tables, const float* p, const float* q, float* out,
                      float* left);

}  // namespace gradtool::cuda
