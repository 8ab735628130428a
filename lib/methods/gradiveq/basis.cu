#include "lib/methods/gradiveq/basis.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/vector.hpp"
#include "lib/methods/gradiveq/gpu.hpp"

namespace gradtool::gradiveq {
namespace {

using cuda::kThreads;

constexpr std::size_t kFitBytes = std::size_t{16} << 20;  ///< of centred samples in float64 at a time

/// values /= divisor; *not_finite becomes 1 where a result is not finite.
__global__ void divide_kernel(float* values, std::size_t count, float divisor, int* not_finite) {
  bool finite = true;
  for (std::size_t i = cuda::thread_in_grid(); i < count; i += cuda::threads_in_grid()) {
    const float value = values[i] / divisor;
    values[i] = value;
    finite =
        finite && value < std::numeric_limits<float>::infinity() && value > -std::numeric_limits<float>::infinity();
  }
  if (!finite) atomicOr(not_finite, 1);
}

/// out := `width` columns of the samples minus their means, in float64. Each thread takes one column, which it adds up
/// in the order of the CPU. energies[block] := the sum of squares before.
__global__ void centre_kernel(const float* rows, std::size_t samples, std::size_t stride, std::size_t width,
                              double* out, double* energies) {
  const std::size_t i = cuda::thread_in_grid();
  double energy = 0.0;
  if (i < width) {
    double mean = 0.0;
    for (std::size_t t = 0; t < samples; ++t) mean += static_cast<double>(rows[t * stride + i]);
    mean /= static_cast<double>(samples);
    for (std::size_t t = 0; t < samples; ++t) {
      const double x = static_cast<double>(rows[t * stride + i]);
      energy += x * x;
      out[t * width + i] = x - mean;
    }
  }
  energy = cuda::block_sum(energy);
  if (threadIdx.x == 0) energies[blockIdx.x] = energy;
}

/// One block: sums[0] := the trace of the matrix, sums[1] := the sum of the energies.
__global__ void variance_kernel(const double* matrix, std::size_t order, const double* energies, std::size_t count,
                                double* sums) {
  double trace = 0.0;
  double energy = 0.0;
  for (std::size_t t = threadIdx.x; t < order; t += kThreads) trace += matrix[t * order + t];
  for (std::size_t t = threadIdx.x; t < count; t += kThreads) energy += energies[t];
  trace = cuda::block_sum(trace);
  energy = cuda::block_sum(energy);
  if (threadIdx.x != 0) return;
  sums[0] = trace;
  sums[1] = energy;
}

/// Each block scales the eigenvector of one component, the last one in `vectors` first, by the root of its eigenvalue,
/// and makes its entry of largest magnitude positive. Of equal ones the first decides, as on the CPU.
__global__ void scale_kernel(const double* vectors, const double* values, std::size_t order, double* weights) {
  __shared__ double largest[kThreads];
  __shared__ unsigned places[kThreads];
  const std::size_t from = order - 1 - blockIdx.x;
  const double* v = vectors + from * order;
  unsigned top = 0;
  double most = -1.0;
  for (std::size_t t = threadIdx.x; t < order; t += kThreads) {
    const double size = v[t] < 0.0 ? -v[t] : v[t];
    if (size > most) {
      most = size;
      top = static_cast<unsigned>(t);
    }
  }
  largest[threadIdx.x] = most;
  places[threadIdx.x] = top;
  __syncthreads();
  for (unsigned k = 0; k < kThreads; ++k) {
    if (largest[k] > most || (largest[k] == most && places[k] < top)) {
      most = largest[k];
      top = places[k];
    }
  }
  const double root = sqrt(values[from]);
  const double factor = (v[top] < 0.0 ? -1.0 : 1.0) / root;
  for (std::size_t t = threadIdx.x; t < order; t += kThreads) weights[blockIdx.x * order + t] = v[t] * factor;
}

/// Rounds rows of `width` to float32, `stride` floats apart.
__global__ void round_kernel(const double* in, std::size_t rows, std::size_t width, float* out, std::size_t stride) {
  for (std::size_t k = cuda::thread_in_grid(); k < rows * width; k += cuda::threads_in_grid()) {
    const std::size_t row = k / width;
    out[row * stride + (k - row * width)] = static_cast<float>(in[k]);
  }
}

/// Blocks of centre_kernel for `width` columns.
std::size_t centre_blocks(std::size_t width) {
  return (width + kThreads - 1) / kThreads;
}

}  // namespace

CudaBasisFit::CudaBasisFit(std::span<const Layer> layers, const Params& params)
    : samples_{static_cast<std::size_t>(params.integer("lt"))},
      lambda_{params.real("lambda")},
      min_ratio_{params.real("min_ratio")},
      blas_{cuda::Blas::of_this_thread()},
      eigen_{cuda::DeviceEigen::of_this_thread()},
      values_(samples_, 0.0) {
  for (const Layer& layer : layers) longest_ = std::max(longest_, layer.coordinates());
  width_ = std::min(longest_, std::max<std::size_t>(256, kFitBytes / (8 * samples_)));
}

std::size_t CudaBasisFit::most_blocks() const {
  return longest_ / width_ * centre_blocks(width_) + centre_blocks(width_);
}

CudaBasisFit::Workspace::Workspace(const CudaBasisFit& fit, Scratch<Space::cuda> scratch)
    : blas{scratch.take_bytes(fit.blas_->work_bytes())},
      gram{scratch.take<double>(fit.samples_ * fit.samples_)},
      weights{scratch.take<double>(fit.samples_ * fit.samples_)},
      values{scratch.take<double>(fit.samples_)},
      centred{scratch.take<double>(fit.samples_ * fit.width_)},
      product{scratch.take<double>(fit.samples_ * fit.width_)},
      energies{scratch.take<double>(fit.most_blocks())},
      sums{scratch.take<double>(2)},
      flags{scratch.take<int>(2)},
      eigen{scratch.take_bytes(fit.eigen_->work_bytes(fit.samples_))} {}

bool CudaBasisFit::fill_gram(Queue queue, const Samples& samples, const Workspace& workspace) {
  const std::size_t n = samples_;
  const std::size_t k = samples.coordinates;
  double* centred = workspace.centred.data();
  double* energies = workspace.energies.data();
  std::size_t blocks = 0;
  for (std::size_t first = 0; first < k; first += width_) {
    const std::size_t width = std::min(width_, k - first);
    cuda::launch(queue, "centre", centre_kernel, static_cast<unsigned>(centre_blocks(width)), samples.rows + first, n,
                 samples.stride, width, centred, energies + blocks);
    blas_->multiply(queue, workspace.blas, n, n, width, 1.0, {centred, width, true}, {centred, width},
                    first == 0 ? 0.0 : 1.0, workspace.gram.data(), n);
    blocks += centre_blocks(width);
  }
  cuda::launch(queue, "variance", variance_kernel, 1, workspace.gram.data(), n, energies, blocks,
               workspace.sums.data());
  double sums[2] = {};
  int not_finite = 0;
  read_back(queue, as_bytes(workspace.sums), sums);
  read_back(queue, as_bytes(workspace.flags.first(1)), &not_finite);
  return not_finite == 0 && has_variance(sums[0], sums[1]);
}

std::size_t CudaBasisFit::count_components(Queue queue, std::size_t coordinates, const Workspace& workspace) {
  const auto result = workspace.flags.part(1, 1);
  int failed = 0;
  eigen_->solve(queue, samples_, workspace.gram.data(), workspace.values.data(), result.data(), workspace.eigen);
  read_back(queue, as_bytes(result), &failed);
  read_back(queue, as_bytes(workspace.values), values_.data());
  const std::size_t d = failed == 0 ? components_for(values_, coordinates, lambda_) : 0;
  return static_cast<double>(coordinates) < min_ratio_ * static_cast<double>(d) ? 0 : d;
}

std::size_t CudaBasisFit::fit(Queue queue, View<float, Space::cuda> means, const Samples& samples, float* basis,
                              Bytes scratch) {
  const Workspace workspace{*this, Scratch<Space::cuda>{scratch}};
  const std::size_t n = samples_;
  const std::size_t k = samples.coordinates;
  double* centred = workspace.centred.data();
  double* weights = workspace.weights.data();
  double* product = workspace.product.data();
  cuda::fill(queue, as_writable_bytes(workspace.flags), 0);
  cuda::launch(queue, "divide", divide_kernel, cuda::blocks_for(means.size(), 4 * kThreads), means.data(), means.size(),
               static_cast<float>(n), workspace.flags.data());
  if (!fill_gram(queue, samples, workspace)) return 0;
  const std::size_t d = count_components(queue, k, workspace);
  if (d == 0) return 0;
  cuda::launch(queue, "scale vectors", scale_kernel, static_cast<unsigned>(d), workspace.gram.data(),
               workspace.values.data(), n, weights);
  for (std::size_t first = 0; first < k; first += width_) {
    const std::size_t width = std::min(width_, k - first);
    cuda::launch(queue, "centre", centre_kernel, static_cast<unsigned>(centre_blocks(width)), samples.rows + first, n,
                 samples.stride, width, centred, workspace.energies.data());
    blas_->multiply(queue, workspace.blas, width, d, n, 1.0, {centred, width}, {weights, n}, 0.0, product, width);
    cuda::launch(queue, "round rows", round_kernel, cuda::blocks_for(d * width, 4 * kThreads), product, d, width,
                 basis + first, k);
  }
  return d;
}

}  // namespace gradtool::gradiveq
