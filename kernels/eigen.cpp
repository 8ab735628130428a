#include "kernels/eigen.hpp"

#include <algorithm>
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
void dsytrd_(const char* uplo, const int* n, double* a, const int* lda, double* d, double* e, double* tau, double* work,
             const int* lwork, int* info);
void dsterf_(const int* n, double* d, double* e, int* info);
void dstemr_(const char* jobz, const char* range, const int* n, double* d, double* e, const double* vl,
             const double* vu, const int* il, const int* iu, int* m, double* w, double* z, const int* ldz,
             const int* nzc, int* isuppz, int* tryrac, double* work, const int* lwork, int* iwork, const int* liwork,
             int* info);
void dormtr_(const char* side, const char* uplo, const char* trans, const int* m, const int* n, const double* a,
             const int* lda, const double* tau, double* c, const int* ldc, double* work, const int* lwork, int* info);
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

struct ChosenEigenvectors::Workspace {
  Workspace(const ChosenEigenvectors& eigen, Scratch<Space::host> scratch)
      : diagonal{scratch.take<double>(eigen.order_)},
        beside{scratch.take<double>(eigen.order_)},
        reflectors{scratch.take<double>(eigen.order_)},
        lost{scratch.take<double>(3 * eigen.order_)},
        work{scratch.take<double>(static_cast<std::size_t>(eigen.work_))},
        integers{scratch.take<int>(10 * eigen.order_)} {}
  HostView<double> diagonal, beside;  ///< the tridiagonal matrix
  HostView<double> reflectors;        ///< scale factors of the vectors that turn the matrix into it
  HostView<double> lost;              ///< copies of the tridiagonal matrix, which LAPACK overwrites, and eigenvalues
  HostView<double> work;
  HostView<int> integers;
};

ChosenEigenvectors::ChosenEigenvectors(std::size_t order) : order_{order} {
  expect_valid(order <= 0x7fffffff / 18, "a matrix is too large for LAPACK");
  const int n = static_cast<int>(order), one = 1;
  double unused = 0.0;
  int info = 0;
  work_ = 18 * n;  // DSTEMR's
  const auto at_least = [&](double wanted) { work_ = std::max(work_, static_cast<int>(wanted)); };
  double wanted = 0.0;
  dsytrd_("L", &n, &unused, &n, &unused, &unused, &unused, &wanted, &kQuery, &info);
  at_least(wanted);
  dormtr_("L", "L", "N", &n, &one, &unused, &n, &unused, &unused, &n, &wanted, &kQuery, &info);
  at_least(wanted);
  dsyev_("V", "L", &n, &unused, &n, &unused, &wanted, &kQuery, &info);
  at_least(wanted);
}

std::size_t ChosenEigenvectors::scratch_bytes() const {
  return planned<Workspace>(*this);
}

bool ChosenEigenvectors::find_values(double* matrix, double* values, HostView<std::byte> scratch) const {
  const BlasCall call;
  const Workspace work{*this, Scratch<Space::host>{scratch}};
  const int n = static_cast<int>(order_);
  int info = 0;
  dsytrd_("L", &n, matrix, &n, work.diagonal.data(), work.beside.data(), work.reflectors.data(), work.work.data(),
          &work_, &info);
  if (info != 0) return false;
  std::copy_n(work.diagonal.data(), order_, values);
  std::copy_n(work.beside.data(), order_, work.lost.data());
  dsterf_(&n, values, work.lost.data(), &info);
  return info == 0;
}

bool ChosenEigenvectors::find_vector(const double* matrix, std::size_t index, double* vector,
                                     HostView<std::byte> scratch) const {
  const BlasCall call;
  const Workspace work{*this, Scratch<Space::host>{scratch}};
  const int n = static_cast<int>(order_), one = 1, number = static_cast<int>(index) + 1, integers = 10 * n;
  double* diagonal = work.lost.data();
  double* beside = diagonal + order_;
  double* value = beside + order_;
  std::copy_n(work.diagonal.data(), order_, diagonal);
  std::copy_n(work.beside.data(), order_, beside);
  const double unused = 0.0;
  int found = 0, support[2], accurate = 1, info = 0;
  dstemr_("V", "I", &n, diagonal, beside, &unused, &unused, &number, &number, &found, value, vector, &n, &one, support,
          &accurate, work.work.data(), &work_, work.integers.data(), &integers, &info);
  if (info != 0 || found != 1) return false;
  dormtr_("L", "L", "N", &n, &one, matrix, &n, work.reflectors.data(), vector, &n, work.work.data(), &work_, &info);
  return info == 0;
}

bool ChosenEigenvectors::find_vectors(double* matrix, double* values, HostView<std::byte> scratch) const {
  const BlasCall call;
  const Workspace work{*this, Scratch<Space::host>{scratch}};
  const int n = static_cast<int>(order_);
  int info = 0;
  dsyev_("V", "L", &n, matrix, &n, values, work.work.data(), &work_, &info);
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
