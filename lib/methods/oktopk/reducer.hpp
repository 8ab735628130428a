#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// A threshold that is computed exactly now and then, and in between follows the number of values that reach it (Li and
/// Hoefler 2022, section 3.1). Where that number is far from k, the threshold is computed exactly out of turn: drifting
/// would take many steps to follow a gradient, or a residual, that grows or shrinks quickly.
class DriftingThreshold {
 public:
  /// `factor` > 1: by how much a step may change it.
  explicit DriftingThreshold(double factor) : factor_{static_cast<float>(factor)} {}
  void set(float value) { value_ = value; }
  /// Whether `count` values, more than 3k/2 or fewer than k/2, call for an exact threshold. At 0 there are no smaller
  /// values to be found.
  [[nodiscard]] bool misses(std::size_t count, std::size_t k) const {
    return 2 * count > 3 * k || (2 * count < k && value_ != 0.0F);
  }
  /// Rises when more than `high` values reached it, and falls when fewer than `low` did.
  void steer(std::size_t count, double low, double high) {
    const auto reached = static_cast<double>(count);
    if (reached > high) value_ *= factor_;
    if (reached < low) value_ /= factor_;
  }
  [[nodiscard]] float value() const { return value_; }

 private:
  float factor_;
  float value_ = 0.0F;
};

/// The shape of the vector that the steps of oktopk work on.
struct OkTopkShape {
  std::size_t n = 0, ranks = 1;
  IndexCoding coding;

  /// Largest size of a part: a sparse payload over m elements.
  [[nodiscard]] std::size_t part_bound(std::size_t m) const { return sparse_bound(coding, m, m); }
};

/// Sparse all-reduce of the k largest sums (Li and Hoefler, Ok-Topk, PPoPP 2022). The bucket is cut into regions, one
/// for each rank to own. A rank selects what reaches its local threshold and sends each owner its part; an owner adds
/// the parts of its region and sends the sums that reach the global threshold to all ranks. README.md numbers the
/// steps.
///
/// `Steps` does the work on elements; it is HostSteps in oktopk.cpp and GpuSteps in oktopk.cu, whose member functions
/// are alike. They work on a list: the values that `select` selected and their positions, in ascending order.
///   Steps(shape)                        Workspace(shape, scratch): what the functions below work in
///   kth(queue, values, k, work)         the k-th largest magnitude, 1 <= k <= number of values
///   select(queue, values, threshold, work)
///                                       makes the list: values that are not 0 and whose magnitude reaches the
///                                       threshold, or that are NaN. Returns its length
///   cuts(queue, selected, out, work)    out[j-1] := the position at j/ranks of the list, j = 1 .. ranks-1; the element
///                                       n j/ranks where the list is empty
///   split(queue, borders, me, out, offsets, sizes, sums, work)
///                                       for every region r but `me`, writes its part of the list to out + offsets[r]
///                                       and its size to sizes[r]; puts the own part into `sums`, over zeros. The
///                                       list's positions are relative to their regions afterwards. Returns the length
///                                       of the own part
///   write(queue, elements, out, work)   writes the list as a part over `elements` elements. Returns its size
///   add(queue, part, weight, out, work) out += weight * part. Throws Fault::data for an invalid part (a GPU marks the
///                                       result as NaN instead)
///   add_and_forget(queue, part, weight, out, residual, threshold, work)
///                                       the same, and residual := 0 where the part has a value and the residual
///                                       reaches the threshold, so that this rank sent it
/// Numbers that come back decide the sizes of the next collective, so a GPU's reducer waits for them.
template <Space S, class Steps>
class OkTopkReducer final : public CountingReducer<S> {
  using Base = CountingReducer<S>;
  using Base::n_;
  using Base::padded;
  using Base::payload_bytes_;
  using Base::ranks_;
  using Base::values_sent_;

