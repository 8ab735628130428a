// Cholesky-QR, twice: G = PᵀP, G = RᵀR, P := P R⁻¹. The first pass leaves columns orthogonal up to the rounding of G
// times the square of P's condition, the second one up to rounding. The triangle of the second pass is multiplied to
// that of the first, so that P itself is written once.
#include <cuda_runtime.h>

#include <limits>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/low_rank.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kRoom = 4096;  ///< values of P in shared memory
constexpr unsigned kMostRank = 256;
constexpr double kDependent = 1e-14;  ///< squared
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Pair (a, b), a <= b, of a packed upper triangle: b (b + 1) / 2 + a.
__device__ void pair_of(unsigned index, unsigned& a, unsigned& b) {
  b = static_cast<unsigned>((sqrtf(8.0f * static_cast<float>(index) + 1.0f) - 1.0f) * 0.5f);
  while (b * (b + 1) / 2 > index) --b;
  while ((b + 1) * (b + 2) / 2 <= index) ++b;
  a = index - b * (b + 1) / 2;
}

/// Element (row, j) of P times `triangle` (column-major): columns that the triangle drops are left out, for what is not
/// finite in them must not spread.
__device__ double times_triangle(const float* p, std::size_t rows, std::size_t row, unsigned j, const double* triangle,
                                 unsigned rank) {
  const double* column = triangle + j * rank;
  if (column[j] == 0.0) return 0.0;
  double sum = 0.0;
  for (unsigned l = 0; l <= j; ++l) {
    if (triangle[l * rank + l] != 0.0) sum += static_cast<double>(p[l * rows + row]) * column[l];
  }
  return sum;
}

/// sums[tile] := the Gram matrix of the tile's rows of P, or, with a triangle, of P times that.
__global__ void gram_kernel(const LowRankMatrix* matrices, const LowRankRows* tiles, const float* p,
                            const double* triangles, double* sums) {
  __shared__ double values[kRoom];
  __shared__ double parts[kThreads];
  const LowRankRows tile = tiles[blockIdx.x];
  const LowRankMatrix matrix = matrices[tile.matrix];
  const auto rank = static_cast<unsigned>(matrix.rank);
  const unsigned pairs = rank * (rank + 1) / 2;
  const unsigned groups = pairs < kThreads ? kThreads / pairs : 1;
  const unsigned group = pairs < kThreads ? threadIdx.x / pairs : 0;
  const unsigned stride = (kRoom / rank - 1) | 1u;  // odd, so that columns lie in different banks
  const unsigned most = min(stride, 256u);
  const float* first = p + matrix.p_at + tile.row;
  const double* triangle = triangles == nullptr ? nullptr : triangles + matrix.square_at;
  double* out = sums + tile.sums_at;
  double mine = 0.0;
  for (unsigned from = 0; from < tile.rows; from += most) {
    const unsigned here = min(most, tile.rows - from);
    for (unsigned i = threadIdx.x; i < here * rank; i += kThreads) {
      const unsigned j = i / here;
      const unsigned row = i - j * here;
      values[j * stride + row] = triangle == nullptr
                                     ? static_cast<double>(first[j * matrix.rows + from + row])
                                     : times_triangle(first, matrix.rows, from + row, j, triangle, rank);
    }
    __syncthreads();
    for (unsigned pair = threadIdx.x % (pairs < kThreads ? pairs : kThreads); pair < pairs; pair += kThreads) {
      unsigned a;
      unsigned b;
      pair_of(pair, a, b);
      double sum = 0.0;
      if (group < groups) {
        for (unsigned row = group; row < here; row += groups)
          sum += values[a * stride + row] * values[b * stride + row];
      }
      if (pairs < kThreads)
        mine += sum;
      else
        out[pair] = from == 0 ? sum : out[pair] + sum;
    }
    __syncthreads();
  }
  if (pairs >= kThreads) return;
  parts[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x >= pairs) return;
  double sum = 0.0;
  for (unsigned g = 0; g < groups; ++g) sum += parts[g * pairs + threadIdx.x];
  out[threadIdx.x] = sum;
}

