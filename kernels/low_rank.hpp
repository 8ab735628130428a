#pragma once

#include <cstddef>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/view.hpp"

// The linear algebra of low-rank methods (PowerSGD, Vogels et al., NeurIPS 2019, Algorithm 1) on both processors. A
// matrix M is row-major; its factors P (rows x rank) and Q (columns x rank) are stored column after column.
namespace gradtool {

/// A matrix inside a bucket. Offsets count elements.
struct LowRankMatrix {
  std::size_t first = 0;  ///< of M in the gradient
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;          ///< columns of the factors: 1 to min(rows, columns)
  std::size_t p_first = 0;       ///< of P in the first message
  std::size_t q_first = 0;       ///< of Q in the second message
  std::size_t column_first = 0;  ///< columns of the factors of the matrices before
  std::size_t square_first = 0;  ///< sum of rank² over the matrices before: places rank x rank scratch on the GPU
};

namespace format {

/// The square of the share of its norm that a column of P must keep when the columns before it are taken out; with less
/// orthonormalise drops it on both processors. Each element of P is a float32 sum of `columns` products. In a matrix of
/// low rank the columns of P depend on each other up to the rounding of these sums. The share that is left of them is
/// another one in every order of summation, and mostly 0.2 to 4 times 2^-24 sqrt(columns); more where the products of a
/// column cancel. The limit is 16 times that unit: far enough above rounding that a change in the last bits of P
/// changes no decision, and far enough below the directions that matter, since a direction that this limit cuts off has
/// less than its square, 2^-40 columns, of the energy. It is also far above the 2^-53 of a squared norm that a Gram
/// matrix in float64 resolves.
GT_HD constexpr double dependent_share_squared(std::size_t columns) {
  return 0x1p-40 * static_cast<double>(columns);
}

/// Whether the products of a matrix on a GPU are SkinnyProducts' and not cuBLAS'. A warp takes rows of M as a whole,
/// which should not be so long that few warps have all the work.
GT_HD constexpr bool is_skinny(const LowRankMatrix& matrix) {
  return matrix.rank <= 8 && matrix.columns <= 8192;
}

}  // namespace format

namespace host {

/// A rectangular part of a row-major matrix; it begins where a pointer that is passed next to it points to.
struct MatrixTile {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;  ///< elements from a row to the next one: the columns of the whole matrix
};

/// p[j * rows + i] := row i of the tile times column j of Q, for `rank` columns of Q that lie `q_stride` apart. Where
/// `gradient` is not null it is laid out like the tile, and the tile becomes tile + gradient first.
void project_rows(const MatrixTile& tile, float* matrix, const float* gradient, std::size_t rank, const float* q,
                  std::size_t q_stride, float* p);

/// q[j * columns + k] := column k of the tile times column j of P, for `rank` columns of P that lie `p_stride` apart.
void project_columns(const MatrixTile& tile, const float* matrix, std::size_t rank, const float* p,
                     std::size_t p_stride, float* q);

/// out := P Qᵀ on the tile, and, where `residual` is not null, residual -= P Qᵀ.
void rebuild_low_rank(const MatrixTile& tile, std::size_t rank, const float* p, std::size_t p_stride, const float* q,
                      std::size_t q_stride, float* out, float* residual);

/// Makes the `rank` columns of `p`, each `rows` long, orthonormal by Gram-Schmidt, done twice in float64. A column that
/// depends on those before it, by format::dependent_share_squared for a matrix of `columns`, becomes zero. `scratch`:
/// `rows` doubles.
void orthonormalise(float* p, std::size_t rows, std::size_t columns, std::size_t rank, double* scratch);

}  // namespace host

// Each call below works on all matrices of a bucket in a few launches. Sums have a fixed order, so equal input gives
// equal bits on every GPU of one kind.
namespace cuda {

/// The matrices of a bucket, in device memory.
struct LowRankTable {
  View<const LowRankMatrix, Space::cuda> matrices;
  std::size_t largest = 0;  ///< elements of the largest matrix
};

/// out := P Qᵀ on every matrix: the same bits as host::rebuild_low_rank.
void rebuild_low_rank(Queue<Space::cuda> queue, const LowRankTable& table, const float* p, const float* q, float* out);

/// residual := (residual - P Qᵀ) + gradient on every matrix, rounded as if written down after the subtraction. Without
/// `p` and `q` (null) nothing is subtracted, without `gradient` (null) nothing is added.
void update_residual(Queue<Space::cuda> queue, const LowRankTable& table, const float* p, const float* q,
                     const float* gradient, float* residual);

/// P := M Q and Q := Mᵀ P of all skinny matrices of a bucket, in one launch and in one or two. cuBLAS has a call for
/// each matrix and product, 108 in a ResNet-50, and its tiles are wider than these factors. M is read once for every
/// four columns of a factor.
class SkinnyProducts {
 public:
  /// `q_size`: floats of Q of all matrices. Those that are not skinny are left out.
  SkinnyProducts(const std::vector<LowRankMatrix>& matrices, std::size_t q_size);

