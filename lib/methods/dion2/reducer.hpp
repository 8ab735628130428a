#pragma once

#include <algorithm>
#include <vector>

#include "kernels/draws.hpp"
#include "kernels/rows.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// key[i] := what row i of those that have keys is chosen by: its norm, or a draw that all ranks make alike.
void row_keys(Queue<Space::host> queue, View<const float, Space::host> norms, View<std::uint32_t, Space::host> keys);
void row_keys(Queue<Space::cuda> queue, View<const float, Space::cuda> norms, View<std::uint32_t, Space::cuda> keys);
void row_keys(Queue<Space::host> queue, const format::DrawKey& key, View<std::uint32_t, Space::host> keys);
void row_keys(Queue<Space::cuda> queue, const format::DrawKey& key, View<std::uint32_t, Space::cuda> keys);

namespace format {

/// 31 bits of the draw of row i: those with the largest are rows drawn without putting back.
GT_HD inline std::uint32_t drawn_row_key(const DrawKey& key, std::size_t i) {
  return draw4(key, i / 4).bits[i % 4] >> 1;
}

}  // namespace format

/// The row selection of Dion2 (Ahn, Amsel and Langford, arXiv 2512.16928) with data-parallel gradients that are never
/// summed as they are: every rank adds its gradient to a momentum of its own, all choose the same rows of each matrix,
/// the mean of these rows is the result, and they decay while the others wait. Tensors without rows are matrices of one
/// row, which is always chosen and of which nothing stays, so that they come out as their mean gradient.
template <Space S>
class Dion2Reducer final : public CountingReducer<S> {
 public:
  explicit Dion2Reducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        by_norm_{setup.spec.params.is("select", "l1")},
        rows_{rows_of(setup), setup.queue},
        arena_{this->padded(4 * this->n_) + this->padded(4 * rows_.plan().chosen)},
        momentum_{arena_.template take<float>(this->n_)},
        chosen_{arena_.template take<std::uint32_t>(rows_.plan().chosen)} {
    Dion2Reducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    in_phase(clock, Phase::encode, queue, [&] {
      fade(queue);
      add(queue, gradient, momentum_);
      if (by_norm_) {
        rows_.magnitudes(work.rows, queue, momentum_, work.norms);
      } else {
        row_keys(queue, format::shared_by_ranks(context.key), work.rows.keys);
      }
    });
    if (by_norm_) this->sum(comm, queue, clock, work.norms, work.segment);
    in_phase(clock, Phase::encode, queue, [&] {
      if (by_norm_) row_keys(queue, work.norms, work.rows.keys);
      rows_.choose(work.rows, queue, chosen_);
      rows_.gather(queue, chosen_, momentum_, work.message);
    });
    fades_ = true;
    this->sum(comm, queue, clock, work.message, work.segment);
    in_phase(clock, Phase::decode, queue,
             [&] { rows_.place(queue, chosen_, work.message, 1.0F / static_cast<float>(this->ranks_), gradient); });
    this->values_sent_ = work.norms.size() + rows_.plan().message;
    this->payload_bytes_ = 4 * this->values_sent_;
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, momentum_);
    fades_ = false;
  }
  void visit_state(StateVisitor& visitor) override {
    if constexpr (S == Space::host) fade({});
    visitor.values("momentum", momentum_);
  }
  /// The momentum, which the rows that were sent have not left yet.
  [[nodiscard]] View<const float, S> target(Queue<S> /*queue*/) override { return momentum_; }
  [[nodiscard]] bool reached() const override { return in_matrices() > 0; }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {{"elements in matrices whose rows are chosen", static_cast<double>(in_matrices()),
             static_cast<double>(this->n_)}};
  }

 private:
  struct Workspace {
    Workspace(const Dion2Reducer& reducer, Scratch<S> scratch)
        : norms{scratch.template take<float>(reducer.by_norm_ ? reducer.rows_.plan().keys : 0)},
          message{scratch.template take<float>(reducer.rows_.plan().message)},
          segment{scratch.take_bytes(4 * std::max(norms.size(), message.size()))},
          rows{reducer.rows_, scratch} {}
    View<float, S> norms;        ///< of rows that have keys: the first message
    View<float, S> message;      ///< the chosen rows: the second message
    View<std::byte, S> segment;  ///< of the all-reduces, of which the longer sum needs more
    typename RowSelection<S>::Workspace rows;
  };

  static RowPlan rows_of(const ReducerSetup<S>& setup) {
    const double ratio = setup.spec.params.real("ratio");
    const auto mu = static_cast<float>(setup.spec.params.real("mu"));
    RowPlan plan;
    std::size_t first = 0, elements = 0;  // of neighbouring tensors without rows
    const auto add_others = [&] {
      if (elements > 0) plan.add(first, 1, elements, 1);
      elements = 0;
    };
    for (const TensorShape& tensor : setup.layout.tensors) {
      if (tensor.is_matrix()) {
        add_others();
        plan.add(tensor.first, tensor.rows(), tensor.columns(), share_of_rows(ratio, tensor.rows()), mu);
        continue;
      }
      if (elements == 0) first = tensor.first;
      elements += tensor.elements;
    }
    add_others();
    return plan;
  }

  [[nodiscard]] std::size_t in_matrices() const {
    std::size_t elements = 0;
    for (const RowMatrix& matrix : rows_.plan().matrices)
      elements += matrix.rows > 1 ? matrix.rows * matrix.columns : 0;
    return elements;
  }

  /// Lets the rows decay that the last step sent: late, so that until then the momentum is what they were taken from.
  void fade(Queue<S> queue) {
    if (fades_) rows_.fade(queue, chosen_, momentum_);
    fades_ = false;
  }

  bool by_norm_;
  RowSelection<S> rows_;
  Arena<S> arena_;
  View<float, S> momentum_;
  View<std::uint32_t, S> chosen_;  ///< in the last step
  bool fades_ = false;             ///< the rows that it sent have not decayed yet
};

}  // namespace gradtool
