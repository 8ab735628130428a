#include "kernels/cuda/slice_fit.hpp"

#include <cuda_runtime.h>

#include <limits>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

__device__ std::size_t this_thread() {
  return std::size_t{blockIdx.x} * kThreads + threadIdx.x;
}
__device__ std::size_t all_threads() {
  return std::size_t{gridDim.x} * kThreads;
}

__global__ void divide_kernel(float* values, std::size_t count, float divisor, int* odd) {
  bool finite = true;
  for (std::size_t i = this_thread(); i < count; i += all_threads()) {
    const float value = values[i] / divisor;
    values[i] = value;
    finite = finite && value < kInfinity && value > -kInfinity;
  }
  if (!finite) atomicOr(odd, 1);
}

/// A thread has a column, as on the host.
__global__ void centre_kernel(const float* rows, std::size_t samples, std::size_t stride, std::size_t width,
                              double* out, double* energies) {
  const std::size_t i = this_thread();
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
  energy = block_sum(energy);
  if (threadIdx.x == 0) energies[blockIdx.x] = energy;
}

/// One block.
__global__ void report_kernel(const double* matrix, std::size_t order, const double* energies, std::size_t count,
                              double* report) {
  double trace = 0.0;
  double energy = 0.0;
  for (std::size_t t = threadIdx.x; t < order; t += kThreads) trace += matrix[t * order + t];
  for (std::size_t t = threadIdx.x; t < count; t += kThreads) energy += energies[t];
  trace = block_sum(trace);
  energy = block_sum(energy);
  if (threadIdx.x != 0) return;
  report[0] = trace;
  report[1] = energy;
}

/// A block has a component. The first of equally large entries decides the sign, as on the host.
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

__global__ void narrow_kernel(const double* in, std::size_t rows, std::size_t width, float* out, std::size_t stride) {
  for (std::size_t k = this_thread(); k < rows * width; k += all_threads()) {
    const std::size_t row = k / width;
    out[row * stride + (k - row * width)] = static_cast<float>(in[k]);
  }
}

__global__ void digest_kernel(const float* values, std::size_t count, std::uint64_t from, unsigned long long* sum) {
  std::uint64_t mine = 0;
  for (std::size_t i = this_thread(); i < count; i += all_threads()) {
    std::uint64_t word = (from + i) * 0x9E3779B97F4A7C15ull ^ __float_as_uint(values[i]);
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    mine += word ^ (word >> 31);
  }
  if (mine != 0) atomicAdd(sum, static_cast<unsigned long long>(mine));
}

}  // namespace

void divide(Queue<Space::cuda> queue, View<float, Space::cuda> values, float divisor, int* odd) {
  if (values.empty()) return;
  launch(queue, "divide", divide_kernel, blocks_for(values.size(), 4 * kThreads), values.data(), values.size(), divisor,
         odd);
}

std::size_t centre_blocks(std::size_t width) {
  return (width + kThreads - 1) / kThreads;
}
void centre(Queue<Space::cuda> queue, const float* rows, std::size_t samples, std::size_t stride, std::size_t first,
            std::size_t width, double* out, double* energies) {
  launch(queue, "centre", centre_kernel, static_cast<unsigned>(centre_blocks(width)), rows + first, samples, stride,
         width, out, energies);
}

void report_variance(Queue<Space::cuda> queue, const double* matrix, std::size_t order, const double* energies,
                     std::size_t count, double* report) {
  launch(queue, "report variance", report_kernel, 1, matrix, order, energies, count, report);
}

void scale_vectors(Queue<Space::cuda> queue, const double* vectors, const double* values, std::size_t order,
                   std::size_t d, double* weights) {
  if (d == 0) return;
  launch(queue, "scale vectors", scale_kernel, static_cast<unsigned>(d), vectors, values, order, weights);
}

void narrow_rows(Queue<Space::cuda> queue, const double* in, std::size_t rows, std::size_t width, float* out,
                 std::size_t stride) {
  if (rows * width == 0) return;
  launch(queue, "narrow rows", narrow_kernel, blocks_for(rows * width, 4 * kThreads), in, rows, width, out, stride);
}

void add_digest(Queue<Space::cuda> queue, View<const float, Space::cuda> values, std::uint64_t from,
                std::uint64_t* sum) {
  if (values.empty()) return;
  launch(queue, "digest", digest_kernel, blocks_for(values.size(), 16 * kThreads, 1024), values.data(), values.size(),
         from, reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace gradtool::cuda