  /// Floats of `sums` that project_columns needs.
  [[nodiscard]] std::size_t sums() const { return parts_ > 1 ? parts_ * q_size_ : 0; }
  void project(Queue<Space::cuda> queue, const LowRankTable& table, const float* m, const float* q, float* p) const;
  void project_columns(Queue<Space::cuda> queue, const LowRankTable& table, const float* m, const float* p,
                       View<float, Space::cuda> sums, float* q) const;

 private:
  std::size_t q_size_;
  // The most of any skinny matrix; 0 where there is none.
  std::size_t rows_ = 0, parts_ = 0, tiles_ = 0;
  std::size_t factor_ = 0;  ///< floats of Q where the rows are several parts
};

/// The rows of a skinny matrix are cut into parts, which different blocks add up for Mᵀ P.
[[nodiscard]] GT_HD constexpr std::size_t skinny_part_rows(const LowRankMatrix& matrix) {
  constexpr std::size_t kParts = 16, kLeastRows = 128;
  const std::size_t rows = (matrix.rows + kParts - 1) / kParts;
  return rows < kLeastRows ? kLeastRows : rows;
}
[[nodiscard]] GT_HD constexpr std::size_t skinny_parts(const LowRankMatrix& matrix) {
  return (matrix.rows + skinny_part_rows(matrix) - 1) / skinny_part_rows(matrix);
}

/// Scratch of orthonormalise: Gram matrices of parts of P, their sum, which becomes the Cholesky factor R, and the
/// inverse of R. All are rank x rank and column-major, one matrix of the bucket behind the other.
struct OrthonormaliseWorkspace {
  /// The most parts that the rows of a P are cut into. Their Gram matrices are computed by different blocks and then
  /// added in order.
  static constexpr std::size_t kParts = 64;

  OrthonormaliseWorkspace() = default;
  /// `squares`: the sum of rank² over all matrices of the bucket.
  OrthonormaliseWorkspace(std::size_t squares, Scratch<Space::cuda>& scratch)
      : parts{scratch.take<double>(kParts * squares)},
        factors{scratch.take<double>(squares)},
        inverses{scratch.take<double>(squares)} {}
  View<double, Space::cuda> parts, factors, inverses;
};

/// Makes the columns of every P in the message `p` orthonormal by Cholesky QR, done twice (Yamamoto et al., Roundoff
/// error analysis of the CholeskyQR2 algorithm, ETNA 44, 2015), with Gram matrices in float64: a few passes over P
/// whatever the rank is, where Gram-Schmidt makes two for each column. Columns that depend on those before them become
/// zero, and are the same ones as on the CPU.
void orthonormalise(Queue<Space::cuda> queue, const LowRankTable& table, const OrthonormaliseWorkspace& workspace,
                    float* p);

}  // namespace cuda
}  // namespace gradtool
