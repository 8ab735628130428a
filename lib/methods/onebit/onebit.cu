#include <cuda_runtime.h>

#include "kernels/bitpack.hpp"
#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/codecs/gpu_tensor_codec.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/onebit/matrices.hpp"

namespace gradtool {
namespace cuda {
namespace {

/// Sums of a column over a chunk of its rows.
struct ColumnSums {
  double negative;
  double other;
  std::uint64_t negatives;
};

/// The means that the elements of a column are decoded to: those not below zero, and those below.
struct alignas(8) Means {
  float other;
  float negative;
};

/// Up to 128 neighbouring columns of a matrix of several columns.
struct Strip {
  std::uint64_t first = 0;  ///< index of the element in its first row and column
  std::uint64_t rows = 0;
  std::uint64_t stride = 0;  ///< elements between two rows
  std::uint64_t column = 0;  ///< number of its first column among the columns of all tensors
  std::uint64_t count = 0;   ///< columns
  std::uint64_t slot = 0;    ///< index of its first sums: `count` for each chunk of format::kSumRows rows
};
constexpr std::size_t kStripColumns = 128;

/// A chunk of format::kSumRows rows of a strip, which one warp adds up.
struct Tile {
  std::uint64_t strip = 0;
  std::uint64_t chunk = 0;
};

/// Tables of the kernels, all of them in device memory.
struct Tables {
  TensorTable pieces;
  const OneBitMatrix* matrix = nullptr;  ///< one for each tensor
  const Strip* strip = nullptr;
  std::size_t strips = 0;
  const Tile* tile = nullptr;
  std::size_t tiles = 0;
  std::size_t columns = 0;  ///< of all tensors
};

/// Sums that means follow from, in scratch.
struct Sums {
  double* of_piece;          ///< of pieces of single columns: the sums below zero, and behind them the others
  std::uint64_t* negatives;  ///< of pieces of single columns: elements below zero
  ColumnSums* of_strip;
};

/// Writes the signs of all elements, and the sums of the pieces of single columns: the lower half of a warp adds the
/// elements below zero, the upper half the others.
__global__ void pieces_kernel(Tables table, const float* gradient, std::uint32_t* words, Sums sums) {
  alignas(16) __shared__ float rooms[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t p = warp_in_grid(); p < table.pieces.pieces; p += warps_in_grid()) {
    const TensorPiece piece = table.pieces.piece[p];
    const int count = static_cast<int>(piece.count);
    const bool single = table.matrix[piece.tensor].columns == 1;
    const bool lower = lane < format::kSumLanes;
    double sum = 0.0;
    unsigned negatives = 0;
    each_tile(gradient + piece.first, count, rooms[threadIdx.x / kWarpSize], [&](int first, const float* tile) {
      negatives += static_cast<unsigned>(__popc(write_negatives(tile, first, count, words + piece.word)));
      if (!single) return;
#pragma unroll 8
      for (unsigned i = lane % format::kSumLanes; i < kTile; i += format::kSumLanes)
        sum += static_cast<double>((tile[i] < 0.0f) == lower ? tile[i] : 0.0f);
    });
    if (!single) continue;
    sum = folded(sum);
    negatives = __reduce_add_sync(kAllLanes, negatives);
    if (lane % format::kSumLanes == 0) sums.of_piece[lower ? p : table.pieces.pieces + p] = sum;
    if (lane == 0) sums.negatives[p] = negatives;
  }
}

/// Sums of the tiles. A lane has four columns, 32 apart, so that a row is read in whole sectors of memory.
__global__ void strips_kernel(Tables table, const float* gradient, ColumnSums* sums) {
  constexpr int kOwn = kStripColumns / kWarpSize;
  for (std::size_t t = warp_in_grid(); t < table.tiles; t += warps_in_grid()) {
    const Tile tile = table.tile[t];
    const Strip strip = table.strip[tile.strip];
    const std::size_t left = strip.rows - format::kSumRows * tile.chunk;
    const auto rows = static_cast<int>(left < format::kSumRows ? left : format::kSumRows);
    const float* x = gradient + strip.first + format::kSumRows * tile.chunk * strip.stride + lane_in_warp();
    const int columns = static_cast<int>(strip.count) - static_cast<int>(lane_in_warp());
    double negative[kOwn]{};
    double other[kOwn]{};
    unsigned negatives[kOwn]{};
#pragma unroll 4
    for (int r = 0; r < rows; ++r, x += strip.stride) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const float value = 32 * c < columns ? x[32 * c] : 0.0f;
        const bool below = value < 0.0f;
        negative[c] += static_cast<double>(below ? value : 0.0f);
        other[c] += static_cast<double>(below ? 0.0f : value);
        negatives[c] += below ? 1u : 0u;
      }
    }
    ColumnSums* to = sums + strip.slot + tile.chunk * strip.count + lane_in_warp();
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      if (32 * c < columns) to[32 * c] = {negative[c], other[c], negatives[c]};
    }
  }
}

