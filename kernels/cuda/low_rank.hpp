#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// What PowerSGD does on the GPU, beside cuBLAS's products for factors of more than kMostDirectRank columns, for all
/// matrices of a unit at once: the steps of kernels/host/low_rank.hpp. Factors are stored column after column. Sums
/// have a fixed order, so equal input gives equal bits on every GPU of a kind, whatever else it does; they are not
/// those of the CPU.
namespace gradtool::cuda {

/// A matrix and where its factors lie. Offsets count elements.
struct LowRankMatrix {
  std::size_t first;  ///< in the gradient
  std::size_t rows, columns, rank;
  std::size_t p_at, q_at;         ///< in the two messages
  std::size_t first_tile, tiles;  ///< to orthonormalise
  std::size_t pairs_at;           ///< of its Gram matrix, rank (rank + 1) / 2 doubles
  std::size_t square_at;          ///< of its triangles, rank^2 doubles
  /// Parts that its products are added up from, and where they lie, where its rank is at most kMostDirectRank.
  std::size_t p_parts = 1, q_parts = 1, p_parts_at = 0, q_parts_at = 0;
};
/// Rows of a first factor that one block adds up.
struct LowRankRows {
  std::uint32_t matrix;
  std::uint32_t row, rows;
  std::size_t sums_at;
};
/// A part of a matrix that one block rebuilds, or multiplies.
struct LowRankTile {
  std::uint32_t matrix = 0;
  std::uint32_t row, rows;
  std::uint32_t column, columns;
  std::uint32_t part = 0;  ///< of a product
};
/// At most kSumColumns neighbours in a factor, each the sum of `parts` numbers `stride` apart.
struct LowRankSum {
  std::size_t from, stride, parts;
  std::size_t to;
  std::uint32_t count;
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

/// The largest rank that project_rows and project_columns know; theirs are the tiles below.
inline constexpr std::size_t kMostDirectRank = 4;
inline constexpr std::size_t kProductRows = 32;      ///< of a tile of the first product
inline constexpr std::size_t kPartColumns = 512;     ///< of the same
inline constexpr std::size_t kProductColumns = 128;  ///< of a tile of the second one
inline constexpr std::size_t kSumColumns = 32;       ///< that a block adds up from parts

/// The work of a unit, cut up on the host once.
struct LowRankWork {
  std::vector<LowRankMatrix> matrices;
  std::vector<LowRankRows> rows;
  std::vector<LowRankTile> tiles;
  std::vector<LowRankColumn> columns;
  std::vector<LowRankPiece> pieces;
  std::vector<LowRankTile> row_products, column_products;
  std::vector<LowRankSum> p_sums, q_sums;
  std::size_t sums = 0, pairs = 0, squares = 0;  ///< doubles to orthonormalise in
  std::size_t p_parts = 0, q_parts = 0;          ///< floats of the parts of products

  void add_matrix(std::size_t first, std::size_t rows, std::size_t columns, std::size_t rank, std::size_t p_at,
                  std::size_t q_at);
  void add_piece(std::size_t first, std::size_t at, std::size_t count);
  /// Whether project_rows and project_columns take all matrices.
  [[nodiscard]] bool is_direct() const { return !row_products.empty() && direct == matrices.size(); }

 private:
  void cut_products(LowRankMatrix& matrix);
  std::size_t direct = 0;  ///< matrices of at most kMostDirectRank
};
/// The same in device memory.
struct LowRankTables {
  View<const LowRankMatrix, Space::cuda> matrices;
  View<const LowRankRows, Space::cuda> rows;
  View<const LowRankTile, Space::cuda> tiles;
  View<const LowRankColumn, Space::cuda> columns;
  View<const LowRankPiece, Space::cuda> pieces;
  View<const LowRankTile, Space::cuda> row_products, column_products;
  View<const LowRankSum, Space::cuda> p_sums, q_sums;
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

/// What was held back, as it is: m - p qᵀ, with the last step's m and factors.
struct LowRankHeld {
  float* m = nullptr;
  const float *p = nullptr, *q = nullptr;
};
/// p := M q of every matrix, for matrices that are direct. M is the gradient or, where held.m is not null, held.m :=
/// (held.m - held.p held.qᵀ) + gradient, each element rounded as rebuild_low_rank and then an addition round it: what
/// is held back is never written down, which saves a pass. `parts`: LowRankWork::p_parts floats.
void project_rows(Queue<Space::cuda> queue, const LowRankTables& tables, const float* gradient, const LowRankHeld& held,
                  const float* q, float* parts, float* p);
/// The end of a step that held.p and held.q come from: q *= share; last_p := p; last_q := q. All of p and q, whatever
/// travels between first factors.
void keep_factors(Queue<Space::cuda> queue, View<const float, Space::cuda> p, float share, View<float, Space::cuda> q,
                  View<float, Space::cuda> last_p, View<float, Space::cuda> last_q);
/// q := mᵀ p of every matrix, for matrices that are direct. `parts`: LowRankWork::q_parts floats.
void project_columns(Queue<Space::cuda> queue, const LowRankTables& tables, const float* m, const float* p,
                     float* parts, float* q);

/// Where `out` is not null, out := p qᵀ on every matrix, and, where `left` is not null, left -= p qᵀ.
void rebuild_low_rank(Queue<Space::cuda> queue, const LowRankTables& tables, const float* p, const float* q, float* out,
                      float* left);

}  // namespace gradtool::cuda
