#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/marks.hpp"

namespace gradtool {

/// What lhc's tables are for: n elements, of which a rank keeps k, in so many lanes.
struct LhcPlan {
  std::size_t n = 0, kept = 0, lanes = 1, most_rows = 0, ranks = 1;
  std::uint64_t seed = 0;
};

/// What a rank does by itself, in either space.
template <Space S>
class LhcSide {
 public:
  virtual ~LhcSide() = default;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;

  /// positions (ascending) and values := the largest of u; marks := their bitmap. They become 0 in `residual`, which
  /// may be u itself, or empty.
  virtual void keep(Queue<S> queue, View<const float, S> u, View<float, S> residual, View<std::uint32_t, S> positions,
                    View<float, S> values, View<std::uint32_t, S> marks, View<std::byte, S> scratch) = 0;
  /// words |= other.
  virtual void merge(Queue<S> queue, View<const std::uint32_t, S> other, View<std::uint32_t, S> words) = 0;
  /// The most marked elements of a lane. Waits for it, as it decides how large a table is.
  [[nodiscard]] virtual std::size_t fullest_lane(Queue<S> queue, View<const std::uint32_t, S> marks,
                                                 View<std::byte, S> scratch) = 0;

  /// From now on tables have this many rows, a multiple of three.
  virtual void set_rows(std::size_t rows) = 0;
  [[nodiscard]] virtual std::size_t cells() const = 0;
  /// table := the kept values, each in its three cells, in ascending order.
  virtual void write(Queue<S> queue, View<const std::uint32_t, S> positions, View<const float, S> values,
                     View<float, S> table, View<std::byte, S> scratch) = 0;
  /// out := the kept values where they belong; it is 0 elsewhere.
  virtual void write_whole(Queue<S> queue, View<const std::uint32_t, S> positions, View<const float, S> values,
                           View<float, S> out) = 0;
  /// out[i] := factor times the sum of element i for the marked ones, `out` being 0. Uses up table and marks. Returns
  /// how many were estimated because they did not peel.
  virtual std::size_t read(Queue<S> queue, View<std::uint32_t, S> marks, View<float, S> table, float factor,
                           View<float, S> out, View<std::byte, S> scratch) = 0;
};
std::unique_ptr<LhcSide<Space::host>> make_lhc_side(Queue<Space::host> queue, const LhcPlan& plan);
std::unique_ptr<LhcSide<Space::cuda>> make_lhc_side(Queue<Space::cuda> queue, const LhcPlan& plan);

/// out := in.
void copy_floats(Queue<Space::host> queue, HostView<const float> in, HostView<float> out);
void copy_floats(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out);

/// Lossless homomorphic compression: a bitmap that is ORed and a table that is added.
template <Space S>
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
        side_{make_lhc_side(setup.queue, plan_)} {
    if (!adaptive_) {
      const std::size_t blocks = (n_ + plan_.lanes - 1) / plan_.lanes;
      set_rows(static_cast<std::size_t>(std::ceil(static_cast<double>(blocks) / setup.spec.params.real("ratio"))));
    }
    LhcReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern() const override { return {.shards = true, .ring = true}; }
  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    left_ = 0;
    whole_ = false;
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    std::string text;
    if (left_ > 0) text = "some elements did not peel and were estimated";
    if (whole_) text += std::string{text.empty() ? "" : ", "} + "values were summed whole where no table is smaller";
    return text;
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * this->padded(4 * n_) + 2 * this->padded(4 * plan_.kept) + 2 * this->padded(4 * mark_words(n_)) +
           this->padded(side_->scratch_bytes()) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto cells = take<float>(carve, n_);  // of the table, or the gradient itself
    const auto positions = take<std::uint32_t>(carve, plan_.kept);
    const auto values = take<float>(carve, plan_.kept);
    const auto marks = take<std::uint32_t>(carve, mark_words(n_));
    const auto arrived = take<std::uint32_t>(carve, mark_words(n_));
    const auto scratch = carve.take(side_->scratch_bytes());
    const auto segment = carve.take(comm.scratch_bytes(4 * n_));
    const auto write = [&] {
      if (dense_) return side_->write_whole(queue, positions, values, cells);
      side_->write(queue, positions, values, cells, scratch);
    };

    in_phase(clock, Phase::encode, queue, [&] {
      View<const float, S> u = gradient;
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      side_->keep(queue, u, residual_, positions, values, marks, scratch);
      if (!adaptive_) write();
    });
    const bool with_marks = adaptive_ || !dense_;
    if (with_marks) {
      in_phase(clock, Phase::communicate, queue, [&] { or_all(comm, queue, marks, arrived); });
    }
    if (adaptive_) {
      in_phase(clock, Phase::encode, queue, [&] {
        set_rows(rows_for(side_->fullest_lane(queue, marks, scratch)));
        write();
      });
    }
    const auto sent = cells.first(dense_ ? n_ : side_->cells());
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(sent), Dtype::f32, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      const float share = 1.0F / static_cast<float>(comm.size());
      if (dense_) {
        copy_floats(queue, sent, gradient);
        scale(queue, gradient, share);
        whole_ = whole_ || n_ > 0;
        return;
      }
      fill_zero(queue, gradient);
      left_ += side_->read(queue, marks, sent, share, gradient, scratch);
    });
    this->payload_bytes_ = (with_marks ? marks.bytes() : 0) + sent.bytes();
    this->values_sent_ = sent.size();
  }

 private:
  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;

  [[nodiscard]] LhcPlan plan(const Params& params) const {
    LhcPlan plan{.n = n_, .ranks = ranks_};
    const auto wanted = static_cast<std::size_t>(std::llround(params.real("density") * static_cast<double>(n_)));
    plan.kept = std::clamp<std::size_t>(wanted, std::min<std::size_t>(n_, 1), n_);
    plan.lanes = lanes(params, plan.kept);
    plan.most_rows = n_ / plan.lanes;  // of the largest table that is smaller than the gradient
    plan.seed = static_cast<std::uint64_t>(params.integer("seed"));
    return plan;
  }

  /// Two elements of a lane whose three rows are all the same never peel. That happens in a lane of m elements with a
  /// probability of about 1/m for tables near the threshold, in all lanes with lanes^2 / k: so few lanes keep it small.
  [[nodiscard]] static std::size_t lanes(const Params& params, std::size_t kept) {
    constexpr std::size_t kMostLanes = 1024;
    std::size_t fitting = 1;
    while (fitting < kMostLanes && 4 * fitting * fitting <= kept / 600) fitting *= 2;
    if (params.is("block", "auto")) return fitting;
    const auto lanes = static_cast<std::size_t>(params.integer("block"));
    expects(std::has_single_bit(lanes), "codec lhc: block must be a power of two");
    return lanes;
  }

  void set_rows(std::size_t wanted) {
    const std::size_t rows = std::max<std::size_t>((wanted + 2) / 3, 1) * 3;
    dense_ = rows > plan_.most_rows || rows * plan_.lanes >= n_;
    if (!dense_) side_->set_rows(rows);
  }

  /// Enough for the fullest lane: what peels in large tables (1.23 cells an element), and more room for few elements.
  [[nodiscard]] static std::size_t rows_for(std::size_t fullest) {
    const auto most = static_cast<double>(fullest);
    return static_cast<std::size_t>(std::ceil(1.3 * most + 12.0 * std::sqrt(most) + 20.0));
  }

  /// A ring reduce-scatter with OR in place of the sum, then an all-gather.
  void or_all(Communicator<S>& comm, Queue<S> queue, View<std::uint32_t, S> marks, View<std::uint32_t, S> arrived) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto part = [&](std::size_t index) {
      const Segment segment = ring_segment(marks.size(), static_cast<int>(index % ranks_), static_cast<int>(ranks_));
      return marks.part(segment.first, segment.count);
    };
    for (std::size_t hop = 0; hop + 1 < ranks_; ++hop) {
      const auto into = part(me + 2 * ranks_ - hop - 1);
      const auto in = arrived.first(into.size());
      comm.exchange(queue, static_cast<int>((me + 1) % ranks_), as_bytes(part(me + ranks_ - hop)),
                    static_cast<int>((me + ranks_ - 1) % ranks_), as_writable_bytes(in));
      side_->merge(queue, in, into);
    }
    for (std::size_t r = 0; r < ranks_; ++r) {  // rank r has finished part r + 1
      const auto done = part(r + 1);
      sizes_[r] = done.bytes();
      offsets_[r] = static_cast<std::uint64_t>(4 * (done.data() - marks.data()));
    }
    comm.all_gather_v(queue, as_bytes(part(me + 1)), sizes_, offsets_, as_writable_bytes(marks));
  }

  LhcPlan plan_;
  bool adaptive_;
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<S> state_;
  View<float, S> residual_;
  std::unique_ptr<LhcSide<S>> side_;
  bool dense_ = false;
  std::size_t left_ = 0;
  bool whole_ = false;
};

}  // namespace gradtool