__device__ Means means_of(double negative, double other, std::uint64_t negatives, std::uint64_t count) {
  return {format::stored_mean(other, count - negatives), format::stored_mean(negative, negatives)};
}

/// The means of tensors that are one column, each by a block of threads.
__global__ void single_means_kernel(Tables table, Sums sums, Means* means) {
  __shared__ ChunkSumsShared<2> room;
  __shared__ std::uint64_t counts[kThreads / kWarpSize];
  for (std::size_t t = blockIdx.x; t < table.pieces.tensors; t += gridDim.x) {
    const OneBitMatrix matrix = table.matrix[t];
    if (matrix.columns != 1) continue;
    const TensorRange range = table.pieces.tensor[t];
    std::uint64_t negatives = 0;
    for (std::size_t p = range.first + threadIdx.x; p < range.last; p += kThreads) negatives += sums.negatives[p];
    for (unsigned half = 16; half > 0; half /= 2) negatives += __shfl_down_sync(kAllLanes, negatives, half);
    if (lane_in_warp() == 0) counts[threadIdx.x / kWarpSize] = negatives;
    double both[2];
    sums_of_chunks<2>(sums.of_piece, table.pieces.pieces, range.first, range.last, room, both);
    if (threadIdx.x == 0) {
      std::uint64_t all = 0;
      for (const std::uint64_t warp : counts) all += warp;
      means[matrix.first_column] = means_of(both[0], both[1], all, matrix.rows);
    }
    __syncthreads();
  }
}

/// The means of matrices of several columns, a strip by a block of threads and a column by a thread.
__global__ void strip_means_kernel(Tables table, const ColumnSums* sums, Means* means) {
  for (std::size_t s = blockIdx.x; s < table.strips; s += gridDim.x) {
    const Strip strip = table.strip[s];
    if (threadIdx.x >= strip.count) continue;
    const ColumnSums* from = sums + strip.slot + threadIdx.x;
    format::GroupedSum negative;
    format::GroupedSum other;
    std::uint64_t negatives = 0;
    const std::size_t chunks = (strip.rows + format::kSumRows - 1) / format::kSumRows;
#pragma unroll 8
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const ColumnSums part = from[chunk * strip.count];
      negative.add(part.negative);
      other.add(part.other);
      negatives += part.negatives;
    }
    means[strip.column + threadIdx.x] = means_of(negative.value(), other.value(), negatives, strip.rows);
  }
}

__global__ void decode_kernel(Tables table, const __grid_constant__ Payloads payloads, float weight, float* out) {
  each_share(table.pieces, [&](std::size_t first, int count, const TensorPiece& piece, int offset) {
    const OneBitMatrix matrix = table.matrix[piece.tensor];
    const auto columns = static_cast<unsigned>(matrix.columns);
    // The column four elements before the first one, so that the quad that begins before it needs no case of its own.
    const auto start = static_cast<unsigned>((first - matrix.first + 4 * (matrix.columns - 1)) % matrix.columns);
    update_quads(out + first, count, [&](int at, Four<float>& sum) {
      const unsigned column = columns == 1 ? 0 : (start + static_cast<unsigned>(at + 4)) % columns;
      for (unsigned i = 0; i < payloads.count; ++i) {
        const Means* means = reinterpret_cast<const Means*>(payloads.at[i]);
        const auto* words = reinterpret_cast<const std::uint32_t*>(means + table.columns) + piece.word + offset / 32;
        const unsigned bits = four_codes<1>(words, at, count);
        means += matrix.first_column;
        unsigned c = column;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const Means mean = means[c];
          sum.value[k] += weight * ((bits >> k & 1u) != 0 ? mean.negative : mean.other);
          c = c + 1 == columns ? 0 : c + 1;
        }
      }
    });
  });
}

}  // namespace
}  // namespace cuda

namespace {

/// The strips and tiles of a layout's matrices.
struct Strips {
  std::vector<cuda::Strip> strips;
  std::vector<cuda::Tile> tiles;
  std::size_t columns = 0;  ///< of all tensors
  std::size_t slots = 0;    ///< sums of all strips

  explicit Strips(const std::vector<OneBitMatrix>& matrices) {
    for (const OneBitMatrix& matrix : matrices) {
      expect_valid(matrix.columns < (std::size_t{1} << 31), "codec onebit on a GPU: a matrix has 2^31 columns or more");
      columns += matrix.columns;
      if (matrix.columns > 1) add(matrix);
    }
  }