/// Adds up the tiles of one matrix and makes R⁻¹ (column-major, upper). With `before`, result := before R⁻¹.
__global__ void factor_kernel(const LowRankMatrix* matrices, const double* sums, const LowRankRows* tiles,
                              double* grams, const double* before, double* inverses, double* results) {
  __shared__ double diagonal[kMostRank];
  const LowRankMatrix matrix = matrices[blockIdx.x];
  const auto rank = static_cast<unsigned>(matrix.rank);
  const unsigned pairs = rank * (rank + 1) / 2;
  double* gram = grams + matrix.pairs_at;
  const auto at = [](unsigned a, unsigned b) { return b * (b + 1) / 2 + a; };
  const double* from = sums + tiles[matrix.first_tile].sums_at;  // its tiles lie one behind the other
  for (unsigned pair = threadIdx.x; pair < pairs; pair += kThreads) {
    double sum = 0.0;
    for (std::size_t t = 0; t < matrix.tiles; ++t) sum += from[t * pairs + pair];
    gram[pair] = sum;
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < rank; j += kThreads) diagonal[j] = gram[at(j, j)];
  __syncthreads();
  // R over G, row by row; what is left of G is updated behind it. A dropped column is a row of zeros.
  for (unsigned k = 0; k < rank; ++k) {
    const double pivot = gram[at(k, k)];
    const bool dropped = pivot <= kDependent * diagonal[k] || pivot == kInfinity;  // a NaN goes on
    const double root = sqrt(pivot);
    __syncthreads();
    for (unsigned j = k + threadIdx.x; j < rank; j += kThreads)
      gram[at(k, j)] = dropped ? 0.0 : j == k ? root : gram[at(k, j)] / root;
    __syncthreads();
    const unsigned rest = rank - 1 - k;
    if (!dropped) {
      for (unsigned pair = threadIdx.x; pair < rest * (rest + 1) / 2; pair += kThreads) {
        unsigned a;
        unsigned b;
        pair_of(pair, a, b);
        a += k + 1;
        b += k + 1;
        gram[at(a, b)] -= gram[at(k, a)] * gram[at(k, b)];
      }
    }
    __syncthreads();
  }
  double* inverse = inverses + matrix.square_at;
  for (unsigned j = threadIdx.x; j < rank; j += kThreads) {  // a column for a thread
    double* column = inverse + j * rank;
    for (unsigned i = rank; i-- > 0;) {
      const double r = gram[at(i, i)];
      double sum = i == j ? 1.0 : 0.0;
      if (i <= j) {
        for (unsigned m = i + 1; m <= j; ++m) sum -= gram[at(i, m)] * column[m];
      }
      column[i] = i > j || r == 0.0 || gram[at(j, j)] == 0.0 ? 0.0 : sum / r;
    }
  }
  if (before == nullptr) return;
  __syncthreads();
  const double* outer = before + matrix.square_at;
  double* result = results + matrix.square_at;
  for (unsigned i = threadIdx.x; i < rank * rank; i += kThreads) {
    const unsigned j = i / rank;
    const unsigned row = i - j * rank;
    double sum = 0.0;
    for (unsigned m = row; m <= j; ++m) {
      if (outer[m * rank + m] != 0.0) sum += outer[m * rank + row] * inverse[j * rank + m];
    }
    result[i] = sum;
  }
}

/// P := P T. A thread has a row, and writes its last element first: element j needs those up to j.
__global__ void apply_kernel(const LowRankMatrix* matrices, const LowRankRows* tiles, const double* triangles,
                             float* p) {
  const LowRankRows tile = tiles[blockIdx.x];
  const LowRankMatrix matrix = matrices[tile.matrix];
  const auto rank = static_cast<unsigned>(matrix.rank);
  const double* triangle = triangles + matrix.square_at;
  float* first = p + matrix.p_at + tile.row;
  for (unsigned row = threadIdx.x; row < tile.rows; row += kThreads) {
    for (unsigned j = rank; j-- > 0;)
      first[j * matrix.rows + row] = static_cast<float>(times_triangle(first, matrix.rows, row, j, triangle, rank));
  }
}

}  // namespace

void orthonormalise(Queue<Space::cuda> queue, const LowRankTables& tables, const LowRankSums& room, float* p) {
  if (tables.matrices.empty()) return;
  const auto tiles = static_cast<unsigned>(tables.rows.size());
  const auto matrices = static_cast<unsigned>(tables.matrices.size());
  double* first = room.first.data();
  double* second = room.second.data();
  launch(queue, "gram of a factor", gram_kernel, tiles, tables.matrices.data(), tables.rows.data(), p, nullptr,
         room.sums.data());
  launch(queue, "Cholesky", factor_kernel, matrices, tables.matrices.data(), room.sums.data(), tables.rows.data(),
         room.pairs.data(), nullptr, first, nullptr);
  launch(queue, "gram of a factor", gram_kernel, tiles, tables.matrices.data(), tables.rows.data(), p, first,
         room.sums.data());
  launch(queue, "Cholesky", factor_kernel, matrices, tables.matrices.data(), room.sums.data(), tables.rows.data(),
         room.pairs.data(), first, second, room.product.data());
  launch(queue, "orthonormal", apply_kernel, tiles, tables.matrices.data(), tables.rows.data(), room.product.data(), p);
}

}  // namespace gradtool::cuda
