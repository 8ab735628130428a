#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/low_rank.hpp"

// A grid has a row of blocks (blockIdx.y) for every matrix.
namespace gradtool::cuda {
namespace {

constexpr unsigned kTileRows = 4;          ///< of a matrix, for one thread
constexpr unsigned kTileColumns = 4;       ///< of a matrix, for one thread
constexpr std::size_t kFactorColumns = 4;  ///< that host::rebuild_low_rank adds up at a time
constexpr unsigned kMostBlocks = 1024;     ///< for one matrix: enough to fill a GPU
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Writes P Qᵀ to `out`, or subtracts it from `residual` and adds `gradient`; pointers that are null take no part. A
/// thread computes 4 x 4 elements at a time, so that it loads every number of P and Q for four products. Its columns
/// lie `lanes` apart, so that neighbouring threads access neighbouring elements.
__global__ void low_rank_kernel(const LowRankMatrix* matrices, const float* p, const float* q, const float* gradient,
                                float* residual, float* out) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const std::size_t rank = p == nullptr ? 0 : matrix.rank;
  const auto lanes =
      static_cast<unsigned>(min(std::size_t{kThreads}, (matrix.columns + kTileColumns - 1) / kTileColumns));
  const unsigned groups = kThreads / lanes;  // of lanes, below each other
  const unsigned group = threadIdx.x / lanes;
  if (group >= groups) return;
  const std::size_t wide = std::size_t{kTileColumns} * lanes;
  const std::size_t high = std::size_t{kTileRows} * groups;
  const std::size_t tiles_across = (matrix.columns + wide - 1) / wide;
  const std::size_t tiles = tiles_across * ((matrix.rows + high - 1) / high);
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t row = tile / tiles_across * high + kTileRows * group;
    const std::size_t column = tile % tiles_across * wide + threadIdx.x % lanes;
    float value[kTileRows][kTileColumns] = {};
    for (std::size_t first = 0; first < rank; first += kFactorColumns) {
      float part[kTileRows][kTileColumns] = {};
      for (std::size_t j = first; j < min(first + kFactorColumns, rank); ++j) {
        float factor[kTileColumns];
#pragma unroll
        for (unsigned c = 0; c < kTileColumns; ++c) {
          const std::size_t k = column + c * lanes;
          factor[c] = k < matrix.columns ? q[matrix.q_first + j * matrix.columns + k] : 0.0f;
        }
#pragma unroll
        for (unsigned r = 0; r < kTileRows; ++r) {
          const float weight = row + r < matrix.rows ? p[matrix.p_first + j * matrix.rows + row + r] : 0.0f;
#pragma unroll
          for (unsigned c = 0; c < kTileColumns; ++c)
            part[r][c] = j == first ? weight * factor[c] : part[r][c] + weight * factor[c];
        }
      }
#pragma unroll
      for (unsigned r = 0; r < kTileRows; ++r) {
#pragma unroll
        for (unsigned c = 0; c < kTileColumns; ++c) value[r][c] = first == 0 ? part[r][c] : value[r][c] + part[r][c];
      }
    }
    const std::size_t corner = matrix.first + row * matrix.columns + column;
    const auto inside = [&](unsigned r, unsigned c) {
      return row + r < matrix.rows && column + c * lanes < matrix.columns;
    };
    if (residual != nullptr) {  // all loads come before the first store, so that they travel together
#pragma unroll
      for (unsigned r = 0; r < kTileRows; ++r) {
#pragma unroll
        for (unsigned c = 0; c < kTileColumns; ++c) {
          if (!inside(r, c)) continue;
          const std::size_t element = corner + r * matrix.columns + c * lanes;
          value[r][c] = residual[element] - value[r][c];
          if (gradient != nullptr) value[r][c] = format::one_nan(value[r][c] + gradient[element]);
        }
      }
    }
    float* to = residual != nullptr ? residual : out;
#pragma unroll
    for (unsigned r = 0; r < kTileRows; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kTileColumns; ++c) {
        if (inside(r, c)) to[corner + r * matrix.columns + c * lanes] = value[r][c];
      }
    }
  }
}

void launch_low_rank(Queue<Space::cuda> queue, const char* name, const LowRankTable& table, const float* p,
                     const float* q, const float* gradient, float* residual, float* out) {
  if (table.matrices.empty()) return;
  Grid grid{blocks_for(table.largest, std::size_t{kThreads} * kTileRows * kTileColumns, kMostBlocks)};
  grid.y = static_cast<unsigned>(table.matrices.size());
  launch(queue, name, low_rank_kernel, grid, table.matrices.data(), p, q, gradient, residual, out);
}

constexpr unsigned kParts = OrthonormaliseWorkspace::kParts;
constexpr std::size_t kLeastRows = 256;  ///< of a part of P

/// Rows of a part of P: at most kParts of them make all its rows.
__device__ std::size_t part_rows(std::size_t rows) {
  return max(kLeastRows, (rows + kParts - 1) / kParts);
}

/// The rows of P that block `blockIdx.x` works on; none in blocks behind the last part.
struct RowPart {
  __device__ explicit RowPart(std::size_t rows)
      : first{min(blockIdx.x * part_rows(rows), rows)}, last{min(first + part_rows(rows), rows)} {}
  std::size_t first, last;
};

