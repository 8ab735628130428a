#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/view.hpp"

/// Matrix products by cuBLAS. Column-major, as cuBLAS has it: a row-major matrix is its transpose.
namespace gradtool::cuda {

/// A factor of a product: op(data), op the transpose where `transposed`. `stride` from column to column of data.
template <class T>
struct Factor {
  const T* data;
  std::size_t stride;
  bool transposed = false;
};

/// cuBLAS on one GPU, on any stream; calls are thread-safe. FP32 products are FP32 throughout: TF32 keeps 10 bits of
/// a factor, an error of 10^-3 where the methods here hold errors back, or fit to them, at 10^-7.
///
/// Which order a sum is added in is cuBLAS's own choice, by shape and GPU: the same from run to run on one machine,
/// not that of the CPU. Calls enqueue and allocate nothing: what cuBLAS works in is the caller's, `work_bytes` of it,
/// 256-byte aligned, a different one for every stream.
class Blas {
 public:
  /// The calling thread's, for its current GPU: made by the first reducer that asks, kept as long as one holds it.
  /// Makes a context of cuBLAS, so not in the timed region. Fault::backend when cuBLAS does not start.
  [[nodiscard]] static std::shared_ptr<Blas> of_this_thread();

  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  [[nodiscard]] std::size_t work_bytes() const;

  /// c := alpha op(a) op(b) + beta c, for c of m x n, `c_stride` from column to column, and k inner elements. c is not
  /// read where beta is 0.
  void multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                std::size_t k, float alpha, const Factor<float>& a, const Factor<float>& b, float beta, float* c,
                std::size_t c_stride);
  void multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                std::size_t k, double alpha, const Factor<double>& a, const Factor<double>& b, double beta, double* c,
                std::size_t c_stride);

 private:
  struct Handle;
  explicit Blas(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace gradtool::cuda
