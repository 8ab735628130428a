#include "kernels/cuda/eigen.hpp"

#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <string>

#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {
namespace {

void check_cusolver(cusolverStatus_t status, const char* call) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  throw Error{Fault::backend,
              std::string{"cuSOLVER: "} + call + " failed (code " + std::to_string(static_cast<int>(status)) + ")"};
}
#define GT_CUSOLVER(call) check_cusolver(call, #call)

}  // namespace

struct SymmetricEigen::State {
  State() {
    GT_CUSOLVER(cusolverDnCreate(&handle));
    GT_CUSOLVER(cusolverDnSetStream(handle, stream.queue().stream));
  }
  ~State() { cusolverDnDestroy(handle); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Stream stream;
  cusolverDnHandle_t handle = nullptr;
  DeviceBuffer memory;  ///< grown as needed: matrix, values, info, work
};

SymmetricEigen::SymmetricEigen() : state_{std::make_unique<State>()} {}
SymmetricEigen::~SymmetricEigen() = default;

void SymmetricEigen::solve(std::span<double> matrix, std::span<double> values, bool vectors) {
  const std::size_t n = values.size();
  expects(n >= 1 && matrix.size() == n * n, "eigenvalues need a square matrix");
  const int order = static_cast<int>(n);
  const cusolverEigMode_t mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  int work = 0;
  double* none = nullptr;
  GT_CUSOLVER(
      cusolverDnDsyevd_bufferSize(state_->handle, mode, CUBLAS_FILL_MODE_LOWER, order, none, order, none, &work));
  const std::size_t numbers = n * n + n + static_cast<std::size_t>(work) + 1;
  if (state_->memory.size() < numbers * sizeof(double)) state_->memory = DeviceBuffer{numbers * sizeof(double)};
  const auto room = state_->memory.as<double>();
  double *a = room.data(), *w = a + n * n, *info = w + n, *area = info + 1;
  const auto queue = state_->stream.queue();
  copy_elements(queue, room.first(n * n), HostView<const double>{matrix.data(), matrix.size()});
  GT_CUSOLVER(cusolverDnDsyevd(state_->handle, mode, CUBLAS_FILL_MODE_LOWER, order, a, order, w, area, work,
                               reinterpret_cast<int*>(info)));
  int failed = 0;
  copy_elements(queue, HostView<double>{matrix.data(), matrix.size()}, View<const double, Space::cuda>{a, n * n});
  copy_elements(queue, HostView<double>{values.data(), n}, View<const double, Space::cuda>{w, n});
  copy_elements(queue, HostView<int>{&failed, 1}, View<const int, Space::cuda>{reinterpret_cast<int*>(info), 1});
  synchronize(queue);
  if (failed != 0) {
    throw Error{Fault::backend, "cuSOLVER: syevd failed on a matrix of " + std::to_string(n) + " rows (info " +
                                    std::to_string(failed) + ")"};
  }
}

}  // namespace gradtool::cuda
