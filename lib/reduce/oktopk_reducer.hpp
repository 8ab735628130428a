#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "lib/codecs/index_code.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {

/// A threshold that is exact now and then and follows a count in between (Li and Hoefler 2022, section 3.1).
class OkTopkThreshold {
 public:
  explicit OkTopkThreshold(double step) : step_{step} {}
  void set(float value) { value_ = value; }
  /// Moves when more than `most` or fewer than `least` values reached it.
  void steer(std::size_t count, double least, double most) {
    const auto c = static_cast<double>(count);
    if (c > most) value_ *= static_cast<float>(step_);
    if (c < least) value_ /= static_cast<float>(step_);
  }
  [[nodiscard]] float value() const { return value_; }

 private:
  double step_;
  float value_ = 0.0F;
};

/// What oktopk's steps work on.
struct OkTopkSizes {
  std::size_t n = 0, ranks = 1;
  IndexCoding coding;

  /// A part of at most m of m elements, as write_sparse makes it.
  [[nodiscard]] std::size_t part_bytes(std::size_t m) const { return sparse_bound(coding, m, m); }
};

/// Sparse all-reduce of the top k of the sum, in regions that ranks own (Li and Hoefler, Ok-Topk, PPoPP 2022).
///
/// `Steps` does the work of one space on a list of values and their positions, which `select` makes: those that are
/// neither 0 nor smaller than a threshold in magnitude, NaN among them, in ascending order.
///   Steps(sizes), workspace_bytes(), use(workspace)
///   kth(queue, values, k)               the k-th largest magnitude
///   select(queue, values, threshold)    how many they are; list() is their values
///   cuts(queue, selected, to)           to[j-1] := where j/ranks of the list begins, of n where it is empty
///   split(queue, borders, mine, out, offsets, sizes, region)
///                                       a part for every other region, its size; the own part into `region`, over 0;
///                                       how many of the list are own
///   write(queue, elements, out)         the list as a part of a region; its size
///   add(queue, part, weight, to)        to += weight * part
///   add_and_forget(queue, part, weight, to, kept, threshold)
///                                       the same; kept := 0 where the part has a value and it was selected
///   counts(queue, parts)                values in all parts together
/// Numbers that come back to the host are what the next collective's sizes are made of: on a GPU it waits for them.
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
        shapes_{n_, ranks_, IndexCoding{setup.spec.params.word("index")}},
        steps_{shapes_},
        borders_(ranks_ + 1),
        sizes_(ranks_),
        offsets_(ranks_),
        parts_(ranks_),
        cuts_(ranks_ * ranks_),
        stated_{ranks_},
        state_{padded(4 * n_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)} {
    OkTopkReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    step_ = 0;
    selected_ = wanted_ = 0;
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return step_ <= warmup_ && step_ > 0 ? "no step was compressed: all of them are warm-up" : "";
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {
        {"values selected of the k that were asked for", static_cast<double>(selected_), static_cast<double>(wanted_)}};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * padded(4 * n_) + padded(all_bytes()) + padded(shapes_.part_bytes(n_)) + padded(8 * ranks_ * ranks_) +
           padded(steps_.workspace_bytes()) + 1024;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const std::int64_t step = step_++;
    if (step < warmup_) return reduce_dense(comm, queue, gradient, workspace, clock);
    Carver<S> carve{workspace};
    const Work work{.sums = take<float>(carve, n_),
                    .region = take<float>(carve, n_),
                    .out = carve.take(all_bytes()),
                    .in = carve.take(shapes_.part_bytes(n_)),
                    .numbers = take<std::uint64_t>(carve, ranks_ * ranks_)};
    steps_.use(carve.take(steps_.workspace_bytes()));
    const auto since = step - warmup_;
    payload_bytes_ = 0;
    View<float, S> u = gradient;
    std::size_t selected = 0;
    float reached = 0.0F;
    in_phase(clock, Phase::encode, queue, [&] {
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      if (since % period_ == 0) local_.set(kth(queue, u));
      reached = local_.value();
      selected = steps_.select(queue, u, reached);
      const auto k = static_cast<double>(k_);
      local_.steer(selected, 2.0 * k / 3.0, 5.0 * k / 4.0);
    });
    if (since % regions_period_ == 0) agree_on_regions(comm, queue, work, selected, clock);
    const std::size_t own = split_and_reduce(comm, queue, work, clock);
    const Segment mine = region(static_cast<std::size_t>(comm.rank()));
    if (since % period_ == 0) agree_on_threshold(comm, queue, work, mine, clock);
    const std::size_t kept = gather_kept(comm, queue, work, mine, clock);
    in_phase(clock, Phase::decode, queue, [&] { apply(queue, work, gradient, reached); });
    values_sent_ = selected - own + kept;
    selected_ += selected;
    wanted_ += k_;
  }

 private:
  struct Work {
    View<float, S> sums, region;
    View<std::byte, S> out, in;
    View<std::uint64_t, S> numbers;
  };

  /// All parts of a gradient, whatever the regions are: codes are at most 4 bytes an element.
  [[nodiscard]] std::size_t all_bytes() const { return 8 * n_ + 512 * ranks_; }
  [[nodiscard]] Segment region(std::size_t r) const { return {borders_[r], borders_[r + 1] - borders_[r]}; }

  void reduce_dense(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, View<std::byte, S> workspace,
                    PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
    payload_bytes_ = 4 * n_;
    values_sent_ = n_;
  }

  /// The k-th largest magnitude, 0 where there are fewer than k.
  [[nodiscard]] float kth(Queue<S> queue, View<const float, S> values) {
    return k_ == 0 || values.size() < k_ ? 0.0F : steps_.kth(queue, values, k_);
  }

  /// Regions that split the ranks' selections evenly: the mean over ranks of where each would cut its own.
  void agree_on_regions(Communicator<S>& comm, Queue<S> queue, const Work& work, std::size_t selected,
                        PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto me = static_cast<std::size_t>(comm.rank());
      const std::size_t each = ranks_ - 1;
      const View<std::uint32_t, S> all{reinterpret_cast<std::uint32_t*>(work.numbers.data()), each * ranks_};
      if (each > 0) steps_.cuts(queue, selected, all.part(me * each, each));
      comm.all_gather(queue, as_bytes(View<const std::uint32_t, S>{all.part(me * each, each)}), as_writable_bytes(all));
      if (each > 0) read_back(queue, as_bytes(View<const std::uint32_t, S>{all}), cuts_.data());
      borders_.front() = 0;
      borders_.back() = n_;
      for (std::size_t j = 1; j < ranks_; ++j) {
        std::uint64_t sum = 0;
        for (std::size_t r = 0; r < ranks_; ++r) sum += cuts_[r * each + j - 1];
        borders_[j] = static_cast<std::size_t>(sum / ranks_);
        if (borders_[j] < borders_[j - 1] || borders_[j] > n_)
          throw Error{Fault::data, "oktopk: a rank's regions do not ascend"};
      }
      payload_bytes_ += 4 * each;
    });
  }

  /// Every part to its owner, one partner after the other, and the sum of what arrives for the own region. How many of
  /// the selected values that has of this rank.
  std::size_t split_and_reduce(Communicator<S>& comm, Queue<S> queue, const Work& work, PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto sums = work.region.first(region(me).count);
    std::size_t own = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      std::size_t at = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        offsets_[r] = at;
        if (r != me) at += padded(shapes_.part_bytes(region(r).count));
      }
      own = steps_.split(queue, borders_, me, work.out, offsets_, sizes_, sums);
      for (const auto size : sizes_) payload_bytes_ += size;
    });
    for (std::size_t hop = 1; hop < ranks_; ++hop) {
      const std::size_t to = (me + hop) % ranks_;
      const std::size_t from = (me + ranks_ - hop) % ranks_;
      std::size_t bytes = 0;
      in_phase(clock, Phase::communicate, queue, [&] {
        constexpr std::size_t kHead = sizeof(SparseHeader);
        const auto swap = [&](std::size_t first, std::size_t out, std::size_t in) {
          comm.exchange(queue, static_cast<int>(to), work.out.part(offsets_[to] + first, out), static_cast<int>(from),
                        work.in.part(first, in));
        };
        swap(0, kHead, kHead);
        stated_.fetch(queue, work.in.first(8));
        bytes = static_cast<std::size_t>(stated_.wait(queue)[0]);
        if (bytes < kHead || bytes > work.in.size()) throw Error{Fault::data, "oktopk: a part that cannot be one"};
        swap(kHead, static_cast<std::size_t>(sizes_[to]) - kHead, bytes - kHead);
      });
      in_phase(clock, Phase::decode, queue, [&] { steps_.add(queue, work.in.first(bytes), 1.0F, sums); });
    }
    return own;
  }

  /// The k-th largest magnitude among all sums, which every rank gathers for it.
  void agree_on_threshold(Communicator<S>& comm, Queue<S> queue, const Work& work, const Segment& mine,
                          PhaseClock<S>& clock) {
    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] { count = steps_.select(queue, work.region.first(mine.count), 0.0F); });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, work, 4 * count);
      std::uint64_t at = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        offsets_[r] = at;
        at += sizes_[r];
      }
      if (at > 4 * n_) throw Error{Fault::data, "oktopk: more sums than elements"};
      comm.all_gather_v(queue, as_bytes(steps_.list().first(count)), sizes_, offsets_, as_writable_bytes(work.sums));
      payload_bytes_ += 4 * count;
      global_.set(kth(queue, work.sums.first(static_cast<std::size_t>(at / 4))));
    });
  }

  /// What reaches the global threshold, from its owners to all. The parts stay in work.out.
  std::size_t gather_kept(Communicator<S>& comm, Queue<S> queue, const Work& work, const Segment& mine,
                          PhaseClock<S>& clock) {
    std::size_t kept = 0;
    std::size_t bytes = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      kept = steps_.select(queue, work.region.first(mine.count), global_.value());
      bytes = steps_.write(queue, mine.count, work.in);
      payload_bytes_ += bytes;
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, work, bytes);
      std::uint64_t at = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (sizes_[r] < sizeof(SparseHeader) || sizes_[r] > shapes_.part_bytes(region(r).count))
          throw Error{Fault::data, "oktopk: a part that cannot be one"};
        offsets_[r] = at;
        at += padded(static_cast<std::size_t>(sizes_[r]));
      }
      comm.all_gather_v(queue, work.in.first(bytes), sizes_, offsets_, work.out);
    });
    return kept;
  }

  void exchange_sizes(Communicator<S>& comm, Queue<S> queue, const Work& work, std::uint64_t mine) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto all = work.numbers.first(ranks_);
    write_size(queue, mine, as_writable_bytes(all.part(me, 1)));
    comm.all_gather(queue, as_bytes(View<const std::uint64_t, S>{all.part(me, 1)}), as_writable_bytes(all));
    stated_.fetch(queue, as_bytes(View<const std::uint64_t, S>{all}));
    const auto stated = stated_.wait(queue);
    std::copy_n(stated.begin(), ranks_, sizes_.begin());
    payload_bytes_ += 8;
  }

  /// The result, and the residual: zero where this rank sent and the result has it.
  void apply(Queue<S> queue, const Work& work, View<float, S> gradient, float reached) {
    fill_zero(queue, gradient);
    const float share = 1.0F / static_cast<float>(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment at = region(r);
      parts_[r] = work.out.part(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(sizes_[r]));
      const auto sums = gradient.part(at.first, at.count);
      if (residual_.empty())
        steps_.add(queue, parts_[r], share, sums);
      else
        steps_.add_and_forget(queue, parts_[r], share, sums, residual_.part(at.first, at.count), reached);
    }
    const auto k = static_cast<double>(k_);
    global_.steer(steps_.counts(queue, parts_), 2.0 * k / 3.0, 4.0 * k / 3.0);
  }

  std::size_t k_;
  std::int64_t period_, regions_period_, warmup_;
  OkTopkSizes shapes_;
  Steps steps_;
  std::vector<std::size_t> borders_;
  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<View<const std::byte, S>> parts_;
  std::vector<std::uint32_t> cuts_;
  ReadBack<S> stated_;
  Arena<S> state_;
  View<float, S> residual_;
  OkTopkThreshold local_{1.012}, global_{1.008};
  std::uint64_t selected_ = 0, wanted_ = 0;  ///< since the last reset
  std::int64_t step_ = 0;
};

}  // namespace gradtool
