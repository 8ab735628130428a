#pragma once

#include <memory>
#include <vector>

#include "kernels/blas.hpp"
#include "lib/codecs/low_rank_steps.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {

/// HostLowRankSteps on a GPU: the products of matrices that are not skinny by cuBLAS, everything for all matrices of
/// a bucket at once. The residual is brought up to date when the next gradient is added to it: until
/// then P and `lost` of the last step, which the caller keeps, say what is still to be subtracted. So a step of
/// PowerSGD reads or writes each element of a matrix six times (24 bytes): gradient and residual in, M out; M for P; M
/// for Q; the result.
class CudaLowRankSteps {
 public:
  using State = LowRankState<Space::cuda>;
  using Floats = View<float, Space::cuda>;
  using ConstFloats = View<const float, Space::cuda>;

  CudaLowRankSteps(const LowRankPlan& plan, Queue<Space::cuda> queue);

  struct Workspace {
    Workspace(const CudaLowRankSteps& steps, Scratch<Space::cuda>& scratch)
        : orthonormalise{steps.plan_.squares, scratch},
          blas{scratch.take_bytes(steps.blas_ == nullptr ? 0 : steps.blas_->work_bytes(steps.plan_.matrices.size()))},
          sums{scratch.take<float>(steps.skinny_.sums())} {}
    cuda::OrthonormaliseWorkspace orthonormalise;
    View<std::byte, Space::cuda> blas;
    View<float, Space::cuda> sums;
  };

  void first_product(const Workspace& work, Queue<Space::cuda> queue, const State& state, Floats gradient,
                     const format::DrawKey& key, bool redraw_all);
  void second_product(const Workspace& work, Queue<Space::cuda> queue, const State& state, Floats gradient);
  void scatter(Queue<Space::cuda> queue, ConstFloats message, float share, Floats out) const;
  /// Not by cuBLAS, which may add in another order on another rank's GPU: all ranks must get the same bits.
  void rebuild(Queue<Space::cuda> queue, const State& state, Floats gradient, ConstFloats lost);
  void project(const Workspace& work, Queue<Space::cuda> queue, ConstFloats m, ConstFloats q, Floats p);
  void product(Queue<Space::cuda> queue, ConstFloats p, ConstFloats q, Floats out) const;
  void settle(Queue<Space::cuda> queue, const State& state);
  void forget() { lost_ = nullptr; }

 protected:
  [[nodiscard]] const cuda::LowRankTable& matrices() const { return matrices_; }
  /// Columns of the widest factor.
  [[nodiscard]] std::size_t most_rank() const { return most_rank_; }

 private:
  /// The plan in device memory.
  struct Tables {
    Tables(const LowRankPlan& plan, Scratch<Space::cuda> scratch)
        : matrices{scratch.take<LowRankMatrix>(plan.matrices.size())},
          uncompressed{scratch.take<LowRankPlan::Uncompressed>(plan.uncompressed.size())} {}
    View<LowRankMatrix, Space::cuda> matrices;
    View<LowRankPlan::Uncompressed, Space::cuda> uncompressed;
  };

  const LowRankPlan& plan_;
  Arena<Space::cuda> tables_;
  std::shared_ptr<cuda::Blas> blas_;     ///< null where all matrices are skinny
  std::vector<cuda::Product> products_;  ///< the others', of a step
  cuda::SkinnyProducts skinny_;
  cuda::LowRankTable matrices_;
  const LowRankPlan::Uncompressed* uncompressed_ = nullptr;  ///< in device memory
  std::size_t most_rank_ = 0;
  std::size_t longest_ = 0;      ///< elements of the longest stretch of tensors that are sent as they are
  const float* lost_ = nullptr;  ///< the residual still contains P lostᵀ of the last step; null where it does not
};

}  // namespace gradtool
