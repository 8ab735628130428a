#include "kernels/blas.hpp"

#include <cublas_v2.h>
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/late.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {
namespace {

#define GT_BLAS(function) GT_LATE("libcublas.so." GT_TEXT(CUBLAS_VER_MAJOR), function)

void check_cublas(cublasStatus_t status, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error{Fault::backend, std::string{"cuBLAS: "} + call + " failed: " + GT_BLAS(cublasGetStatusString)(status),
              file, line};
}
#define GT_CUBLAS(call) check_cublas(call, #call)

int as_int(std::size_t value) {
  expect_valid(value <= 0x7fffffff, "a matrix is too large for cuBLAS");
  return static_cast<int>(value);
}

cublasOperation_t operation(bool transposed) {
  return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/// The sizes that NVIDIA recommends: 32 MiB from Hopper on, 4 MiB before. OpenBLAS needs none, and tests look at every
/// byte.
std::size_t recommended_work() {
  if (emulated()) return std::size_t{4} << 10;
  return std::size_t{device_info(current_device()).major >= 9 ? 32U : 4U} << 20;
}

#if CUBLAS_VERSION >= 120500
#define GT_GROUPED_PRODUCTS 1

/// Matrices of some products, as parameters of a launch: cuBLAS reads their addresses from the GPU's memory, and a
/// copy from the processor's would have to outlive the call.
struct Addresses {
  struct Matrices {
    const float *a, *b;
    float* c;
  };
  static constexpr std::size_t kMost = 128;
  Matrices of[kMost];
};

/// The arrays of addresses of `count` products, behind each other from `memory` on.
struct AddressTable {
  AddressTable(std::byte* memory, std::size_t count)
      : a{reinterpret_cast<const float**>(memory)}, b{a + count}, c{reinterpret_cast<float**>(memory) + 2 * count} {}
  const float **a, **b;
  float** c;
};

/// A thread for each product.
__global__ void store_addresses_kernel(const __grid_constant__ Addresses addresses, std::size_t first,
                                       std::size_t count, AddressTable table) {
  if (threadIdx.x >= count) return;
  table.a[first + threadIdx.x] = addresses.of[threadIdx.x].a;
  table.b[first + threadIdx.x] = addresses.of[threadIdx.x].b;
  table.c[first + threadIdx.x] = addresses.of[threadIdx.x].c;
}

/// Whether the library that was loaded has the call: it may be an older one of the same name.
bool has_groups() {
  try {
    static_cast<void>(GT_BLAS(cublasSgemmGroupedBatched));
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Parameters of many products as cuBLAS takes them: an array for each.
struct Shapes {
  void resize(std::size_t count) {
    for (auto* operations : {&a_operations, &b_operations}) operations->resize(count);
    for (auto* sizes : {&m, &n, &k, &a_strides, &b_strides, &c_strides, &ones}) sizes->resize(count, 1);
    alphas.resize(count);
    betas.resize(count, 0.0F);
  }
  void set(std::size_t i, const Product& product, float alpha) {
    a_operations[i] = operation(product.a.transposed);
    b_operations[i] = operation(product.b.transposed);
    m[i] = as_int(product.m);
    n[i] = as_int(product.n);
    k[i] = as_int(product.k);
    a_strides[i] = as_int(product.a.stride);
    b_strides[i] = as_int(product.b.stride);
    c_strides[i] = as_int(product.c_stride);
    alphas[i] = alpha;
  }
  std::vector<cublasOperation_t> a_operations, b_operations;
  std::vector<int> m, n, k, a_strides, b_strides, c_strides, ones;
  std::vector<float> alphas, betas;
};
#endif

}  // namespace

/// Choosing the stream takes the workspace away again, so both and the call are one step under the lock.
struct Blas::Handle {
  Handle() : work{recommended_work()} {
    GT_CUBLAS(GT_BLAS(cublasCreate)(&cublas));
    GT_BLAS(cublasSetMathMode)(cublas, CUBLAS_DEFAULT_MATH);  // no TF32, which must be asked for
    GT_BLAS(cublasSetPointerMode)(cublas, CUBLAS_POINTER_MODE_HOST);
  }
  ~Handle() { GT_BLAS(cublasDestroy)(cublas); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  template <class Call>
  void run(Queue<Space::cuda> queue, View<std::byte, Space::cuda> room, const Call& call) {
    expects(room.size() >= work, "too little workspace for a product");
    const std::lock_guard lock{mutex};
    GT_CUBLAS(GT_BLAS(cublasSetStream)(cublas, queue.stream));
    GT_CUBLAS(GT_BLAS(cublasSetWorkspace)(cublas, room.data(), work));
    call(cublas);
  }
#if defined(GT_GROUPED_PRODUCTS)
  void run_groups(Queue<Space::cuda> queue, View<std::byte, Space::cuda> room, float alpha,
                  std::span<const Product> products) {
    const std::size_t count = products.size();
    expects(room.size() >= work + sizeof(Addresses::Matrices) * count, "too little workspace for products");
    const AddressTable table{room.data() + work, count};
    for (std::size_t first = 0; first < count; first += Addresses::kMost) {
      const auto some = products.subspan(first, std::min(Addresses::kMost, count - first));
      Addresses addresses{};
      for (std::size_t i = 0; i < some.size(); ++i) addresses.of[i] = {some[i].a.data, some[i].b.data, some[i].c};
      launch(queue, "addresses of products", store_addresses_kernel, Grid{1, Addresses::kMost}, addresses, first,
             some.size(), table);
    }
    run(queue, room, [&](cublasHandle_t handle) {
      expects(count <= shapes.ones.size(), "more products than were asked for");
      for (std::size_t i = 0; i < count; ++i) shapes.set(i, products[i], alpha);
      GT_CUBLAS(GT_BLAS(cublasSgemmGroupedBatched)(
          handle, shapes.a_operations.data(), shapes.b_operations.data(), shapes.m.data(), shapes.n.data(),
          shapes.k.data(), shapes.alphas.data(), table.a, shapes.a_strides.data(), table.b, shapes.b_strides.data(),
          shapes.betas.data(), table.c, shapes.c_strides.data(), as_int(count), shapes.ones.data()));
    });
  }
  Shapes shapes;
  bool groups = has_groups();
#endif
  std::mutex mutex;
  cublasHandle_t cublas = nullptr;
  std::size_t work;
};

Blas::Blas(std::unique_ptr<Handle> handle) : handle_{std::move(handle)} {}
Blas::~Blas() = default;

std::shared_ptr<Blas> Blas::of_this_thread() {
  thread_local std::map<int, std::weak_ptr<Blas>> by_device;
  std::weak_ptr<Blas>& kept = by_device[current_device()];
  std::shared_ptr<Blas> blas = kept.lock();
  if (blas == nullptr) {
    blas.reset(new Blas{std::make_unique<Handle>()});
    kept = blas;
  }
  return blas;
}

std::size_t Blas::work_bytes() const {
  return handle_->work;
}

std::size_t Blas::work_bytes([[maybe_unused]] std::size_t most) {
#if defined(GT_GROUPED_PRODUCTS)
  const std::lock_guard lock{handle_->mutex};
  handle_->shapes.resize(std::max(most, handle_->shapes.ones.size()));
  return handle_->work + sizeof(Addresses::Matrices) * most;
#else
  return handle_->work;
#endif
}

void Blas::multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                    std::size_t k, float alpha, const Factor<float>& a, const Factor<float>& b, float beta, float* c,
                    std::size_t c_stride) {
  handle_->run(queue, work, [&](cublasHandle_t cublas) {
    GT_CUBLAS(GT_BLAS(cublasSgemm)(cublas, operation(a.transposed), operation(b.transposed), as_int(m), as_int(n),
                                   as_int(k), &alpha, a.data, as_int(a.stride), b.data, as_int(b.stride), &beta, c,
                                   as_int(c_stride)));
  });
}

void Blas::multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, std::size_t m, std::size_t n,
                    std::size_t k, double alpha, const Factor<double>& a, const Factor<double>& b, double beta,
                    double* c, std::size_t c_stride) {
  handle_->run(queue, work, [&](cublasHandle_t cublas) {
    GT_CUBLAS(GT_BLAS(cublasDgemm)(cublas, operation(a.transposed), operation(b.transposed), as_int(m), as_int(n),
                                   as_int(k), &alpha, a.data, as_int(a.stride), b.data, as_int(b.stride), &beta, c,
                                   as_int(c_stride)));
  });
}

void Blas::multiply(Queue<Space::cuda> queue, View<std::byte, Space::cuda> work, float alpha,
                    std::span<const Product> products) {
  if (products.empty()) return;
#if defined(GT_GROUPED_PRODUCTS)
  if (handle_->groups) return handle_->run_groups(queue, work, alpha, products);
#endif
  for (const Product& product : products) {
    multiply(queue, work, product.m, product.n, product.k, alpha, product.a, product.b, 0.0F, product.c,
             product.c_stride);
  }
}

}  // namespace gradtool::cuda
