// PowerSGD on a GPU: for all matrices at once by kernels/cuda/low_rank.hpp, but products with many columns by cuBLAS.
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
      : plan_{plan},
        work_{cut(plan)},
        arena_{table_bytes()},
        blas_{work_.matrices.empty() || work_.is_direct() ? nullptr : cuda::Blas::of_this_thread()} {
    tables_ = {.matrices = upload(queue, work_.matrices),
               .rows = upload(queue, work_.rows),
               .tiles = upload(queue, work_.tiles),
               .columns = upload(queue, work_.columns),
               .pieces = upload(queue, work_.pieces),
               .row_products = upload(queue, work_.row_products),
               .column_products = upload(queue, work_.column_products),
               .p_sums = upload(queue, work_.p_sums),
               .q_sums = upload(queue, work_.q_sums)};
    if (work_.is_direct()) {
      last_p_ = arena_.take<float>(plan.p_size);
      last_q_ = arena_.take<float>(plan.q_size);
    }
    forget(queue);
    cuda::synchronize(queue);
  }

  void forget(Queue<Space::cuda> queue) const {
    fill_zero(queue, last_p_);
    fill_zero(queue, last_q_);
  }
  /// Writes down what is held back. The next step then finds zeros to take off, which changes no bit.
  void settle(Queue<Space::cuda> queue, const State& kept) const {
    if (kept.residual.empty() || !work_.is_direct()) return;
    cuda::rebuild_low_rank(queue, tables_, last_p_.data(), last_q_.data(), nullptr, kept.residual.data());
    forget(queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const {
    return padded(8 * work_.sums) + padded(8 * work_.pairs) + 3 * padded(8 * work_.squares) + padded(4 * parts()) +
           padded(blas_bytes());
  }
  void begin(Carver<Space::cuda>& carve) {
    sums_ = {.sums = take<double>(carve, work_.sums),
             .pairs = take<double>(carve, work_.pairs),
             .first = take<double>(carve, work_.squares),
             .second = take<double>(carve, work_.squares),
             .product = take<double>(carve, work_.squares)};
    parts_ = take<float>(carve, parts());
    blas_work_ = carve.take(blas_bytes());
  }

  void revive(Queue<Space::cuda> queue, const State& kept, const law::DrawKey& key, bool all) const {
    cuda::revive_columns(queue, tables_, key, all, kept.q.data());
  }
  void first_product(Queue<Space::cuda> queue, const State& kept, View<float, Space::cuda> gradient,
                     View<float, Space::cuda> message) const {
    cuda::gather_pieces(queue, tables_, gradient.data(), message.data());
    if (work_.is_direct()) {
      const cuda::LowRankHeld held = kept.residual.empty()
                                         ? cuda::LowRankHeld{}
                                         : cuda::LowRankHeld{kept.residual.data(), last_p_.data(), last_q_.data()};
      cuda::project_rows(queue, tables_, gradient.data(), held, kept.q.data(), parts_.data(), message.data());
      return;
    }
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
    if (work_.is_direct())
      return cuda::project_columns(queue, tables_, m, message.data(), parts_.data(), kept.q.data());
    for (const auto& matrix : plan_.matrices) {
      blas_->multiply(queue, blas_work_, matrix.columns, matrix.rank, matrix.rows, 1.0F,
                      {m + matrix.first, matrix.columns}, {message.data() + matrix.p_at, matrix.rows}, 0.0F,
                      kept.q.data() + matrix.q_at, matrix.columns);
    }
  }
  /// Not by cuBLAS: every rank's result has the same bits because a sum of few terms has one order. With direct
  /// products the factors are kept, and what is held back follows from them in the next step.
  void rebuild(Queue<Space::cuda> queue, const State& kept, View<float, Space::cuda> gradient,
               View<float, Space::cuda> message, float share) const {
    const bool late = !kept.residual.empty() && work_.is_direct();
    if (late)
      cuda::keep_factors(queue, message, share, kept.q, last_p_, last_q_);
    else
      scale(queue, kept.q, share);
    cuda::scatter_pieces(queue, tables_, message.data(), share, gradient.data());
    cuda::rebuild_low_rank(queue, tables_, message.data(), kept.q.data(), gradient.data(),
                           kept.residual.empty() || late ? nullptr : kept.residual.data());
  }

 private:
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
    const std::size_t factors = work_.is_direct() ? padded(4 * plan_.p_size) + padded(4 * plan_.q_size) : 0;
    return room(work_.matrices) + room(work_.rows) + room(work_.tiles) + room(work_.columns) + room(work_.pieces) +
           room(work_.row_products) + room(work_.column_products) + room(work_.p_sums) + room(work_.q_sums) + factors;
  }
  [[nodiscard]] std::size_t blas_bytes() const { return blas_ == nullptr ? 0 : blas_->work_bytes(); }
  [[nodiscard]] std::size_t parts() const { return work_.is_direct() ? std::max(work_.p_parts, work_.q_parts) : 0; }
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
  std::shared_ptr<cuda::Blas> blas_;          ///< null where products are direct
  View<float, Space::cuda> last_p_, last_q_;  ///< factors of the last step, where products are direct
  cuda::LowRankSums sums_;
  View<float, Space::cuda> parts_;
  View<std::byte, Space::cuda> blas_work_;
};

}  // namespace

std::unique_ptr<Reducer<Space::cuda>> make_cuda_powersgd(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<PowerSgdReducer<Space::cuda, CudaSteps>>(setup);
}

}  // namespace gradtool
