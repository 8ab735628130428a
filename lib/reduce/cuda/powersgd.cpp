// PowerSGD on a GPU: products by cuBLAS, all else for all matrices at once by kernels/cuda/low_rank.hpp.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/low_rank.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/powersgd_reducer.hpp"

namespace gradtool {
namespace {

class CudaSteps {
 public:
  using State = PowerSgdState<Space::cuda>;

  CudaSteps(const PowerSgdPlan& plan, Queue<Space::cuda> queue)
      : plan_{plan}, work_{cut(plan)}, arena_{table_bytes()}, blas_{cuda::Blas::of_this_thread()} {
    tables_ = {.matrices = upload(queue, work_.matrices),
               .rows = upload(queue, work_.rows),
               .tiles = upload(queue, work_.tiles),
               .columns = upload(queue, work_.columns),
               .pieces = upload(queue, work_.pieces)};
    cuda::synchronize(queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const {
    return padded(8 * work_.sums) + padded(8 * work_.pairs) + 3 * padded(8 * work_.squares) +
           padded(blas_->work_bytes());
  }
  void begin(Carver<Space::cuda>& carve) {
    sums_ = {.sums = take<double>(carve, work_.sums),
             .pairs = take<double>(carve, work_.pairs),
             .first = take<double>(carve, work_.squares),
             .second = take<double>(carve, work_.squares),
             .product = take<double>(carve, work_.squares)};
    blas_work_ = carve.take(blas_->work_bytes());
  }

  void revive(Queue<Space::cuda> queue, const State& kept, const law::DrawKey& key, bool all) const {
    cuda::revive_columns(queue, tables_, key, all, kept.q.data());
  }
  void first_product(Queue<Space::cuda> queue, const State& kept, View<float, Space::cuda> gradient,
                     View<float, Space::cuda> message) const {
    cuda::gather_pieces(queue, tables_, gradient.data(), message.data());
    if (!kept.residual.empty()) add_matrices(queue, gradient, kept.residual);
    const float* m = kept.held(gradient);
    for (const auto& matrix : plan_.matrices) {  // row-major M is Mᵀ to cuBLAS
      blas_->multiply(queue, blas_work_, matrix.rows, matrix.rank, matrix.columns, 1.0F,
                      {m + matrix.first, matrix.columns, true}, {kept.q.data() + matrix.q_at, matrix.columns}, 0.0F,
                      message.data() + matrix.p_at, matrix.rows);
    }
  }
  void second_product(Queue<Space::cuda> queue, const State& kept, View<float, Space::cuda> gradient,
                      View<float, Space::cuda> message) const {
    cuda::orthonormalise(queue, tables_, sums_, message.data());
    const float* m = kept.held(gradient);
    for (const auto& matrix : plan_.matrices) {
      blas_->multiply(queue, blas_work_, matrix.columns, matrix.rank, matrix.rows, 1.0F,
                      {m + matrix.first, matrix.columns}, {message.data() + matrix.p_at, matrix.rows}, 0.0F,
                      kept.q.data() + matrix.q_at, matrix.columns);
    }
  }
  /// Not by cuBLAS: every rank's result has the same bits because a sum of few terms has one order.
  void rebuild(Queue<Space::cuda> queue, const State& kept, View<float, Space::cuda> gradient,
               View<float, Space::cuda> message, float share) const {
    scale(queue, kept.q, share);
    cuda::scatter_pieces(queue, tables_, message.data(), share, gradient.data());
    cuda::rebuild_low_rank(queue, tables_, message.data(), kept.q.data(), gradient.data(),
                           kept.residual.empty() ? nullptr : kept.residual.data());
  }

 private:
  static constexpr std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }

  static cuda::LowRankWork cut(const PowerSgdPlan& plan) {
    cuda::LowRankWork work;
    for (const auto& m : plan.matrices) work.add_matrix(m.first, m.rows, m.columns, m.rank, m.p_at, m.q_at);
    for (const auto& raw : plan.raw) work.add_piece(raw.first, raw.at, raw.count);
    return work;
  }
  template <class T>
  static std::size_t room(const std::vector<T>& table) {
    return padded(table.size() * sizeof(T));
  }
  [[nodiscard]] std::size_t table_bytes() const {
    return room(work_.matrices) + room(work_.rows) + room(work_.tiles) + room(work_.columns) + room(work_.pieces);
  }
  template <class T>
  View<const T, Space::cuda> upload(Queue<Space::cuda> queue, const std::vector<T>& table) {
    const auto on_device = arena_.take<T>(table.size());
    cuda::copy_elements(queue, on_device, HostView<const T>{table.data(), table.size()});
    return on_device;
  }

  /// residual += gradient, matrix by matrix where the tensors between them are sent as they are.
  void add_matrices(Queue<Space::cuda> queue, View<float, Space::cuda> gradient,
                    View<float, Space::cuda> residual) const {
    for (std::size_t m = 0; m < plan_.matrices.size();) {
      const std::size_t first = plan_.matrices[m].first;
      std::size_t last = first;
      for (; m < plan_.matrices.size() && plan_.matrices[m].first == last; ++m)
        last += plan_.matrices[m].rows * plan_.matrices[m].columns;
      add(queue, gradient.part(first, last - first), residual.part(first, last - first));
    }
  }

  const PowerSgdPlan& plan_;
  cuda::LowRankWork work_;
  Arena<Space::cuda> arena_;
  cuda::LowRankTables tables_;
  std::shared_ptr<cuda::Blas> blas_;
  cuda::LowRankSums sums_;
  View<std::byte, Space::cuda> blas_work_;
};

}  // namespace

std::unique_ptr<Reducer<Space::cuda>> make_cuda_powersgd(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<PowerSgdReducer<Space::cuda, CudaSteps>>(setup);
}

}  // namespace gradtool
