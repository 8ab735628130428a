#include "lib/reduce/cuda/gradiveq_fit.hpp"

#include <algorithm>

#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/slice_fit.hpp"
#include "kernels/host/slice_basis.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/ops.hpp"

namespace gradtool::gradiveq {
namespace {

constexpr std::size_t kFitBytes = std::size_t{16} << 20;  ///< of centred samples in float64 at a time

template <class T>
View<const std::byte, Space::cuda> bytes_of(const T* data, std::size_t count) {
  return as_bytes(View<const T, Space::cuda>{data, count});
}

}  // namespace

struct CudaBasisFit::Room {
  Bytes work;
  double *gram, *weights, *values, *centred, *product, *energies, *report;
  int *odd, *info;
  Bytes eigen;
};

CudaBasisFit::CudaBasisFit(std::span<const Layer> layers, const Params& params)
    : samples_{static_cast<std::size_t>(params.integer("lt"))},
      lambda_{params.real("lambda")},
      min_ratio_{params.real("min_ratio")},
      blas_{cuda::Blas::of_this_thread()},
      eigen_{cuda::DeviceEigen::of_this_thread()},
      values_(samples_ + 2, 0.0) {
  for (const Layer& layer : layers) longest_ = std::max(longest_, layer.coordinates());
  width_ = std::min(longest_, std::max<std::size_t>(256, kFitBytes / (8 * samples_)));
}

std::size_t CudaBasisFit::most_blocks() const {
  return longest_ / width_ * cuda::centre_blocks(width_) + cuda::centre_blocks(width_);
}

std::size_t CudaBasisFit::scratch_bytes() const {
  if (longest_ == 0) return 0;
  return padded(blas_->work_bytes()) + 2 * padded(8 * samples_ * samples_) + padded(8 * samples_) +
         2 * padded(8 * samples_ * width_) + padded(8 * most_blocks()) + 3 * padded(16) +
         padded(eigen_->work_bytes(samples_));
}

CudaBasisFit::Room CudaBasisFit::room(Bytes scratch) const {
  Carver<Space::cuda> carve{scratch};
  Room room{};
  room.work = carve.take(blas_->work_bytes());
  room.gram = take<double>(carve, samples_ * samples_).data();
  room.weights = take<double>(carve, samples_ * samples_).data();
  room.values = take<double>(carve, samples_).data();
  room.centred = take<double>(carve, samples_ * width_).data();
  room.product = take<double>(carve, samples_ * width_).data();
  room.energies = take<double>(carve, most_blocks()).data();
  room.report = take<double>(carve, 2).data();
  room.odd = take<int>(carve, 1).data();
  room.info = take<int>(carve, 1).data();
  room.eigen = carve.take(eigen_->work_bytes(samples_));
  return room;
}

bool CudaBasisFit::fill_gram(Queue queue, const Samples& samples, const Room& room) {
  const std::size_t n = samples_;
  const std::size_t k = samples.k;
  std::size_t blocks = 0;
  for (std::size_t first = 0; first < k; first += width_) {
    const std::size_t width = std::min(width_, k - first);
    cuda::centre(queue, samples.rows, n, samples.stride, first, width, room.centred, room.energies + blocks);
    blas_->multiply(queue, room.work, n, n, width, 1.0, {room.centred, width, true}, {room.centred, width},
                    first == 0 ? 0.0 : 1.0, room.gram, n);
    blocks += cuda::centre_blocks(width);
  }
  cuda::report_variance(queue, room.gram, n, room.energies, blocks, room.report);
  double report[2] = {};
  int odd = 0;
  read_back(queue, bytes_of(room.report, 2), report);
  read_back(queue, bytes_of(room.odd, 1), &odd);
  return odd == 0 && host::has_variance(report[0], report[1]);
}

std::size_t CudaBasisFit::count_components(Queue queue, std::size_t k, const Room& room) {
  int info = 0;
  eigen_->solve(queue, samples_, room.gram, room.values, room.info, room.eigen);
  read_back(queue, bytes_of(room.info, 1), &info);
  read_back(queue, bytes_of(room.values, samples_), values_.data());
  const std::size_t d = info == 0 ? host::components_for({values_.data(), samples_}, k, lambda_) : 0;
  return static_cast<double>(k) < min_ratio_ * static_cast<double>(d) ? 0 : d;
}

std::size_t CudaBasisFit::fit(Queue queue, View<float, Space::cuda> means, const Samples& samples, float* basis,
                              Bytes scratch) {
  const std::size_t n = samples_;
  const std::size_t k = samples.k;
  const Room room = this->room(scratch);
  cuda::fill(queue, {reinterpret_cast<std::byte*>(room.odd), sizeof(int)}, 0);
  cuda::divide(queue, means, static_cast<float>(n), room.odd);
  if (!fill_gram(queue, samples, room)) return 0;
  const std::size_t d = count_components(queue, k, room);
  if (d == 0) return 0;
  cuda::scale_vectors(queue, room.gram, room.values, n, d, room.weights);
  for (std::size_t first = 0; first < k; first += width_) {
    const std::size_t width = std::min(width_, k - first);
    cuda::centre(queue, samples.rows, n, samples.stride, first, width, room.centred, room.energies);
    blas_->multiply(queue, room.work, width, d, n, 1.0, {room.centred, width}, {room.weights, n}, 0.0, room.product,
                    width);
    cuda::narrow_rows(queue, room.product, d, width, basis + first, k);
  }
  return d;
}

}  // namespace gradtool::gradiveq
