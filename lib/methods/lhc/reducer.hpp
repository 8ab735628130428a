#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/marks.hpp"
#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The sizes that follow from the parameters and the number of ranks.
struct LhcPlan {
  std::size_t n = 0;          ///< elements of the bucket
  std::size_t kept = 0;       ///< elements that a rank keeps
  std::size_t lanes = 1;      ///< neighbours that are hashed together: a block; an element is a lane of its block
  std::size_t most_rows = 0;  ///< of a table, where it is smaller than the gradient
  std::size_t ranks = 1;
  std::uint64_t seed = 0;
};

/// Lossless homomorphic compression (Li et al., arXiv 2402.07529): a bitmap that ranks combine with OR, and a table
/// that they sum. `Steps` is what a rank does by itself, on a CPU (lhc.cpp) or on a GPU (lhc.cu):
///
///   Steps(queue, plan), scratch_bytes()
///   keep(queue, u, residual, positions, values, marks, scratch)
///     positions (ascending) and values := the elements of u with the largest magnitudes, marks := their bitmap. They
///     become 0 in `residual`, which may be u itself, or empty.
///   merge(queue, other, marks)           marks |= other
///   fullest_lane(queue, marks, scratch)  the largest number of marked elements of a lane; waits for it
///   set_rows(rows), cells()              the size of tables from now on; rows are a multiple of three
///   write(queue, positions, values, table, scratch)  table := the kept values, each in its three cells
///   write_whole(queue, positions, values, out)       out := the kept values in their places, 0 elsewhere
///   read(queue, marks, table, factor, out, scratch)
///     out[i] := factor times the sum of element i, for the marked ones; other elements stay as they are. Overwrites
///     table and marks. Returns how many elements did not peel and were estimated.
///   copy(queue, in, out)                 out := in
template <Space S, class Steps>
class LhcReducer final : public CountingReducer<S> {
 public:
  explicit LhcReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        plan_{plan(setup.spec.params)},
        adaptive_{setup.spec.params.is("ratio", "auto")},
        sizes_(ranks_),
        offsets_(ranks_),
        state_{this->padded(4 * n_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)},
        steps_{setup.queue, plan_} {
    if (!adaptive_) {
      const std::size_t blocks = (n_ + plan_.lanes - 1) / plan_.lanes;
      set_rows(static_cast<std::size_t>(std::ceil(static_cast<double>(blocks) / setup.spec.params.real("ratio"))));
    }
    LhcReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = true};
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    some_estimated_ = false;
    some_summed_whole_ = false;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", residual_);
    visitor.value("some estimated", some_estimated_);
    visitor.value("some summed whole", some_summed_whole_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    std::string text;
    if (some_estimated_) {
      text =
          "the table was too small to decode every element exactly: the others are estimates from cells that they "
          "share";
    }
    if (some_summed_whole_)
      text += std::string{text.empty() ? "" : ", "} + "values were summed whole where no table is smaller";
    return text;
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto write = [&] {
      if (whole_)
        steps_.write_whole(queue, work.positions, work.values, work.cells);
      else
        steps_.write(queue, work.positions, work.values, work.cells, work.steps);
    };

    in_phase(clock, Phase::encode, queue, [&] {
      View<const float, S> u = gradient;
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      steps_.keep(queue, u, residual_, work.positions, work.values, work.marks, work.steps);
      if (!adaptive_) write();
    });
    const bool with_marks = adaptive_ || !whole_;
    if (with_marks) {
      in_phase(clock, Phase::communicate, queue, [&] { or_over_ranks(comm, queue, work.marks, work.arrived); });
    }
    if (adaptive_) {
      in_phase(clock, Phase::encode, queue, [&] {
        set_rows(rows_for(steps_.fullest_lane(queue, work.marks, work.steps)));
        write();
      });
    }
    const auto sent = work.cells.first(whole_ ? n_ : steps_.cells());
    this->sum(comm, queue, clock, sent, work.segment);
    in_phase(clock, Phase::decode, queue, [&] {
      const float share = 1.0F / static_cast<float>(comm.size());
      if (whole_) {
        steps_.copy(queue, sent, gradient);
        scale(queue, gradient, share);
        some_summed_whole_ = some_summed_whole_ || n_ > 0;
        return;
      }
      fill_zero(queue, gradient);
      const bool estimated = steps_.read(queue, work.marks, sent, share, gradient, work.steps) > 0;
      some_estimated_ = some_estimated_ || estimated;
    });
    this->payload_bytes_ = (with_marks ? work.marks.bytes() : 0) + sent.bytes();
    this->values_sent_ = sent.size();
  }

 private:
  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;

