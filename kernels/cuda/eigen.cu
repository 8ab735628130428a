#include "kernels/cuda/eigen.hpp"

#include <string>

#include "kernels/cuda/device_eigen.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {

struct SymmetricEigen::State {
  Stream stream;
  std::shared_ptr<DeviceEigen> solver = DeviceEigen::of_this_thread();
  DeviceBuffer memory;  ///< grown as needed: matrix, values, info, work
};

SymmetricEigen::SymmetricEigen() : state_{std::make_unique<State>()} {}
SymmetricEigen::~SymmetricEigen() = default;

void SymmetricEigen::solve(std::span<double> matrix, std::span<double> values, bool vectors) {
  const std::size_t n = values.size();
  expects(n >= 1 && matrix.size() == n * n, "eigenvalues need a square matrix");
  const auto padded = Arena<Space::cuda>::padded_size;
  const std::size_t work = state_->solver->work_bytes(n, vectors);
  const std::size_t front = padded(8 * n * n) + padded(8 * n) + padded(sizeof(int));
  if (state_->memory.size() < front + work) state_->memory = DeviceBuffer{front + work};
  const auto room = state_->memory.bytes();
  const View<double, Space::cuda> a{reinterpret_cast<double*>(room.data()), n * n};
  const View<double, Space::cuda> w{reinterpret_cast<double*>(room.data() + padded(8 * n * n)), n};
  const View<int, Space::cuda> info{reinterpret_cast<int*>(room.data() + padded(8 * n * n) + padded(8 * n)), 1};
  const auto queue = state_->stream.queue();
  copy_elements(queue, a, HostView<const double>{matrix.data(), matrix.size()});
  state_->solver->solve(queue, n, a.data(), w.data(), info.data(), room.part(front, work), vectors);
  int failed = 0;
  copy_elements(queue, HostView<double>{matrix.data(), matrix.size()}, View<const double, Space::cuda>{a});
  copy_elements(queue, HostView<double>{values.data(), n}, View<const double, Space::cuda>{w});
  copy_elements(queue, HostView<int>{&failed, 1}, View<const int, Space::cuda>{info});
  synchronize(queue);
  if (failed != 0) {
    throw Error{Fault::backend, "cuSOLVER: syevd failed on a matrix of " + std::to_string(n) + " rows (info " +
                                    std::to_string(failed) + ")"};
  }
}

}  // namespace gradtool::cuda
