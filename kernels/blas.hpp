#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/core/view.hpp"

/// Matrix products: BLAS on the CPU, cuBLAS on the GPU.

/// On the CPU. Ranks are threads and methods cut their own work into pieces, so the library's own threads are
/// switched off. OpenBLAS may call malloc; the allocation watch counts operator new only.
namespace gradtool::host {

/// gram += rows rowsᵀ for `count` rows of `length`, one behind the other. Only the lower triangle of `gram`
/// (column-major, count x count) is kept. Float64, DSYRK.
void add_gram(const double* rows, std::size_t count, std::size_t length, double* gram);

/// out := weights rows, row-major: `outputs` x `count` times `count` x `length`. Float64, DGEMM.
void multiply(const double* weights, const double* rows, std::size_t outputs, std::size_t count, std::size_t length,
              double* out);

/// The multiplication in float32 (SGEMM), for benchmarks to compare with.
void multiply(const float* weights, const float* rows, std::size_t outputs, std::size_t count, std::size_t length,
              float* out);
/// out := weights rowsᵀ, row-major: `outputs` x `length` times `length` x `count`, of rows of `length`. SGEMM.
void multiply_transposed(const float* weights, const float* rows, std::size_t outputs, std::size_t length,
                         std::size_t count, float* out);

/// Stands before each call of the library that computes, in every function of this header and of eigen.hpp; none is
/// nested. The first one that wants one thread switches off OpenBLAS's own.
///
/// OpenBLAS takes 128 MiB of address space for each call at the same time, keeps them for later calls, and tries for
/// ever where there are none (`ulimit -v`). So where as many calls are under way as it has buffers, it is made to take
/// another, once no call is; where there is no room for one, or as many as processors, calls wait for each other.
/// Throws Fault::backend where there is none at all. Calls by other libraries, as LibTorch's, are not seen.
class BlasCall {
 public:
  enum class Threads : unsigned char { one, of_the_library };
  explicit BlasCall(Threads threads = Threads::one);
  ~BlasCall();
  BlasCall(const BlasCall&) = delete;
  BlasCall& operator=(const BlasCall&) = delete;
};

}  // namespace gradtool::host

/// On the GPU. Matrices are column-major, as cuBLAS has them: a row-major matrix is its transpose.
namespace gradtool::cuda {

/// A factor of a product: the matrix at `data`, or its transpose where `transposed`. `stride` elements lie from one
/// column of data to the next.
template <class T>
struct Factor {
  const T* data;
  std::size_t stride;
  bool transposed = false;
};

/// c := alpha a b as in Blas::multiply, one of many. None is empty.
struct Product {
  std::size_t m, n, k;
  Factor<float> a, b;
  float* c;
  std::size_t c_stride;
};

/// cuBLAS on one GPU, on any stream; calls are thread-safe. FP32 products are FP32 throughout. TF32 keeps 10 bits of a
/// factor, a relative error of 10^-3, and these methods measure errors of 10^-7.
///
/// cuBLAS chooses the order of additions by shape and GPU: it is the same from run to run on one machine, and not that
/// of the CPU. Calls enqueue and allocate nothing: the working memory is the caller's, `work_bytes` of it, 256-byte
/// aligned, a different one for every stream.
class Blas {
 public:
  /// The calling thread's object for its current GPU: made by the first reducer that asks, and kept as long as one
  /// holds it. Makes a context of cuBLAS, so it is not for the timed region. Throws Fault::backend when cuBLAS does not
  /// start.
  [[nodiscard]] static std::shared_ptr<Blas> of_this_thread();

  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  [[nodiscard]] std::size_t work_bytes() const;
  /// Needed for `most` products at a time; makes room for their parameters, too.
  [[nodiscard]] std::size_t work_bytes(std::size_t most);

  /// c := alpha a b + beta c. a is m x k, b is k x n and c is m x n, with `c_stride` elements from one column to the
  /// next. c is not read where beta is 0.
  void multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                std::size_t k, float alpha, const Factor<float>& a, const Factor<float>& b, float beta, float* c,
                std::size_t c_stride);
  void multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                std::size_t k, double alpha, const Factor<double>& a, const Factor<double>& b, double beta, double* c,
                std::size_t c_stride);
  /// Any number of products in one call of cuBLAS: most matrices of a model are so small that a launch for each takes
  /// longer than its work. None may write what another one reads. Before CUDA 12.5 there is a call for each.
  void multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, float alpha,
                std::span<const Product> products);

 private:
  struct Handle;
  explicit Blas(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace gradtool::cuda
