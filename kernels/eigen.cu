#include "kernels/eigen.hpp"

#include <cusolverDn.h>
#include <map>
#include <mutex>
#include <string>

#include "kernels/cuda/late.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {
namespace {

#define GT_SOLVER(function) GT_LATE("libcusolver.so." GT_TEXT(CUSOLVER_VER_MAJOR), function)

void check_cusolver(cusolverStatus_t status, const char* call, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  throw Error{Fault::backend,
              std::string{"cuSOLVER: "} + call + " failed (code " + std::to_string(static_cast<int>(status)) + ")",
              file, line};
}
#define GT_CUSOLVER(call) check_cusolver(call, #call)

int as_int(std::size_t value) {
  expect_valid(value <= 0x7fffffff, "a matrix is too large for cuSOLVER");
  return static_cast<int>(value);
}

cusolverEigMode_t mode(bool vectors) {
  return vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
}

}  // namespace

struct DeviceEigen::Handle {
  Handle() { GT_CUSOLVER(GT_SOLVER(cusolverDnCreate)(&solver)); }
  ~Handle() { GT_SOLVER(cusolverDnDestroy)(solver); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  [[nodiscard]] int work_doubles(int order, bool vectors) {
    int doubles = 0;
    GT_CUSOLVER(GT_SOLVER(cusolverDnDsyevd_bufferSize)(solver, mode(vectors), CUBLAS_FILL_MODE_LOWER, order, nullptr,
                                                       order, nullptr, &doubles));
    expect_valid(doubles >= 0, "cuSOLVER takes no matrix of this order: its work area has more than 2^31 numbers");
    return doubles;
  }

  std::mutex mutex;
  cusolverDnHandle_t solver = nullptr;
};

DeviceEigen::DeviceEigen(std::unique_ptr<Handle> handle) : handle_{std::move(handle)} {}
DeviceEigen::~DeviceEigen() = default;

std::shared_ptr<DeviceEigen> DeviceEigen::of_this_thread() {
  thread_local std::map<int, std::weak_ptr<DeviceEigen>> by_device;
  std::weak_ptr<DeviceEigen>& kept = by_device[current_device()];
  std::shared_ptr<DeviceEigen> eigen = kept.lock();
  if (eigen == nullptr) {
    eigen.reset(new DeviceEigen{std::make_unique<Handle>()});
    kept = eigen;
  }
  return eigen;
}

std::size_t DeviceEigen::work_bytes(std::size_t order, bool vectors) const {
  const std::lock_guard lock{handle_->mutex};
  return 8 * static_cast<std::size_t>(handle_->work_doubles(as_int(order), vectors));
}

void DeviceEigen::solve(Queue<Space::cuda> queue, std::size_t order, double* matrix, double* values, int* info,
                        View<std::byte, Space::cuda> work, bool vectors) {
  const int n = as_int(order);
  const std::lock_guard lock{handle_->mutex};
  GT_CUSOLVER(GT_SOLVER(cusolverDnSetStream)(handle_->solver, queue.stream));
  GT_CUSOLVER(GT_SOLVER(cusolverDnDsyevd)(handle_->solver, mode(vectors), CUBLAS_FILL_MODE_LOWER, n, matrix, n, values,
                                          reinterpret_cast<double*>(work.data()), as_int(work.size() / 8), info));
}

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