 private:
  void add(const OneBitMatrix& matrix) {
    const std::size_t chunks = (matrix.rows + format::kSumRows - 1) / format::kSumRows;
    for (std::size_t c = 0; c < matrix.columns; c += cuda::kStripColumns) {
      const std::size_t count = std::min<std::size_t>(cuda::kStripColumns, matrix.columns - c);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) tiles.push_back({strips.size(), chunk});
      strips.push_back({matrix.first + c, matrix.rows, matrix.columns, matrix.first_column + c, count, slots});
      slots += chunks * count;
    }
  }
};

class GpuOneBit final : public GpuTensorCodec {
 public:
  GpuOneBit(const Params& params, const Layout& layout)
      : GpuOneBit{params, layout, onebit_matrices(layout, params.is("means", "column"))} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    make_tables(n);
    matrices_.make();
    strips_.make();
    tiles_.make();
    return {.payload_bytes = payload_bytes(), .scratch_bytes = planned<Workspace>(*this)};
  }

  /// Reads the gradient once for vectors and twice for matrices, whose sums run across their words of signs.
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    const cuda::Tables lookup = tables();
    if (lookup.pieces.pieces == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const float* x = gradient.data();
    auto* means = reinterpret_cast<cuda::Means*>(payload.data());
    auto* words = reinterpret_cast<std::uint32_t*>(means + columns_);
    const cuda::Grid by_piece{cuda::blocks_for(lookup.pieces.pieces, cuda::kChunkWarps), cuda::kChunkThreads};
    cuda::launch(queue, "onebit signs", cuda::pieces_kernel, by_piece, lookup, x, words, work.sums);
    cuda::launch(queue, "onebit means", cuda::single_means_kernel, cuda::blocks_for(lookup.pieces.tensors, 1), lookup,
                 work.sums, means);
    if (lookup.tiles == 0) return;
    const cuda::Grid by_tile{cuda::blocks_for(lookup.tiles, cuda::kChunkWarps), cuda::kChunkThreads};
    cuda::launch(queue, "onebit columns", cuda::strips_kernel, by_tile, lookup, x, work.sums.of_strip);
    const cuda::Grid by_strip{cuda::blocks_for(lookup.strips, 1), cuda::kChunkThreads};
    static_assert(cuda::kStripColumns == cuda::kChunkThreads);
    cuda::launch(queue, "onebit means of columns", cuda::strip_means_kernel, by_strip, lookup, work.sums.of_strip,
                 means);
  }

 private:
  struct Workspace {
    Workspace(const GpuOneBit& codec, Scratch<Space::cuda> scratch) {
      const std::size_t pieces = codec.pieces().pieces().size();
      sums.of_piece = scratch.take<double>(2 * pieces).data();
      sums.negatives = scratch.take<std::uint64_t>(pieces).data();
      sums.of_strip = scratch.take<cuda::ColumnSums>(codec.slots_).data();
    }
    cuda::Sums sums{};
  };

  GpuOneBit(const Params& params, const Layout& layout, const std::vector<OneBitMatrix>& matrices)
      : GpuOneBit{params, layout, matrices, Strips{matrices}} {}
  GpuOneBit(const Params& params, const Layout& layout, const std::vector<OneBitMatrix>& matrices, Strips strips)
      : GpuTensorCodec{"onebit", params, layout, [](std::size_t count) { return format::packed_words(count, 1); }},
        columns_{strips.columns},
        slots_{strips.slots},
        matrices_{matrices},
        strips_{std::move(strips.strips)},
        tiles_{std::move(strips.tiles)} {}

  [[nodiscard]] std::size_t payload_bytes() const override {
    return sizeof(cuda::Means) * columns_ + 4 * pieces().words();
  }
  void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, float* out) const override {
    const cuda::Tables lookup = tables();
    cuda::launch(queue, "onebit decode", cuda::decode_kernel, cuda::grid_of_shares(lookup.pieces), lookup, batch,
                 weight, out);
  }
  [[nodiscard]] cuda::Tables tables() const {
    return {table(), matrices_.get(), strips_.get(), strips_.size(), tiles_.get(), tiles_.size(), columns_};
  }

  std::size_t columns_, slots_;
  DeviceTable<OneBitMatrix> matrices_;
  DeviceTable<cuda::Strip> strips_;
  DeviceTable<cuda::Tile> tiles_;
};

}  // namespace

extern constinit const GpuFactories onebit_gpu{.codec = make_method_codec<Space::cuda, GpuOneBit>};

}  // namespace gradtool
