#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/analysis/correlation.hpp"
#include "lib/analysis/cuda/gpu.hpp"
#include "lib/analysis/slices.hpp"
#include "lib/core/view.hpp"

/// Inner products of rows of double precision numbers, for the correlation analysis. All functions enqueue their work.
/// The order of all sums depends on the sizes alone.
namespace gradtool::cuda {
namespace {

/// A matrix of `rows` rows with `columns` numbers each; row r begins at data + r * stride.
struct DeviceRows {
  double* data = nullptr;
  std::size_t rows = 0, columns = 0, stride = 0;
};

constexpr unsigned kMostGramParts = 64;  ///< the most parts into which the columns of a sum are cut

/// A grid of blocks (x, y) for kernels in which block (x, y) handles part x of the columns of row y.
inline Grid row_grid(std::size_t columns, std::size_t rows) {
  Grid grid{blocks_for(columns, 4 * kThreads, kMostGramParts)};
  grid.y = static_cast<unsigned>(rows);
  return grid;
}

constexpr std::size_t kTile = 32;  ///< rows and columns of a tile of the Gram matrix, and summands taken at a time
/// A thread computes 2 x 2 products of a tile, whose rows and columns are this far apart.
constexpr std::size_t kHalf = kTile / 2;

static_assert(kHalf * kHalf == kThreads);

struct AllColumns {
  std::uint64_t count;
  [[nodiscard]] GT_HD std::uint64_t offset(std::uint64_t c) const { return c; }
};

std::size_t tiles_of(std::size_t rows) {
  return (rows + kTile - 1) / kTile;
}
/// The number of tiles in the lower triangle of the matrix, including its diagonal.
std::size_t pairs_of(std::size_t rows) {
  return tiles_of(rows) * (tiles_of(rows) + 1) / 2;
}
/// The number of parts into which the columns are cut: enough blocks for any GPU, but few enough that the partial
/// matrices stay small.
unsigned gram_parts(std::size_t rows, std::size_t columns) {
  const std::size_t most = std::clamp<std::size_t>(1024 / pairs_of(rows), 1, kMostGramParts);
  return blocks_for(columns, 8 * kTile, most);
}

/// Tile number `pair` of the lower triangle, counted row by row: row i and column j of tiles.
__device__ void tile_of(unsigned pair, std::size_t& i, std::size_t& j) {
  i = 0;
  while ((i + 1) * (i + 2) / 2 <= pair) ++i;
  j = pair - i * (i + 1) / 2;
}

/// Block (x, y) sums the products of tile y over part x of the columns, to partial[y][x][kTile][kTile].
template <class Columns>
__global__ void gram_kernel(DeviceRows rows, Columns columns, double* partial) {
  __shared__ double a[kTile][kTile + 1], b[kTile][kTile + 1];
  std::size_t i = 0, j = 0;
  tile_of(blockIdx.y, i, j);
  const std::size_t pieces = (columns.count + kTile - 1) / kTile;
  const std::size_t first = pieces * blockIdx.x / gridDim.x, last = pieces * (blockIdx.x + 1) / gridDim.x;
  const unsigned x = threadIdx.x % kHalf, y = threadIdx.x / kHalf;
  double sum[2][2] = {};
  for (std::size_t piece = first; piece < last; ++piece) {
    const std::size_t c = piece * kTile + threadIdx.x % kTile;
    const bool inside = c < columns.count;
    const std::size_t at = inside ? columns.offset(c) : 0;
    for (std::size_t r = threadIdx.x / kTile; r < kTile; r += kThreads / kTile) {
      const std::size_t mine = i * kTile + r, other = j * kTile + r;
      a[r][threadIdx.x % kTile] = inside && mine < rows.rows ? rows.data[mine * rows.stride + at] : 0.0;
      b[r][threadIdx.x % kTile] = inside && other < rows.rows ? rows.data[other * rows.stride + at] : 0.0;
    }
    __syncthreads();
#pragma unroll 8
    for (std::size_t k = 0; k < kTile; ++k) {
      const double a0 = a[y][k], a1 = a[y + kHalf][k], b0 = b[x][k], b1 = b[x + kHalf][k];
      sum[0][0] += a0 * b0;
      sum[0][1] += a0 * b1;
      sum[1][0] += a1 * b0;
      sum[1][1] += a1 * b1;
    }
    __syncthreads();
  }
  double* out = partial + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * kTile * kTile;
  out[y * kTile + x] = sum[0][0];
  out[y * kTile + x + kHalf] = sum[0][1];
  out[(y + kHalf) * kTile + x] = sum[1][0];
  out[(y + kHalf) * kTile + x + kHalf] = sum[1][1];
}

/// Block x adds the parts of tile x and writes the tile and its mirror image to `gram`.
__global__ void join_gram_kernel(const double* partial, unsigned parts, std::size_t rows, double* gram) {
  std::size_t i = 0, j = 0;
  tile_of(blockIdx.x, i, j);
  for (std::size_t at = threadIdx.x; at < kTile * kTile; at += kThreads) {
    const std::size_t row = i * kTile + at / kTile, column = j * kTile + at % kTile;
    if (row >= rows || column > row) continue;
    double sum = 0;
    for (unsigned p = 0; p < parts; ++p) sum += partial[(std::size_t{blockIdx.x} * parts + p) * kTile * kTile + at];
    gram[row * rows + column] = sum;
    gram[column * rows + row] = sum;
  }
}

/// Block (x, r) multiplies part x of row r of `a` with that of `b`.
template <class Columns>
__global__ void dots_kernel(DeviceRows a, DeviceRows b, Columns columns, double* partial) {
  const double *x = a.data + blockIdx.y * a.stride, *y = b.data + blockIdx.y * b.stride;
  double sum = 0;
  for (std::size_t c = thread_in_grid(); c < columns.count; c += threads_in_grid()) {
    const std::size_t at = columns.offset(c);
    sum += x[at] * y[at];
  }
  const double all = block_sum(sum);
  if (threadIdx.x == 0) partial[std::size_t{blockIdx.y} * gridDim.x + blockIdx.x] = all;
}

__global__ void join_dots_kernel(const double* partial, unsigned parts, std::size_t rows, double* dots) {
  for (std::size_t r = thread_in_grid(); r < rows; r += threads_in_grid()) {
    double sum = 0;
    for (unsigned p = 0; p < parts; ++p) sum += partial[r * parts + p];
    dots[r] = sum;
  }
}

template <class Columns>
void gram_over(Queue<Space::cuda> queue, const DeviceRows& rows, const Columns& columns, double* gram, double* work) {
  constexpr std::size_t kMostPairs = 65535;  // the limit of CUDA for blocks along y
  expect_valid(pairs_of(rows.rows) <= kMostPairs, "a GPU correlates at most 11552 rows; take fewer steps, or the CPU");
  Grid grid{gram_parts(rows.rows, columns.count)};
  grid.y = static_cast<unsigned>(pairs_of(rows.rows));
  launch(queue, "inner products", gram_kernel<Columns>, grid, rows, columns, work);
  launch(queue, "sums of inner products", join_gram_kernel, grid.y, work, grid.x, rows.rows, gram);
}

template <class Columns>
void row_dots_over(Queue<Space::cuda> queue, const DeviceRows& a, const DeviceRows& b, const Columns& columns,
                   double* dots, double* work) {
  const Grid grid = row_grid(columns.count, a.rows);
  launch(queue, "row products", dots_kernel<Columns>, grid, a, b, columns, work);
  launch(queue, "sums of row products", join_dots_kernel, blocks_for(a.rows, kThreads), work, grid.x, a.rows, dots);
}

/// The size, in numbers, of the working memory that the functions below need for matrices of so many rows.
std::size_t gram_work(std::size_t rows) {
  const std::size_t parts = std::clamp<std::size_t>(1024 / pairs_of(rows), 1, kMostGramParts);
  return std::max(pairs_of(rows) * parts * kTile * kTile, 3 * rows * kMostGramParts);
}

/// out[i * rows + j] := <row i, row j>, over all columns or over those of a slice.
void gram(Queue<Space::cuda> queue, const DeviceRows& rows, double* out, double* work) {
  gram_over(queue, rows, AllColumns{rows.columns}, out, work);
}
void gram(Queue<Space::cuda> queue, const DeviceRows& rows, const format::SliceColumns& slice, double* out,
          double* work) {
  gram_over(queue, rows, slice, out, work);
}

/// dots[r] := <row r of a, row r of b>, over all columns or over those of a slice. a and b have equal sizes.
void row_dots(Queue<Space::cuda> queue, const DeviceRows& a, const DeviceRows& b, double* dots, double* work) {
  row_dots_over(queue, a, b, AllColumns{a.columns}, dots, work);
}
void row_dots(Queue<Space::cuda> queue, const DeviceRows& a, const DeviceRows& b, const format::SliceColumns& slice,
              double* dots, double* work) {
  row_dots_over(queue, a, b, slice, dots, work);
}

__global__ void widen_kernel(const float* values, std::size_t stride, std::size_t workers, DeviceRows rows,
                             unsigned long long* non_finite) {
  unsigned long long bad = 0;
  const std::size_t compared = rows.rows - 1;
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    double sum = 0;
    std::size_t row = 0, next = 0;  // the next compared worker, as ComparedWorkers has it
    for (std::size_t w = 0; w < workers; ++w) {
      const double x = static_cast<double>(values[w * stride + i]);
      if (w == next && row < compared) {
        rows.data[row * rows.stride + i] = x;
        ++row;
        next = row * workers / compared;
      }
      sum += x;
      bad += x - x == 0 ? 0 : 1;
    }
    rows.data[compared * rows.stride + i] = sum / static_cast<double>(workers);
  }
  if (bad > 0) atomicAdd(non_finite, bad);
}

/// Block (x, r) reads part x of row r. `partial` has rows * parts sums, then as many minima, then as many maxima.
__global__ void row_statistics_kernel(DeviceRows rows, double* partial) {
  const double* row = rows.data + blockIdx.y * rows.stride;
  double sum = 0;
  Extremes own{row[0], row[0]};
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    sum += row[i];
    own.low = fmin(own.low, row[i]);
    own.high = fmax(own.high, row[i]);
  }
  const Extremes extremes = block_extremes(own);
  const double all = block_sum(sum);
  if (threadIdx.x != 0) return;
  const std::size_t at = std::size_t{blockIdx.y} * gridDim.x + blockIdx.x, kind = rows.rows * gridDim.x;
  partial[at] = all;
  partial[kind + at] = extremes.low;
  partial[2 * kind + at] = extremes.high;
}

