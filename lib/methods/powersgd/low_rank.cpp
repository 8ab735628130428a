#include "lib/methods/powersgd/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/float_bits.hpp"

// The bits of all of this are the same for every instruction set: sums are split over a fixed number of lanes.
namespace gradtool::host {
namespace {

constexpr std::size_t kLanes = 16;         ///< partial sums of a float32 dot product
constexpr std::size_t kDoubleLanes = 8;    ///< partial sums of a float64 dot product
constexpr std::size_t kFactorColumns = 4;  ///< columns of a factor that one pass over a row takes
constexpr std::size_t kMatrixRows = 4;     ///< rows of the matrix that one pass over Q takes
constexpr double kDependentColumn = 1e-8;  ///< the paper's epsilon, relative to the norm of the column
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

/// out[j * out_stride] := the dot product of a row of the matrix with column j of Q, for J columns.
template <std::size_t J>
GT_SIMD_CLONES void dot_row(const float* row, std::size_t columns, const float* q, std::size_t q_stride, float* out,
                            std::size_t out_stride) {
  Lanes sum[J] = {};
  std::size_t k = 0;
  const auto take = [&](std::size_t count) {
    Lanes x = {};
    std::memcpy(&x, row + k, 4 * count);
    for (std::size_t j = 0; j < J; ++j) {
      Lanes factor = {};
      std::memcpy(&factor, q + j * q_stride + k, 4 * count);
      sum[j] += x * factor;
    }
  };
  for (; k + kLanes <= columns; k += kLanes) take(kLanes);
  if (k < columns) take(columns - k);
  for (std::size_t j = 0; j < J; ++j) {
    float lane[kLanes];
    std::memcpy(lane, &sum[j], sizeof lane);
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    out[j * out_stride] = lane[0];
  }
}

/// to += from.
GT_SIMD_CLONES void add_row(const float* from, std::size_t count, float* to) {
  for (std::size_t k = 0; k < count; ++k) to[k] += from[k];
}

/// q += the sum of four rows of the matrix, each times its weight.
GT_SIMD_CLONES void add_rows(const float* row, std::size_t stride, std::size_t columns, const float* weight, float* q) {
  const float* r1 = row + stride;
  const float* r2 = row + 2 * stride;
  const float* r3 = row + 3 * stride;
  const float a = weight[0];
  const float b = weight[1];
  const float c = weight[2];
  const float d = weight[3];
  for (std::size_t k = 0; k < columns; ++k) q[k] += (a * row[k] + b * r1[k]) + (c * r2[k] + d * r3[k]);
}
/// q += weight * row.
GT_SIMD_CLONES void add_row_times(const float* row, std::size_t columns, float weight, float* q) {
  for (std::size_t k = 0; k < columns; ++k) q[k] += weight * row[k];
}

/// The sum of J columns of Q, each times its weight, is added to `out` or (Add = false) written there.
template <std::size_t J, bool Add>
GT_SIMD_CLONES void combine(const float* weight, const float* q, std::size_t q_stride, std::size_t columns,
                            float* out) {
  float w[J];
  for (std::size_t j = 0; j < J; ++j) w[j] = weight[j];
  for (std::size_t k = 0; k < columns; ++k) {
    float sum = w[0] * q[k];
    for (std::size_t j = 1; j < J; ++j) sum += w[j] * q[j * q_stride + k];
    if constexpr (Add)
      out[k] += sum;
    else
      out[k] = sum;
  }
}
/// to -= from.
GT_SIMD_CLONES void subtract_row(const float* from, std::size_t count, float* to) {
  for (std::size_t k = 0; k < count; ++k) to[k] -= from[k];
}

/// combine for a number of columns that is known at run time, at most kFactorColumns.
template <bool Add>
void combine_any(std::size_t count, const float* weight, const float* q, std::size_t q_stride, std::size_t columns,
                 float* out) {
  switch (count) {
    case 1:
      return combine<1, Add>(weight, q, q_stride, columns, out);
    case 2:
      return combine<2, Add>(weight, q, q_stride, columns, out);
    case 3:
      return combine<3, Add>(weight, q, q_stride, columns, out);
    default:
      return combine<4, Add>(weight, q, q_stride, columns, out);
  }
}

/// The dot product of a float32 column and a float64 one.
GT_SIMD_CLONES double dot(const float* a, const double* b, std::size_t count) {
  std::array<double, kDoubleLanes> lane{};
  std::size_t i = 0;
  for (; i + kDoubleLanes <= count; i += kDoubleLanes) {
    for (std::size_t j = 0; j < kDoubleLanes; ++j) lane[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (std::size_t j = 0; i + j < count; ++j) lane[j] += static_cast<double>(a[i + j]) * b[i + j];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}
/// The sum of squares of a column.
GT_SIMD_CLONES double sum_of_squares(const double* a, std::size_t count) {
  std::array<double, kDoubleLanes> lane{};
  std::size_t i = 0;
  for (; i + kDoubleLanes <= count; i += kDoubleLanes) {
    for (std::size_t j = 0; j < kDoubleLanes; ++j) lane[j] += a[i + j] * a[i + j];
  }
  for (std::size_t j = 0; i + j < count; ++j) lane[j] += a[i + j] * a[i + j];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

}  // namespace

void project_rows(const MatrixTile& tile, float* matrix, const float* gradient, std::size_t rank, const float* q,
                  std::size_t q_stride, float* p) {
  for (std::size_t i = 0; i < tile.rows; ++i) {
    float* row = matrix + i * tile.stride;
    if (gradient != nullptr) add_row(gradient + i * tile.stride, tile.columns, row);
    for (std::size_t j = 0; j < rank; j += kFactorColumns) {
      const float* factor = q + j * q_stride;
      float* out = p + j * tile.rows + i;
      switch (std::min(kFactorColumns, rank - j)) {
        case 1:
          dot_row<1>(row, tile.columns, factor, q_stride, out, tile.rows);
          break;
        case 2:
          dot_row<2>(row, tile.columns, factor, q_stride, out, tile.rows);
          break;
        case 3:
          dot_row<3>(row, tile.columns, factor, q_stride, out, tile.rows);
          break;
        default:
          dot_row<4>(row, tile.columns, factor, q_stride, out, tile.rows);
      }
    }
  }
}

void project_columns(const MatrixTile& tile, const float* matrix, std::size_t rank, const float* p,
                     std::size_t p_stride, float* q) {
  std::fill_n(q, rank * tile.columns, 0.0F);
  std::size_t i = 0;
  for (; i + kMatrixRows <= tile.rows; i += kMatrixRows) {
    for (std::size_t j = 0; j < rank; ++j)
      add_rows(matrix + i * tile.stride, tile.stride, tile.columns, p + j * p_stride + i, q + j * tile.columns);
  }
  for (; i < tile.rows; ++i) {
    for (std::size_t j = 0; j < rank; ++j)
      add_row_times(matrix + i * tile.stride, tile.columns, p[j * p_stride + i], q + j * tile.columns);
  }
}

void rebuild_low_rank(const MatrixTile& tile, std::size_t rank, const float* p, std::size_t p_stride, const float* q,
                      std::size_t q_stride, float* out, float* residual) {
  std::array<float, kFactorColumns> weight{};
  for (std::size_t i = 0; i < tile.rows; ++i) {
    float* row = out + i * tile.stride;
    for (std::size_t j = 0; j < rank; j += kFactorColumns) {
      const std::size_t count = std::min(kFactorColumns, rank - j);
      for (std::size_t l = 0; l < count; ++l) weight[l] = p[(j + l) * p_stride + i];
      if (j == 0)
        combine_any<false>(count, weight.data(), q, q_stride, tile.columns, row);
      else
        combine_any<true>(count, weight.data(), q + j * q_stride, q_stride, tile.columns, row);
    }
    if (residual != nullptr) subtract_row(row, tile.columns, residual + i * tile.stride);
  }
}

void orthonormalise(float* p, std::size_t rows, std::size_t rank, double* scratch) {
  for (std::size_t j = 0; j < rank; ++j) {
    float* column = p + j * rows;
    for (std::size_t i = 0; i < rows; ++i) scratch[i] = static_cast<double>(column[i]);
    const double before = std::sqrt(sum_of_squares(scratch, rows));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t l = 0; l < j; ++l) {
        const float* other = p + l * rows;
        const double share = dot(other, scratch, rows);
        for (std::size_t i = 0; i < rows; ++i) scratch[i] -= share * static_cast<double>(other[i]);
      }
    }
    const double after = std::sqrt(sum_of_squares(scratch, rows));
    const double factor = after <= kDependentColumn * before ? 0.0 : 1.0 / after;  // NaN stays NaN
    for (std::size_t i = 0; i < rows; ++i) column[i] = factor == 0.0 ? 0.0F : static_cast<float>(scratch[i] * factor);
  }
}

}  // namespace gradtool::host
