#pragma once

#include <cstddef>

// The products of PowerSGD (Vogels et al., NeurIPS 2019) on a tile of a matrix, and its orthogonalisation. Factors are
// stored column after column. The bits do not depend on the instruction set.
namespace gradtool::host {

/// A part of a row-major matrix.
struct MatrixTile {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;  ///< from row to row
};

/// p[j * rows + i] := row i of the tile times column j of q, for `rank` columns of q, `q_stride` apart. With `gradient`
/// (laid out like the tile), the tile becomes tile + gradient first.
void project_rows(const MatrixTile& tile, float* matrix, const float* gradient, std::size_t rank, const float* q,
                  std::size_t q_stride, float* p);

/// q[j * columns + k] := column k of the tile times column j of p.
void project_columns(const MatrixTile& tile, const float* matrix, std::size_t rank, const float* p,
                     std::size_t p_stride, float* q);

/// out := p qᵀ on the tile, and, where `left` is not null, left -= p qᵀ.
void rebuild_low_rank(const MatrixTile& tile, std::size_t rank, const float* p, std::size_t p_stride, const float* q,
                      std::size_t q_stride, float* out, float* left);

/// Gram-Schmidt, twice, in float64: the `rank` columns of `p`, `rows` long, become orthonormal. A column of which less
/// than 10^-8 is left when the others are taken out becomes zero. `scratch`: `rows` doubles.
void orthonormalise(float* p, std::size_t rows, std::size_t rank, double* scratch);

}  // namespace gradtool::host
