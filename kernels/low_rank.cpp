#include "kernels/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/float_bits.hpp"
#include "kernels/lanes.hpp"

// The bits of all of this are the same for every instruction set: sums are split over a fixed number of lanes.
namespace gradtool::host {
namespace {

constexpr std::size_t kLanes = 16;         ///< partial sums of a float32 dot product
constexpr std::size_t kDoubleLanes = 8;    ///< partial sums of a float64 dot product
constexpr std::size_t kFactorColumns = 4;  ///< columns of a factor that one pass over a row takes
constexpr std::size_t kMatrixRows = 4;     ///< rows of the matrix that one pass over Q takes

/// out[j * out_stride] := the dot product of a row of the matrix with column j of Q, for J columns.
template <std::size_t J>
struct DotRow {
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const float* row, std::size_t columns, const float* q, std::size_t q_stride,
                                         float* out, std::size_t out_stride) {
    Lanes<Bytes> sum[J], x, factor;
    std::size_t k = 0;
    for (; k + kLanes <= columns; k += kLanes) {
      x.load(row + k);
#pragma GCC unroll 8
      for (std::size_t j = 0; j < J; ++j) {
        factor.load(q + j * q_stride + k);
        sum[j].add_product(x, factor);
      }
    }
    if (k < columns) {
      float last[kLanes] = {};
      std::memcpy(last, row + k, 4 * (columns - k));
      x.load(last);
#pragma GCC unroll 8
      for (std::size_t j = 0; j < J; ++j) {
        std::memcpy(last, q + j * q_stride + k, 4 * (columns - k));
        factor.load(last);
        sum[j].add_product(x, factor);
      }
    }
#pragma GCC unroll 8
    for (std::size_t j = 0; j < J; ++j) out[j * out_stride] = sum[j].sum();
  }
};

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
          run_with_vectors<DotRow<1>>(row, tile.columns, factor, q_stride, out, tile.rows);
          break;
        case 2:
          run_with_vectors<DotRow<2>>(row, tile.columns, factor, q_stride, out, tile.rows);
          break;
        case 3:
          run_with_vectors<DotRow<3>>(row, tile.columns, factor, q_stride, out, tile.rows);
          break;
        default:
          run_with_vectors<DotRow<4>>(row, tile.columns, factor, q_stride, out, tile.rows);
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

void orthonormalise(float* p, std::size_t rows, std::size_t columns, std::size_t rank, double* scratch) {
  for (std::size_t j = 0; j < rank; ++j) {
    float* column = p + j * rows;
    for (std::size_t i = 0; i < rows; ++i) scratch[i] = static_cast<double>(column[i]);
    const double before = sum_of_squares(scratch, rows);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t l = 0; l < j; ++l) {
        const float* other = p + l * rows;
        const double share = dot(other, scratch, rows);
        for (std::size_t i = 0; i < rows; ++i) scratch[i] -= share * static_cast<double>(other[i]);
      }
    }
    const double after = sum_of_squares(scratch, rows);
    const bool dropped = after <= format::dependent_share_squared(columns) * before;
    const double factor = dropped ? 0.0 : 1.0 / std::sqrt(after);  // NaN stays NaN
    for (std::size_t i = 0; i < rows; ++i) column[i] = factor == 0.0 ? 0.0F : static_cast<float>(scratch[i] * factor);
  }
}

}  // namespace gradtool::host