/// parts[blockIdx.x] := the Gram matrix PᵀP of a part of the rows of P, its upper triangle. A warp for each entry.
__global__ void gram_kernel(const LowRankMatrix* matrices, const float* p, double* parts) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const RowPart part{matrix.rows};
  if (part.first == part.last) return;
  const std::size_t squared = matrix.rank * matrix.rank;
  double* gram = parts + kParts * matrix.square_first + blockIdx.x * squared;
  constexpr unsigned kWarps = kThreads / kWarpSize;
  for (std::size_t entry = threadIdx.x / kWarpSize; entry < squared; entry += kWarps) {
    const std::size_t a = entry % matrix.rank;
    const std::size_t b = entry / matrix.rank;
    if (a > b) continue;
    const float* left = p + matrix.p_first + a * matrix.rows;
    const float* right = p + matrix.p_first + b * matrix.rows;
    double sum = 0.0;
    for (std::size_t i = part.first + lane_in_warp(); i < part.last; i += kWarpSize)
      sum += static_cast<double>(left[i]) * static_cast<double>(right[i]);
    for (unsigned half = kWarpSize / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAllLanes, sum, half);
    if (lane_in_warp() == 0) gram[entry] = sum;
  }
}

/// Adds up the Gram matrices of all parts of P, factors the sum G = RᵀR (Cholesky, row by row, what is left of G being
/// updated after each row), and inverts R. A row of R is zero, and so is the column of R⁻¹, where a column of P is
/// dropped: it depends on those before it, or is infinite. NaN is not dropped, so that it stays visible. One block for
/// each matrix.
__global__ void factor_kernel(const LowRankMatrix* matrices, const double* parts, double* factors, double* inverses) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const double least_share = format::dependent_share_squared(matrix.columns);
  const auto rank = static_cast<unsigned>(matrix.rank);
  const unsigned squared = rank * rank;
  const std::size_t part_count = (matrix.rows + part_rows(matrix.rows) - 1) / part_rows(matrix.rows);
  const double* from = parts + kParts * matrix.square_first;
  double* r = factors + matrix.square_first;
  double* inverse = inverses + matrix.square_first;
  for (unsigned entry = threadIdx.x; entry < squared; entry += kThreads) {
    if (entry % rank > entry / rank) continue;
    double sum = 0.0;
    for (std::size_t part = 0; part < part_count; ++part) sum += from[part * squared + entry];
    r[entry] = sum;
    if (entry % rank == entry / rank) inverse[entry / rank] = sum;  // squared norms; the inverse comes later
  }
  __syncthreads();
  for (unsigned k = 0; k < rank; ++k) {
    const double pivot = r[k * rank + k];
    const bool dropped = pivot <= least_share * inverse[k] || pivot == kInfinity;
    const double root = sqrt(pivot);
    __syncthreads();
    for (unsigned j = k + threadIdx.x; j < rank; j += kThreads)
      r[j * rank + k] = dropped ? 0.0 : j == k ? root : r[j * rank + k] / root;
    __syncthreads();
    if (dropped) continue;
    for (unsigned entry = (k + 1) * rank + threadIdx.x; entry < squared; entry += kThreads) {
      const unsigned i = entry % rank;
      const unsigned j = entry / rank;
      if (i > k && i <= j) r[entry] -= r[i * rank + k] * r[j * rank + k];
    }
    __syncthreads();
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < rank; j += kThreads) {  // back substitution, a column for each thread
    double* column = inverse + j * rank;
    for (unsigned i = rank; i-- > 0;) {
      const double diagonal = r[i * rank + i];
      double sum = i == j ? 1.0 : 0.0;
      for (unsigned m = i + 1; m <= j; ++m) sum -= r[m * rank + i] * column[m];
      column[i] = i > j || diagonal == 0.0 || r[j * rank + j] == 0.0 ? 0.0 : sum / diagonal;
    }
  }
}

/// P := P R⁻¹, a row for each thread, from its last element to its first, since element j needs those up to j. Columns
/// that are dropped are left out of the sums: what is not finite in them must not spread.
__global__ void apply_kernel(const LowRankMatrix* matrices, const double* inverses, float* p) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const RowPart part{matrix.rows};
  const std::size_t rank = matrix.rank;
  const double* inverse = inverses + matrix.square_first;
  for (std::size_t i = part.first + threadIdx.x; i < part.last; i += kThreads) {
    float* row = p + matrix.p_first + i;
    for (std::size_t j = rank; j-- > 0;) {
      double sum = 0.0;
      for (std::size_t l = 0; l <= j && inverse[j * rank + j] != 0.0; ++l) {
        if (inverse[l * rank + l] != 0.0) sum += static_cast<double>(row[l * matrix.rows]) * inverse[j * rank + l];
      }
      row[j * matrix.rows] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void rebuild_low_rank(Queue<Space::cuda> queue, const LowRankTable& table, const float* p, const float* q, float* out) {
  launch_low_rank(queue, "powersgd rebuild", table, p, q, nullptr, nullptr, out);
}

void update_residual(Queue<Space::cuda> queue, const LowRankTable& table, const float* p, const float* q,
                     const float* gradient, float* residual) {
  launch_low_rank(queue, "powersgd residual", table, p, q, gradient, residual, nullptr);
}

void orthonormalise(Queue<Space::cuda> queue, const LowRankTable& table, const OrthonormaliseWorkspace& workspace,
                    float* p) {
  if (table.matrices.empty()) return;
  const LowRankMatrix* matrices = table.matrices.data();
  Grid parts{kParts};
  Grid whole{1};
  parts.y = whole.y = static_cast<unsigned>(table.matrices.size());
  for (int pass = 0; pass < 2; ++pass) {
    launch(queue, "powersgd gram", gram_kernel, parts, matrices, p, workspace.parts.data());
    launch(queue, "powersgd cholesky", factor_kernel, whole, matrices, workspace.parts.data(), workspace.factors.data(),
           workspace.inverses.data());
    launch(queue, "powersgd orthonormal", apply_kernel, parts, matrices, workspace.inverses.data(), p);
  }
}

}  // namespace gradtool::cuda