__global__ void row_means_kernel(DeviceRows rows, const double* partial, unsigned parts, double* means) {
  for (std::size_t r = thread_in_grid(); r < rows.rows; r += threads_in_grid()) {
    const std::size_t kind = rows.rows * parts;
    const double* mine = partial + r * parts;
    double sum = 0, low = mine[kind], high = mine[2 * kind];
    for (unsigned p = 0; p < parts; ++p) {
      sum += mine[p];
      low = fmin(low, mine[kind + p]);
      high = fmax(high, mine[2 * kind + p]);
    }
    means[r] = low < high ? sum / static_cast<double>(rows.columns) : low;
  }
}

__global__ void centre_rows_kernel(DeviceRows rows, const double* means) {
  double* row = rows.data + blockIdx.y * rows.stride;
  const double mean = means[blockIdx.y];
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) row[i] -= mean;
}

__global__ void centre_columns_kernel(DeviceRows rows) {
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    double mean = 0;
    for (std::size_t r = 0; r < rows.rows; ++r) mean += rows.data[r * rows.stride + i];
    mean /= static_cast<double>(rows.rows);
    for (std::size_t r = 0; r < rows.rows; ++r) rows.data[r * rows.stride + i] -= mean;
  }
}

/// rows[r][i] := values[w * stride + i], w being the compared worker r, for all rows but the last, which becomes the
/// mean of all workers. non_finite += the number of values that are not finite.
void widen_with_mean(Queue<Space::cuda> queue, const float* values, std::size_t stride, std::size_t workers,
                     const DeviceRows& rows, std::uint64_t* non_finite) {
  launch(queue, "widen", widen_kernel, blocks_for(rows.columns, 4 * kThreads), values, stride, workers, rows,
         reinterpret_cast<unsigned long long*>(non_finite));
}

