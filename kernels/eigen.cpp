#include "kernels/eigen.hpp"

#include <vector>

#include "kernels/blas.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/throw_error.hpp"

// LAPACK's own calling convention: column-major, 32-bit integers, everything by address.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void dsyev_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
            const int* lwork, int* info);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info);
}
// NOLINTEND(readability-identifier-naming)

namespace gradtool::host {
namespace {

constexpr int kQuery = -1;  // as the size of a work area: only say how large it should be

struct Workspace {
  Workspace(int double_count, int integer_count, Scratch<Space::host> scratch)
      : work{scratch.take<double>(static_cast<std::size_t>(double_count))},
        integers{scratch.take<int>(static_cast<std::size_t>(integer_count))} {}
  HostView<double> work;
  HostView<int> integers;
};

}  // namespace

SymmetricEigen::SymmetricEigen(std::size_t order) : order_{order} {
  expect_valid(order <= 0x7fffffff, "a matrix is too large for LAPACK");
  const int n = static_cast<int>(order);
  double wanted = 0.0;
  int info = 0;
  double unused = 0.0;
  dsyevd_("V", "L", &n, &unused, &n, &unused, &wanted, &kQuery, &integers_, &kQuery, &info);
  expects(info == 0, "LAPACK dsyevd refuses its workspace query");
  work_ = static_cast<int>(wanted);
}

std::size_t SymmetricEigen::scratch_bytes() const {
  return planned<Workspace>(work_, integers_);
}

bool SymmetricEigen::solve(double* matrix, double* values, HostView<std::byte> scratch) const {
  const BlasCall call;
  const Workspace workspace{work_, integers_, Scratch<Space::host>{scratch}};
  const int n = static_cast<int>(order_);
  int info = 0;
  dsyevd_("V", "L", &n, matrix, &n, values, workspace.work.data(), &work_, workspace.integers.data(), &integers_,
          &info);
  return info == 0;
}

void lapack_eigenvalues(std::span<double> matrix, std::span<double> values, bool vectors) {
  const std::size_t n = values.size();
  expects(n >= 1 && matrix.size() == n * n, "eigenvalues need a square matrix");
  const BlasCall call{BlasCall::Threads::of_the_library};
  const int order = static_cast<int>(n);
  const char* jobz = vectors ? "V" : "N";
  int info = 0;
  double wanted = 0;
  dsyev_(jobz, "L", &order, matrix.data(), &order, values.data(), &wanted, &kQuery, &info);
  const int size = static_cast<int>(wanted);
  std::vector<double> work(static_cast<std::size_t>(size));
  dsyev_(jobz, "L", &order, matrix.data(), &order, values.data(), work.data(), &size, &info);
  if (info != 0) throw_error(Fault::backend, "LAPACK dsyev failed on a {} x {} matrix (info {})", n, n, info);
}

}  // namespace gradtool::host