 public:
  explicit OkTopkReducer(const ReducerSetup<S>& setup)
      : Base{setup.layout.elements, setup.ranks},
        k_{std::clamp<std::size_t>(
            static_cast<std::size_t>(std::llround(setup.spec.params.real("ratio") * static_cast<double>(n_))),
            std::min<std::size_t>(n_, 1), n_)},
        period_{setup.spec.params.integer("period")},
        regions_period_{setup.spec.params.integer("regions")},
        warmup_{setup.spec.params.integer("warmup")},
        shape_{n_, ranks_, IndexCoding{setup.spec.params.word("index")}},
        steps_{shape_},
        borders_(ranks_ + 1),
        sizes_(ranks_),
        offsets_(ranks_),
        cuts_(ranks_ * ranks_),
        read_back_{2 * ranks_},
        state_{padded(sizeof(float) * n_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)} {
    OkTopkReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = false};
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    step_ = 0;
    selected_ = wanted_ = 0;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", residual_);
    visitor.values("borders", borders_);
    visitor.value("local threshold", local_);
    visitor.value("global threshold", global_);
    visitor.value("step", step_);
    visitor.value("selected", selected_);
    visitor.value("wanted", wanted_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] bool reached() const override { return step_ > warmup_; }
  [[nodiscard]] std::string note() const override {
    return step_ <= warmup_ && step_ > 0 ? "no step was compressed: all of them are warm-up" : "";
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {{"values that a rank selected, of as many as the ratio asks for", static_cast<double>(selected_),
             static_cast<double>(wanted_)}};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(shape_); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{shape_, Scratch<S>{workspace}};
    const std::int64_t step = step_++;
    if (step < warmup_) return this->reduce_plain(comm, queue, clock, gradient, as_writable_bytes(work.all_sums));
    const std::int64_t compressed_step = step - warmup_;
    const bool exact_thresholds = compressed_step % period_ == 0;
    payload_bytes_ = 0;
    std::size_t selected = 0;
    float local_threshold = 0.0F;
    in_phase(clock, Phase::encode, queue, [&] {
      View<float, S> candidates = gradient;
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        candidates = residual_;
      }
      if (exact_thresholds) local_.set(kth(queue, candidates, work));
      local_threshold = local_.value();
      selected = steps_.select(queue, candidates, local_threshold, work.steps);
      if (!exact_thresholds && local_.misses(selected, k_)) {
        local_threshold = kth(queue, candidates, work);
        local_.set(local_threshold);
        selected = steps_.select(queue, candidates, local_threshold, work.steps);
      }
      const auto k = static_cast<double>(k_);
      local_.steer(selected, 2.0 * k / 3.0, 5.0 * k / 4.0);
    });
    if (compressed_step % regions_period_ == 0) agree_on_regions(comm, queue, selected, work, clock);
    const std::size_t own = split_and_reduce(comm, queue, work, clock);
    if (exact_thresholds) set_global_threshold(comm, queue, work, clock);
    Kept kept = keep(comm, queue, work, clock);
    if (!exact_thresholds && global_.misses(kept.by_all, k_)) {  // on all ranks, or on none
      set_global_threshold(comm, queue, work, clock);
      kept = keep(comm, queue, work, clock);
    }
    gather_result(comm, queue, work, clock);
    in_phase(clock, Phase::decode, queue, [&] { apply_result(queue, gradient, local_threshold, work); });
    global_.steer(kept.by_all, 2.0 * static_cast<double>(k_) / 3.0, 4.0 * static_cast<double>(k_) / 3.0);
    values_sent_ = selected - own + kept.by_this_rank;
    selected_ += selected;
    wanted_ += k_;
  }

 private:
  struct Workspace {
    Workspace(const OkTopkShape& shape, Scratch<S> scratch)
        : region_sums{scratch.template take<float>(shape.n)},
          parts{scratch.take_bytes(parts_bound(shape))},
          part{scratch.take_bytes(shape.part_bound(shape.n))},
          all_sums{reinterpret_cast<float*>(part.data()), shape.n},
          numbers{scratch.template take<std::uint64_t>(std::max<std::size_t>(shape.ranks, 2) * shape.ranks)},
          steps{shape, scratch} {}
    View<float, S> region_sums;      ///< sums of the own region, element by element
    View<std::byte, S> parts;        ///< one part for each region
    View<std::byte, S> part;         ///< the part that arrives, or that this rank sends to all
    View<float, S> all_sums;         ///< list of the non-zero sums of all regions, in the place of `part`
    View<std::uint64_t, S> numbers;  ///< cuts, or sizes and counts, of all ranks
    typename Steps::Workspace steps;
  };

  /// Size of all parts, whatever the regions are: no more than one part over everything, and for each part its header,
  /// the last word of its positions and its alignment, which take less than 512 bytes.
  static std::size_t parts_bound(const OkTopkShape& shape) { return shape.part_bound(shape.n) + 512 * shape.ranks; }

  [[nodiscard]] Segment region(std::size_t r) const { return {borders_[r], borders_[r + 1] - borders_[r]}; }

  /// The k-th largest magnitude, 0 where there are fewer than k values.
  [[nodiscard]] float kth(Queue<S> queue, View<const float, S> values, const Workspace& work) {
    return k_ == 0 || values.size() < k_ ? 0.0F : steps_.kth(queue, values, k_, work.steps);
  }

  /// Cuts the bucket into regions that spread the ranks' selections evenly: a border is the mean over ranks of where
  /// each would cut its own list of `selected` values.
  void agree_on_regions(Communicator<S>& comm, Queue<S> queue, std::size_t selected, const Workspace& work,
                        PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto me = static_cast<std::size_t>(comm.rank());
      const std::size_t cuts = ranks_ - 1;  // of each rank
      const View<std::uint32_t, S> all{reinterpret_cast<std::uint32_t*>(work.numbers.data()), cuts * ranks_};
      const View<std::uint32_t, S> mine = all.part(me * cuts, cuts);
      if (cuts > 0) steps_.cuts(queue, selected, mine, work.steps);
      comm.all_gather(queue, as_bytes(mine), as_writable_bytes(all));
      if (cuts > 0) read_back(queue, as_bytes(all), cuts_.data());
      borders_.front() = 0;
      borders_.back() = n_;
      for (std::size_t j = 1; j < ranks_; ++j) {
        std::uint64_t sum = 0;
        for (std::size_t r = 0; r < ranks_; ++r) sum += cuts_[r * cuts + j - 1];
        borders_[j] = static_cast<std::size_t>(sum / ranks_);
        if (borders_[j] < borders_[j - 1] || borders_[j] > n_)
          throw Error{Fault::data, "oktopk: a rank's regions do not ascend"};
      }
      payload_bytes_ += sizeof(std::uint32_t) * cuts;
    });
  }

  /// Sends every part of the list to its owner, one partner after the other, and adds what arrives for the own region.
  /// Returns how many values of the list are of the own region.
  std::size_t split_and_reduce(Communicator<S>& comm, Queue<S> queue, const Workspace& work, PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto sums = work.region_sums.first(region(me).count);
    std::size_t own = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      std::size_t offset = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        offsets_[r] = offset;
        if (r != me) offset += padded(shape_.part_bound(region(r).count));
      }
      own = steps_.split(queue, borders_, me, work.parts, offsets_, sizes_, sums, work.steps);
      for (const auto size : sizes_) payload_bytes_ += size;
    });
    for (std::size_t hop = 1; hop < ranks_; ++hop) {
      const std::size_t to = (me + hop) % ranks_;
      const std::size_t from = (me + ranks_ - hop) % ranks_;
      std::size_t bytes = 0;
      in_phase(clock, Phase::communicate, queue, [&] { bytes = swap_parts(comm, queue, to, from, work); });
      in_phase(clock, Phase::decode, queue, [&] { steps_.add(queue, work.part.first(bytes), 1.0F, sums, work.steps); });
    }
    return own;
  }

  /// Sends a part and receives one, in two exchanges because the receiver learns the size from the header. Returns the
  /// size of what is in work.part then.
  std::size_t swap_parts(Communicator<S>& comm, Queue<S> queue, std::size_t to, std::size_t from,
                         const Workspace& work) {
    constexpr std::size_t kHeader = sizeof(SparseHeader);
    const auto swap = [&](std::size_t first, std::size_t bytes_out, std::size_t bytes_in) {
      comm.exchange(queue, static_cast<int>(to), work.parts.part(offsets_[to] + first, bytes_out),
                    static_cast<int>(from), work.part.part(first, bytes_in));
    };
    swap(0, kHeader, kHeader);
    read_back_.fetch(queue, work.part.first(sizeof(std::uint64_t)));
    const auto bytes = static_cast<std::size_t>(read_back_.wait(queue)[0]);
    if (bytes < kHeader || bytes > work.part.size()) throw Error{Fault::data, "oktopk: a part that cannot be one"};
    swap(kHeader, static_cast<std::size_t>(sizes_[to]) - kHeader, bytes - kHeader);
    return bytes;
  }

  /// sizes_ := the size of every rank's part or list of `count` values. Returns how many values all ranks have.
  std::size_t exchange_sizes(Communicator<S>& comm, Queue<S> queue, std::uint64_t bytes, std::uint64_t count,
                             const Workspace& work) {
    const auto all = work.numbers.first(2 * ranks_);
    const auto own = all.part(2 * static_cast<std::size_t>(comm.rank()), 2);
    write_size(queue, bytes, as_writable_bytes(own.first(1)));
    write_size(queue, count, as_writable_bytes(own.part(1, 1)));
    comm.all_gather(queue, as_bytes(own), as_writable_bytes(all));
    read_back_.fetch(queue, as_bytes(all));
    const auto numbers = read_back_.wait(queue);
    std::uint64_t total = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      sizes_[r] = numbers[2 * r];
      total += numbers[2 * r + 1];
    }
    payload_bytes_ += own.bytes();
    return static_cast<std::size_t>(total);
  }

  /// The exact global threshold, from the non-zero sums of all regions.
  void set_global_threshold(Communicator<S>& comm, Queue<S> queue, const Workspace& work, PhaseClock<S>& clock) {
    const auto sums = gather_sums(comm, queue, work, clock);
    in_phase(clock, Phase::communicate, queue, [&] { global_.set(kth(queue, sums, work)); });
  }

  /// Gathers the non-zero sums of all regions.
  [[nodiscard]] View<const float, S> gather_sums(Communicator<S>& comm, Queue<S> queue, const Workspace& work,
                                                 PhaseClock<S>& clock) {
    const Segment mine = region(static_cast<std::size_t>(comm.rank()));
    std::size_t count = 0;
    std::uint64_t total_bytes = 0;
    in_phase(clock, Phase::encode, queue,
             [&] { count = steps_.select(queue, work.region_sums.first(mine.count), 0.0F, work.steps); });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, sizeof(float) * count, count, work);
      for (std::size_t r = 0; r < ranks_; ++r) {
        offsets_[r] = total_bytes;
        total_bytes += sizes_[r];
      }
      if (total_bytes > work.all_sums.bytes()) throw Error{Fault::data, "oktopk: more sums than elements"};
      comm.all_gather_v(queue, as_bytes(work.steps.values.first(count)), sizes_, offsets_,
                        as_writable_bytes(work.all_sums));
      payload_bytes_ += sizeof(float) * count;
    });
    return work.all_sums.first(static_cast<std::size_t>(total_bytes / sizeof(float)));
  }

  /// How many sums reach the global threshold.
  struct Kept {
    std::size_t by_this_rank = 0;  ///< of the own region
    std::size_t by_all = 0;
  };

  /// work.part := the sums of the own region that reach the global threshold; sizes_ := the sizes of all ranks' parts.
  [[nodiscard]] Kept keep(Communicator<S>& comm, Queue<S> queue, const Workspace& work, PhaseClock<S>& clock) {
    const Segment mine = region(static_cast<std::size_t>(comm.rank()));
    Kept kept;
    std::size_t bytes = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      kept.by_this_rank = steps_.select(queue, work.region_sums.first(mine.count), global_.value(), work.steps);
      bytes = steps_.write(queue, mine.count, work.part, work.steps);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { kept.by_all = exchange_sizes(comm, queue, bytes, kept.by_this_rank, work); });
    return kept;
  }

  /// Gathers all ranks' parts, whose sizes are known.
  void gather_result(Communicator<S>& comm, Queue<S> queue, const Workspace& work, PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      std::uint64_t offset = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (sizes_[r] < sizeof(SparseHeader) || sizes_[r] > shape_.part_bound(region(r).count))
          throw Error{Fault::data, "oktopk: a part that cannot be one"};
        offsets_[r] = offset;
        offset += padded(static_cast<std::size_t>(sizes_[r]));
      }
      const auto bytes = static_cast<std::size_t>(sizes_[static_cast<std::size_t>(comm.rank())]);
      comm.all_gather_v(queue, work.part.first(bytes), sizes_, offsets_, work.parts);
      payload_bytes_ += bytes;
    });
  }

  /// Writes the result, and clears the residual where this rank sent an element that the result has.
  void apply_result(Queue<S> queue, View<float, S> gradient, float local_threshold, const Workspace& work) {
    fill_zero(queue, gradient);
    const float share = 1.0F / static_cast<float>(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment segment = region(r);
      const auto part = work.parts.part(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(sizes_[r]));
      const auto result = gradient.part(segment.first, segment.count);
      if (residual_.empty()) {
        steps_.add(queue, part, share, result, work.steps);
      } else {
        steps_.add_and_forget(queue, part, share, result, residual_.part(segment.first, segment.count), local_threshold,
                              work.steps);
      }
    }
  }

  std::size_t k_;
  std::int64_t period_, regions_period_, warmup_;
  OkTopkShape shape_;
  Steps steps_;
  std::vector<std::size_t> borders_;            ///< region r lies in [borders_[r], borders_[r + 1])
  std::vector<std::uint64_t> sizes_, offsets_;  ///< of every rank's part or list, in bytes
  std::vector<std::uint32_t> cuts_;             ///< of all ranks, on the host
  ReadBack<S> read_back_;
  Arena<S> state_;
  View<float, S> residual_;  ///< empty without error feedback
  DriftingThreshold local_{1.012}, global_{1.008};
  std::uint64_t selected_ = 0, wanted_ = 0;  ///< values since the last reset, and k for each step
  std::int64_t step_ = 0;
};

}  // namespace gradtool