  struct Workspace {
    Workspace(const LhcReducer& reducer, Scratch<S> scratch)
        : cells{scratch.template take<float>(reducer.n_)},
          positions{scratch.template take<std::uint32_t>(reducer.plan_.kept)},
          values{scratch.template take<float>(reducer.plan_.kept)},
          marks{scratch.template take<std::uint32_t>(mark_words(reducer.n_))},
          arrived{scratch.template take<std::uint32_t>(mark_words(reducer.n_))},
          steps{scratch.take_bytes(reducer.steps_.scratch_bytes())},
          segment{scratch.take_bytes(4 * reducer.n_)} {}
    View<float, S> cells;  ///< of the table, or the kept values in their places
    View<std::uint32_t, S> positions;
    View<float, S> values;
    View<std::uint32_t, S> marks, arrived;
    View<std::byte, S> steps;    ///< scratch of Steps
    View<std::byte, S> segment;  ///< scratch of the all-reduce, which needs no more than what it sums
  };

  [[nodiscard]] LhcPlan plan(const Params& params) const {
    LhcPlan plan{.n = n_, .ranks = ranks_};
    plan.kept = share_of(params.real("density"), n_);
    plan.lanes = lanes(params, plan.kept);
    plan.most_rows = n_ / plan.lanes;
    plan.seed = static_cast<std::uint64_t>(params.integer("seed"));
    return plan;
  }

  /// Two elements of a lane whose three cells are all the same never peel. A lane of m elements has such a pair with a
  /// probability of about 1 / m, for tables near the threshold of peeling. For all lanes together this is about
  /// lanes^2 / kept, so the number of lanes is limited to keep it small.
  [[nodiscard]] static std::size_t lanes(const Params& params, std::size_t kept) {
    constexpr std::size_t kMostLanes = 1024;
    std::size_t fitting = 1;
    while (fitting < kMostLanes && 4 * fitting * fitting <= kept / 600) fitting *= 2;
    if (params.is("block", "auto")) return fitting;
    const auto lanes = static_cast<std::size_t>(params.integer("block"));
    expect_valid(std::has_single_bit(lanes), "codec lhc: block must be a power of two");
    return lanes;
  }

  /// Rounds up to a multiple of three, and decides whether such a table is worth while.
  void set_rows(std::size_t wanted) {
    const std::size_t rows = std::max<std::size_t>((wanted + 2) / 3, 1) * 3;
    whole_ = rows > plan_.most_rows || rows * plan_.lanes >= n_;
    if (!whole_) steps_.set_rows(rows);
  }

  /// Rows with which the fullest lane peels with a high probability. Large tables need 1.23 cells for each element, and
  /// small ones relatively more.
  [[nodiscard]] static std::size_t rows_for(std::size_t fullest) {
    const auto most = static_cast<double>(fullest);
    return static_cast<std::size_t>(std::ceil(1.3 * most + 12.0 * std::sqrt(most) + 20.0));
  }

  /// Combines the bitmaps of all ranks with OR: a ring reduce-scatter with OR in place of the sum, then an all-gather.
  void or_over_ranks(Communicator<S>& comm, Queue<S> queue, View<std::uint32_t, S> marks,
                     View<std::uint32_t, S> arrived) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto part = [&](std::size_t index) {
      const Segment segment = ring_segment(marks.size(), static_cast<int>(index % ranks_), static_cast<int>(ranks_));
      return marks.part(segment.first, segment.count);
    };
    for (std::size_t hop = 0; hop + 1 < ranks_; ++hop) {
      const auto own = part(me + 2 * ranks_ - hop - 1);
      const auto received = arrived.first(own.size());
      comm.exchange(queue, static_cast<int>((me + 1) % ranks_), as_bytes(part(me + ranks_ - hop)),
                    static_cast<int>((me + ranks_ - 1) % ranks_), as_writable_bytes(received));
      steps_.merge(queue, received, own);
    }
    for (std::size_t r = 0; r < ranks_; ++r) {  // rank r has the finished part r + 1
      const auto finished = part(r + 1);
      sizes_[r] = finished.bytes();
      offsets_[r] = static_cast<std::uint64_t>(4 * (finished.data() - marks.data()));
    }
    comm.all_gather_v(queue, as_bytes(part(me + 1)), sizes_, offsets_, as_writable_bytes(marks));
  }

  LhcPlan plan_;
  bool adaptive_;
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<S> state_;
  View<float, S> residual_;
  Steps steps_;
  bool whole_ = false;  ///< values travel in an array as long as the gradient, because no table is smaller
  bool some_estimated_ = false;
  bool some_summed_whole_ = false;
};

}  // namespace gradtool