/// Subtracts its mean from every row; means[r] := that mean. DeviceRows of equal values become exactly 0.
void centre_rows(Queue<Space::cuda> queue, const DeviceRows& rows, double* means, double* work) {
  const Grid grid = row_grid(rows.columns, rows.rows);
  launch(queue, "statistics of rows", row_statistics_kernel, grid, rows, work);
  launch(queue, "means of rows", row_means_kernel, blocks_for(rows.rows, kThreads), rows, work, grid.x, means);
  launch(queue, "centre rows", centre_rows_kernel, grid, rows, means);
}

/// Subtracts from every column its mean over the rows.
void centre_columns(Queue<Space::cuda> queue, const DeviceRows& rows) {
  launch(queue, "centre columns", centre_columns_kernel, blocks_for(rows.columns, kThreads), rows);
}

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {
namespace {

/// Computes the sums of CorrelationAccumulator over one part. The rows of a step are multiplied as soon as its last
/// worker has arrived, the samples at the end. Only the products leave the GPU.
class GpuCorrelation final : public CorrelationAccumulator {
 public:
  GpuCorrelation(std::shared_ptr<AnalysisGpu> gpu, const ComparedWorkers& compared, const Part& part,
                 const Slicing& slicing, std::size_t samples)
      : CorrelationAccumulator{{compared.count, part.steps}, SliceGrams{samples}},
        gpu_{std::move(gpu)},
        workers_{compared.workers},
        rows_{compared.count + 1},
        steps_{part.steps},
        n_{static_cast<std::size_t>(part.count)},
        samples_{samples} {
    for (std::size_t s = 0; s < slicing.slices(); ++s) {
      const auto columns = slicing.columns(s, part.first, part.count);
      if (columns.count > 0) slices_.push_back({s, columns});
    }
    const auto take = [&](Scratch<Space::cuda> scratch) {
      now_ = scratch.take<double>(n_ * rows_);
      before_ = scratch.take<double>(n_ * rows_);
      sample_rows_ = scratch.take<double>(n_ * samples_);
      work_ = scratch.take<double>(std::max(cuda::gram_work(rows_), cuda::gram_work(samples_)));
      means_ = scratch.take<double>(steps_ * rows_);
      lags_ = scratch.take<double>(steps_ * rows_);
      within_ = scratch.take<double>(steps_ * rows_ * rows_);
      norms_ = scratch.take<double>(slices_.size() * samples_);
      slice_grams_ = scratch.take<double>(slices_.size() * samples_ * samples_);
      bad_ = scratch.take<std::uint64_t>(1);
      return scratch.bytes();
    };
    take(Scratch{gpu_->memory(AnalysisGpu::User::correlation, take({}))});
    cuda::fill(gpu_->queue(), as_writable_bytes(bad_), 0);
    cuda::fill(gpu_->queue(), as_writable_bytes(lags_), 0);
  }

  void observe(const Slice& slice) override {
    if (slice.worker + 1 < workers_) return;
    const GpuSlice& gpu = slice.gpu;
    const cuda::DeviceRows now{now_.data(), rows_, n_, n_}, before{before_.data(), rows_, n_, n_};
    cuda::widen_with_mean(gpu.queue, gpu.rows, gpu.stride, workers_, now, bad_.data());
    if (next_ < samples_) {
      cuda::copy_elements(gpu.queue, sample_rows_.part(next_ * n_, n_),
                          View<const double, Space::cuda>{now_.part((rows_ - 1) * n_, n_)});
    }
    cuda::centre_rows(gpu.queue, now, means_.data() + next_ * rows_, work_.data());
    cuda::gram(gpu.queue, now, within_.data() + next_ * rows_ * rows_, work_.data());
    if (next_ > 0) cuda::row_dots(gpu.queue, now, before, lags_.data() + next_ * rows_, work_.data());
    std::swap(now_, before_);
    ++next_;
  }

  void close() override {
    gpu_->fetch(bad_, {&non_finite_, 1});
    if (non_finite_ > 0) return;
    const auto queue = gpu_->queue();
    const cuda::DeviceRows samples{sample_rows_.data(), samples_, n_, n_};
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      cuda::row_dots(queue, samples, samples, slices_[i].columns, norms_.data() + i * samples_, work_.data());
    }
    cuda::centre_columns(queue, samples);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      cuda::gram(queue, samples, slices_[i].columns, slice_grams_.data() + i * samples_ * samples_, work_.data());
    }
    const auto means = gpu_->fetch(means_), within = gpu_->fetch(within_), lags = gpu_->fetch(lags_);
    for (std::size_t s = 0; s < steps_; ++s) {
      pearson_.add_sums(static_cast<double>(n_), std::span{means}.subspan(s * rows_, rows_),
                        std::span{within}.subspan(s * rows_ * rows_, rows_ * rows_),
                        std::span{lags}.subspan(s * rows_, rows_));
    }
    const auto norms = gpu_->fetch(norms_), grams = gpu_->fetch(slice_grams_);
    const auto row_of = [](const std::vector<double>& all, std::size_t i, std::size_t size) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(i * size);
      return std::vector<double>{first, first + static_cast<std::ptrdiff_t>(size)};
    };
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      grams_.put(slices_[i].number, {row_of(grams, i, samples_ * samples_), row_of(norms, i, samples_)});
    }
  }

 private:
  struct NumberedSlice {
    std::size_t number;
    format::SliceColumns columns;
  };

  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t workers_, rows_, steps_, n_, samples_, next_ = 0;
  std::vector<NumberedSlice> slices_;
  View<double, Space::cuda> now_,
      before_;  ///< [R][n] each: compared gradients and mean of this step and of the one before
  View<double, Space::cuda> sample_rows_;  ///< [M][n]: the samples
  View<double, Space::cuda> work_;
  View<double, Space::cuda> means_, lags_, within_;  ///< [S][R], [S][R], [S][R][R]
  View<double, Space::cuda> norms_, slice_grams_;    ///< [slices][M], [slices][M][M]
  View<std::uint64_t, Space::cuda> bad_;             ///< number of values that are not finite
};

}  // namespace

std::unique_ptr<Accumulator> start_gpu_correlation(std::shared_ptr<AnalysisGpu> gpu, const ComparedWorkers& compared,
                                                   const Part& part, const Slicing& slicing, std::size_t samples) {
  return std::make_unique<GpuCorrelation>(std::move(gpu), compared, part, slicing, samples);
}

}  // namespace gradtool
