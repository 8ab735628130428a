// ATOMO on a GPU. Gram matrices are cuBLAS's and their eigenvectors cuSOLVER's; which triplets are kept is drawn as on
// the CPU. Everything is enqueued: how many triplets are kept never reaches the CPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/blas.hpp"
#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/draws.hpp"
#include "kernels/eigen.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/atomo/format.hpp"

namespace gradtool {
namespace {

using cuda::block_sum;
using cuda::blocks_for;
using cuda::kThreads;
using cuda::launch;

constexpr std::size_t kTileElements = 4096;  ///< of a tensor, for one block
constexpr std::size_t kMostChunks = 64;      ///< pieces in which blocks compute the longer side of a triplet
constexpr unsigned kSlots = 16;              ///< triplets of one matrix that are computed side by side
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// At most kTileElements elements of one tensor.
struct Tile {
  std::uint64_t tensor = 0;  ///< its place in the format
  std::uint64_t first = 0;   ///< element of the tensor
  std::uint64_t count = 0;
};

/// The format in device memory.
struct Table {
  const AtomoTensor* tensors;
  std::size_t tensor_count;
  const Tile* tiles;
  std::size_t tile_count;
  std::size_t header_bytes;
};

/// The results of encode on the device. Arrays "of all values" have a number for each singular value of each factored
/// tensor, from AtomoTensor::values_first on.
struct Triplets {
  double* vectors;         ///< of all factored tensors, from vectors_first on, in ascending order of the eigenvalues
  double* eigenvalues;     ///< of all values, ascending
  double* singular;        ///< of all values: the singular values, descending
  double* probabilities;   ///< of all values
  std::uint32_t* kept;     ///< of all values: which triplets of the tensor are kept, `counts` of them
  double* squares;         ///< kMostChunks for each of all values: of a vector of the longer side
  int* not_finite;         ///< of every factored tensor: 1 where it cannot be decomposed
  int* solver_status;      ///< of every factored tensor: not 0 where cuSOLVER did not converge
  std::uint32_t* counts;   ///< of every factored tensor: triplets that are kept
  std::uint64_t* offsets;  ///< of every tensor: where its floats start in the payload; then two numbers of decode_add
};

/// Writes positions [first, first + width) of the longer side of a matrix in float64: a row of `width` for each
/// position of the shorter side. Neighbouring threads read neighbours along a row of the matrix.
__global__ void widen_kernel(AtomoTensor tensor, const float* matrix, std::size_t first, std::size_t width,
                             double* out) {
  const std::size_t count = tensor.order() * width;
  for (std::size_t k = std::size_t{blockIdx.x} * kThreads + threadIdx.x; k < count;
       k += std::size_t{gridDim.x} * kThreads) {
    const std::size_t s = tensor.wide() ? k / width : k % tensor.order();
    const std::size_t l = tensor.wide() ? k % width : k / tensor.order();
    const std::size_t element = tensor.wide() ? s * tensor.columns + first + l : (first + l) * tensor.columns + s;
    out[s * width + l] = element < tensor.elements ? static_cast<double>(matrix[element]) : 0.0;
  }
}

/// Replaces a Gram matrix that is not finite by the identity, because cuSOLVER needs finite numbers, and sets
/// *not_finite. The trace decides: it is a sum of squares, never below 0, and a NaN is not less than infinity. One
/// block.
__global__ void guard_kernel(double* gram, std::size_t order, int* not_finite) {
  double trace = 0.0;
  for (std::size_t s = threadIdx.x; s < order; s += kThreads) trace += gram[s * order + s];
  trace = block_sum(trace);
  const bool finite = trace < kInfinity;
  if (threadIdx.x == 0) *not_finite = finite ? 0 : 1;
  if (finite) return;
  for (std::size_t k = threadIdx.x; k < order * order; k += kThreads) gram[k] = k % (order + 1) == 0 ? 1.0 : 0.0;
}

/// Which triplets are kept: a block for each tensor, of which one thread draws in the CPU's order.
__global__ void choose_kernel(Table table, Triplets triplets, double budget, format::DrawKey key) {
  const AtomoTensor tensor = table.tensors[blockIdx.x];
  if (!tensor.factored()) return;
  const std::uint64_t order = tensor.order();
  double* singular = triplets.singular + tensor.values_first;
  double* probabilities = triplets.probabilities + tensor.values_first;
  for (std::uint64_t j = threadIdx.x; j < order; j += kThreads) {
    const double eigenvalue = triplets.eigenvalues[tensor.values_first + order - 1 - j];
    singular[j] = eigenvalue > 0.0 ? sqrt(eigenvalue) : 0.0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (triplets.not_finite[tensor.matrix] != 0 || triplets.solver_status[tensor.matrix] != 0) {
    triplets.not_finite[tensor.matrix] = 1;
    triplets.counts[tensor.matrix] = 1;
    return;
  }
  format::atomic_probabilities(singular, order, budget, probabilities);
  std::uint32_t kept = 0;
  for (std::uint64_t j = 0; j < order; ++j) {
    const std::uint64_t draw = tensor.first_draw + j;
    const float u = format::uniform(format::draw4(key, draw / 4).bits[draw % 4]);
    if (static_cast<double>(u) < probabilities[j])
      triplets.kept[tensor.values_first + kept++] = static_cast<std::uint32_t>(j);
  }
  triplets.counts[tensor.matrix] = kept;
}

/// Writes the header, and where the floats of each tensor start. One thread, since each tensor follows the one before.
__global__ void header_kernel(Table table, Triplets triplets, std::byte* payload) {
  if (threadIdx.x != 0) return;
  std::uint64_t floats = 0;
  for (std::size_t t = 0; t < table.tensor_count; ++t) {
    const AtomoTensor& tensor = table.tensors[t];
    triplets.offsets[t] = floats;
    if (!tensor.factored()) {
      floats += tensor.elements;
      continue;
    }
    const std::uint32_t count = triplets.counts[tensor.matrix];
    reinterpret_cast<std::uint32_t*>(payload + 8)[tensor.matrix] = count;
    floats += count * tensor.triplet();
  }
  *reinterpret_cast<std::uint64_t*>(payload) = table.header_bytes + 4 * floats;
}

/// Copies the tensors that are sent as they are, a block for each tile.
__global__ void copy_kernel(Table table, Triplets triplets, const float* gradient, std::byte* payload) {
  const Tile tile = table.tiles[blockIdx.x];
  const AtomoTensor tensor = table.tensors[tile.tensor];
  if (tensor.factored()) return;
  float* to = reinterpret_cast<float*>(payload + table.header_bytes) + triplets.offsets[tile.tensor] + tile.first;
  const float* from = gradient + tensor.first + tile.first;
  for (std::uint64_t i = threadIdx.x; i < tile.count; i += kThreads) to[i] = from[i];
}

/// The singular vectors of the longer side of one matrix: M or Mᵀ times the vector of the shorter side, over the
/// singular value, which leaves a norm of about 1; and the sums of their squares, chunk by chunk. A warp computes a row
/// of a tall matrix, a thread a column of a wide one. blockIdx is (chunk, slot).
__global__ void longer_side_kernel(Table table, std::size_t index, AtomoTensor tensor, Triplets triplets,
                                   const float* matrix, std::byte* payload) {
  const std::uint64_t order = tensor.order();
  const std::uint64_t length = tensor.longer_side();
  const bool wide = tensor.wide();
  const std::uint64_t first = length * blockIdx.x / gridDim.x;
  const std::uint64_t last = length * (blockIdx.x + 1) / gridDim.x;
  const bool not_finite = triplets.not_finite[tensor.matrix] != 0;
  float* floats = reinterpret_cast<float*>(payload + table.header_bytes) + triplets.offsets[index];
  for (std::uint32_t slot = blockIdx.y; slot < triplets.counts[tensor.matrix]; slot += gridDim.y) {
    float* out = floats + slot * tensor.triplet() + 1 + (wide ? tensor.rows : 0);
    double squares = 0.0;
    if (!not_finite) {
      const std::uint32_t j = triplets.kept[tensor.values_first + slot];
      const double* vector = triplets.vectors + tensor.vectors_first + (order - 1 - j) * order;
      const double value = triplets.singular[tensor.values_first + j];
      for (std::uint64_t e = wide ? first + threadIdx.x : first + threadIdx.x / 32; e < last;
           e += wide ? kThreads : kThreads / 32) {
        double sum = 0.0;
        if (wide) {
          for (std::uint64_t i = 0; i < order; ++i) {
            const std::uint64_t element = i * tensor.columns + e;
            if (element < tensor.elements) sum += vector[i] * static_cast<double>(matrix[element]);
          }
        } else {
          for (std::uint64_t k = threadIdx.x % 32; k < order; k += 32) {
            const std::uint64_t element = e * tensor.columns + k;
            if (element < tensor.elements) sum += vector[k] * static_cast<double>(matrix[element]);
          }
          for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(cuda::kAllLanes, sum, half);
        }
        sum /= value;
        if (!wide && threadIdx.x % 32 != 0) continue;
        out[e] = static_cast<float>(sum);
        squares += sum * sum;
      }
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0) triplets.squares[(tensor.values_first + slot) * kMostChunks + blockIdx.x] = squares;
  }
}

/// The rest of the triplets of one matrix: the weight sigma / p, the vector of the shorter side, and the other one made
/// a unit vector; or one triplet with a NaN, which makes all of the matrix NaN. `chunks`: of longer_side_kernel.
__global__ void finish_kernel(Table table, std::size_t index, AtomoTensor tensor, Triplets triplets, unsigned chunks,
                              std::byte* payload) {
  const std::uint64_t order = tensor.order();
  const bool not_finite = triplets.not_finite[tensor.matrix] != 0;
  float* floats = reinterpret_cast<float*>(payload + table.header_bytes) + triplets.offsets[index];
  for (std::uint32_t slot = blockIdx.x; slot < triplets.counts[tensor.matrix]; slot += gridDim.x) {
    float* triplet = floats + slot * tensor.triplet();
    if (not_finite) {
      for (std::uint64_t i = threadIdx.x; i < tensor.triplet(); i += kThreads)
        triplet[i] = i == 0 ? __uint_as_float(0x7fc00000u) : 1.0f;
      continue;
    }
    const std::uint32_t j = triplets.kept[tensor.values_first + slot];
    double squares = 0.0;
    for (unsigned c = 0; c < chunks; ++c) squares += triplets.squares[(tensor.values_first + slot) * kMostChunks + c];
    const double norm = sqrt(squares);
    const double factor = norm > 0.0 ? 1.0 / norm : 0.0;
    const double* vector = triplets.vectors + tensor.vectors_first + (order - 1 - j) * order;
    if (threadIdx.x == 0) {
      triplet[0] = static_cast<float>(norm * triplets.singular[tensor.values_first + j] /
                                      triplets.probabilities[tensor.values_first + j]);
    }
    float* shorter = triplet + 1 + (tensor.wide() ? 0 : tensor.rows);
    float* longer = triplet + 1 + (tensor.wide() ? tensor.rows : 0);
    for (std::uint64_t i = threadIdx.x; i < order; i += kThreads) shorter[i] = static_cast<float>(vector[i]);
    for (std::uint64_t i = threadIdx.x; i < tensor.longer_side(); i += kThreads)
      longer[i] = static_cast<float>(static_cast<double>(longer[i]) * factor);
  }
}

/// Finds the first float of each tensor in a payload; behind these entries it stores how many floats there are, and
/// whether the payload's counts, its size and the length of the view agree. One thread.
__global__ void locate_kernel(Table table, const std::byte* payload, std::size_t bytes, std::uint64_t* offsets) {
  if (threadIdx.x != 0) return;
  const auto* counts = reinterpret_cast<const std::uint32_t*>(payload + 8);
  std::uint64_t floats = 0;
  bool valid = true;
  for (std::size_t t = 0; t < table.tensor_count; ++t) {
    const AtomoTensor& tensor = table.tensors[t];
    offsets[t] = floats;
    if (!tensor.factored()) {
      floats += tensor.elements;
      continue;
    }
    const std::uint32_t count = counts[tensor.matrix];
    valid = valid && count <= tensor.order();
    floats += valid ? count * tensor.triplet() : 0;
  }
  const std::uint64_t expected = table.header_bytes + 4 * floats;
  offsets[table.tensor_count] = floats;
  offsets[table.tensor_count + 1] =
      valid && expected <= bytes && *reinterpret_cast<const std::uint64_t*>(payload) == expected ? 1 : 0;
}

/// out += weight * decoded, a block for each tile; NaN everywhere where the payload contradicts itself.
__global__ void add_kernel(Table table, const std::byte* payload, float weight, float* out,
                           const std::uint64_t* offsets) {
  const Tile tile = table.tiles[blockIdx.x];
  const AtomoTensor tensor = table.tensors[tile.tensor];
  float* to = out + tensor.first + tile.first;
  const bool valid = offsets[table.tensor_count + 1] != 0;
  const float* floats = reinterpret_cast<const float*>(payload + table.header_bytes) + offsets[tile.tensor];
  const std::uint32_t count =
      tensor.factored() && valid ? reinterpret_cast<const std::uint32_t*>(payload + 8)[tensor.matrix] : 0;
  const auto columns = static_cast<std::uint32_t>(tensor.columns);
  for (std::uint32_t e = threadIdx.x; e < tile.count; e += kThreads) {
    if (!valid) {
      to[e] = __uint_as_float(0x7fc00000u);
      continue;
    }
    const std::uint64_t element = tile.first + e;
    if (!tensor.factored()) {
      to[e] += weight * floats[element];
      continue;
    }
    const auto i = static_cast<std::uint32_t>(element) / columns;
    const std::uint32_t k = static_cast<std::uint32_t>(element) - i * columns;
    float sum = to[e];
    const float* triplet = floats;
    for (std::uint32_t t = 0; t < count; ++t, triplet += tensor.triplet()) {
      const float factor = weight * (triplet[0] * triplet[1 + i]);
      sum += factor * triplet[1 + tensor.rows + k];
    }
    to[e] = sum;
  }
}

std::vector<Tile> tiles_of(const AtomoFormat& format) {
  std::vector<Tile> tiles;
  for (std::size_t t = 0; t < format.tensors.size(); ++t) {
    const std::size_t elements = format.tensors[t].elements;
    expect_valid(elements <= 0xffffffff, "a tensor is too large for codec atomo on a GPU");
    for (std::size_t first = 0; first < elements; first += kTileElements)
      tiles.push_back({t, first, std::min(kTileElements, elements - first)});
  }
  return tiles;
}

/// Positions of the longer side of a matrix that are widened to float64 at a time: some 16 MiB of them.
std::size_t widened_positions(const AtomoTensor& tensor) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  return std::min<std::size_t>(tensor.longer_side(), std::max<std::size_t>(64, kBytes / (8 * tensor.order())));
}

class CudaAtomo final : public GpuCodec {
 public:
  CudaAtomo(const Params& params, const Layout& layout)
      : GpuCodec{"atomo", params, layout},
        budget_{static_cast<double>(params.integer("s"))},
        format_{params, layout},
        tensors_{format_.tensors},
        tiles_{tiles_of(format_)} {
    for (const AtomoTensor& tensor : format_.tensors) {
      if (tensor.factored())
        most_widened_ = std::max<std::size_t>(most_widened_, tensor.order() * widened_positions(tensor));
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == format_.elements, "codec atomo works on the layout that it was made for");
    tensors_.make();
    tiles_.make();
    if (format_.matrices > 0) libraries_.make([this] { return Libraries{format_}; });
    return {.payload_bytes = format_.most_bytes(),
            .scratch_bytes = planned<Workspace>(*this),
            .exact = format_.matrices == 0};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    if (format_.elements == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const Table table = this->table();
    for (const AtomoTensor& tensor : format_.tensors) {
      if (tensor.factored()) decompose(queue, tensor, gradient.data() + tensor.first, work);
    }
    launch(queue, "atomo choose", choose_kernel, static_cast<unsigned>(table.tensor_count), table, work.triplets,
           budget_, context.key);
    launch(queue, "atomo header", header_kernel, {1, 32}, table, work.triplets, payload.data());
    launch(queue, "atomo copy", copy_kernel, static_cast<unsigned>(table.tile_count), table, work.triplets,
           gradient.data(), payload.data());
    for (std::size_t t = 0; t < format_.tensors.size(); ++t) {
      const AtomoTensor& tensor = format_.tensors[t];
      if (!tensor.factored()) continue;
      cuda::Grid grid{blocks_for(tensor.longer_side(), tensor.wide() ? kThreads : kThreads / 32, kMostChunks)};
      grid.y = kSlots;
      launch(queue, "atomo longer side", longer_side_kernel, grid, table, t, tensor, work.triplets,
             gradient.data() + tensor.first, payload.data());
      launch(queue, "atomo finish", finish_kernel, kSlots, table, t, tensor, work.triplets, grid.x, payload.data());
    }
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expects(out.size() == format_.elements, "codec atomo works on the layout that it was made for");
    const std::size_t most = format_.most_bytes();
    const std::size_t least = format_.matrices == 0 ? most : format_.header_bytes();
    if (payload.size() < least || payload.size() > most) expect_length("atomo", payload.size(), most);
    if (format_.elements == 0) return;
    const Table table = this->table();
    std::uint64_t* offsets = Workspace{*this, Scratch<Space::cuda>{scratch}}.triplets.offsets;
    launch(queue, "atomo locate", locate_kernel, {1, 32}, table, payload.data(), payload.size(), offsets);
    launch(queue, "atomo add", add_kernel, static_cast<unsigned>(table.tile_count), table, payload.data(), weight,
           out.data(), offsets);
  }

 private:
  /// cuBLAS and cuSOLVER on one GPU, and the memory they work in. Asking for sizes takes the libraries' time, so it is
  /// done once.
  struct Libraries {
    explicit Libraries(const AtomoFormat& format)
        : blas{cuda::Blas::of_this_thread()},
          eigen{cuda::DeviceEigen::of_this_thread()},
          blas_bytes{blas->work_bytes()} {
      for (const AtomoTensor& tensor : format.tensors) {
        if (tensor.factored()) eigen_bytes = std::max(eigen_bytes, eigen->work_bytes(tensor.order()));
      }
    }
    std::shared_ptr<cuda::Blas> blas;
    std::shared_ptr<cuda::DeviceEigen> eigen;
    std::size_t blas_bytes;
    std::size_t eigen_bytes = 0;
  };

  struct Workspace {
    Workspace(const CudaAtomo& codec, Scratch<Space::cuda> scratch) {
      const AtomoFormat& format = codec.format_;
      triplets.offsets = scratch.take<std::uint64_t>(format.tensors.size() + 2).data();
      if (format.matrices > 0) {
        const Libraries& libraries = codec.libraries_.get();
        triplets.vectors = scratch.take<double>(format.vectors).data();
        triplets.eigenvalues = scratch.take<double>(format.values).data();
        triplets.singular = scratch.take<double>(format.values).data();
        triplets.probabilities = scratch.take<double>(format.values).data();
        triplets.kept = scratch.take<std::uint32_t>(format.values).data();
        triplets.squares = scratch.take<double>(format.values * kMostChunks).data();
        triplets.not_finite = scratch.take<int>(format.matrices).data();
        triplets.solver_status = scratch.take<int>(format.matrices).data();
        triplets.counts = scratch.take<std::uint32_t>(format.matrices).data();
        widened = scratch.take<double>(codec.most_widened_).data();
        eigen = scratch.take_bytes(libraries.eigen_bytes);
        blas = scratch.take_bytes(libraries.blas_bytes);
      }
    }
    Triplets triplets{};
    double* widened = nullptr;  ///< a part of one matrix in float64
    View<std::byte, Space::cuda> eigen, blas;
  };

  /// Eigenvalues and eigenvectors of the Gram matrix of the shorter side of a tensor.
  void decompose(Queue<Space::cuda> queue, const AtomoTensor& tensor, const float* matrix,
                 const Workspace& work) const {
    const Libraries& libraries = libraries_.get();
    const std::size_t order = tensor.order();
    const std::size_t length = tensor.longer_side();
    double* gram = work.triplets.vectors + tensor.vectors_first;
    for (std::size_t first = 0; first < length; first += widened_positions(tensor)) {
      const std::size_t width = std::min(widened_positions(tensor), length - first);
      launch(queue, "atomo widen", widen_kernel, blocks_for(order * width, 4 * kThreads), tensor, matrix, first, width,
             work.widened);
      libraries.blas->multiply(queue, work.blas, order, order, width, 1.0, {work.widened, width, true},
                               {work.widened, width}, first == 0 ? 0.0 : 1.0, gram, order);
    }
    launch(queue, "atomo guard", guard_kernel, 1, gram, order, work.triplets.not_finite + tensor.matrix);
    libraries.eigen->solve(queue, order, gram, work.triplets.eigenvalues + tensor.values_first,
                           work.triplets.solver_status + tensor.matrix, work.eigen);
  }

  [[nodiscard]] Table table() const {
    return {tensors_.get(), tensors_.size(), tiles_.get(), tiles_.size(), format_.header_bytes()};
  }

  double budget_;  ///< the paper's s
  AtomoFormat format_;
  DeviceTable<AtomoTensor> tensors_;
  DeviceTable<Tile> tiles_;
  PerDevice<Libraries> libraries_;
  std::size_t most_widened_ = 0;  ///< numbers of a part of a matrix in float64
};

}  // namespace

extern constinit const GpuFactories atomo_gpu{.codec = make_method_codec<Space::cuda, CudaAtomo>};

}  // namespace gradtool
