#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {

/// The values that the results of a collective are compared with, in the pass for the errors, which is not timed: for
/// sums over ranks the mean that the loader has, for the others the values that the same collective brings
/// uncompressed. Every rank makes the same calls; rank 0 compares.
template <Space S, class Processor>
class CollectiveReference {
 public:
  CollectiveReference(const ReplayPlan& plan, Communicator<S>& comm, Processor& processor)
      : op_{plan.op()}, comm_{comm}, processor_{processor} {}

  /// Every rank ends with the same values.
  [[nodiscard]] bool same_everywhere() const { return op_ == Collective::all_reduce || op_ == Collective::all_gather; }
  /// The part of its unit that rank 0 encodes.
  [[nodiscard]] std::span<const float> encoded_by_first(std::span<const float> unit) const {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    return op_ == Collective::all_gather ? unit.first((unit.size() + ranks - 1) / ranks) : unit;
  }

  /// `buffer`: a rank's values, before the collective works on them.
  void before(View<float, S> buffer) {
    const auto queue = processor_.queue();
    if (op_ == Collective::all_gather) {
      const auto exact = take(exact_, buffer.size());
      comm_.all_gather(queue, as_bytes(shard(buffer)), as_writable_bytes(exact));
    }
    if (op_ == Collective::all_to_all) gather(exact_, buffer);
  }
  /// `buffer`: what the collective has made of it. Afterwards it holds the shards of all ranks.
  void after(View<float, S> buffer) {
    const auto queue = processor_.queue();
    if (op_ == Collective::reduce_scatter) comm_.all_gather(queue, as_bytes(shard(buffer)), as_writable_bytes(buffer));
    if (op_ == Collective::all_to_all) {
      // Back to those whose values they were, so that each rank has its own as the others received them.
      Arena<S> arena{Arena<S>::padded_size(buffer.bytes())};
      const auto back = arena.template take<float>(buffer.size());
      comm_.all_to_all(queue, as_bytes(buffer), as_writable_bytes(back));
      gather(got_, back);
    }
  }

  /// On rank 0: calls observe(exact, result) for what is to be compared: `mean` and `result` of a sum over ranks, else
  /// the exact values and the result, of an all-to-all for each rank's values. `result`: the unit's, on rank 0.
  template <class Observe>
  void compare(std::span<const double> mean, std::span<const float> result, Observe&& observe) {
    if (op_ == Collective::all_reduce || op_ == Collective::reduce_scatter) return observe(mean, result);
    if (op_ == Collective::all_gather) {
      const std::vector<float> kept{result.begin(), result.end()};  // the download below takes its place
      widen(exact_view_.first(kept.size()));
      return observe(std::span<const double>{widened_}, std::span<const float>{kept});
    }
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t each = exact_view_.size() / ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      widen(exact_view_.part(r * each, result.size()));
      observe(std::span<const double>{widened_}, processor_.download(got_view_.part(r * each, result.size())));
    }
  }

 private:
  [[nodiscard]] View<float, S> shard(View<float, S> buffer) const {
    const Segment s = ring_segment(buffer.size(), comm_.rank(), comm_.size());
    return buffer.part(s.first, s.count);
  }
  View<float, S> take(std::unique_ptr<Arena<S>>& arena, std::size_t elements) {
    arena = std::make_unique<Arena<S>>(Arena<S>::padded_size(elements * sizeof(float)));
    const auto view = arena->template take<float>(elements);
    (&arena == &exact_ ? exact_view_ : got_view_) = view;
    return view;
  }
  /// Every rank's values, one behind the other, on rank 0.
  void gather(std::unique_ptr<Arena<S>>& arena, View<float, S> mine) {
    const auto all =
        take(arena, comm_.rank() == 0 ? mine.size() * static_cast<std::size_t>(comm_.size()) : std::size_t{0});
    comm_.gather(processor_.queue(), as_bytes(mine), as_writable_bytes(all), 0);
  }
  void widen(View<const float, S> values) {
    const auto here = processor_.download(values);
    widened_.assign(here.begin(), here.end());
  }

  Collective op_;
  Communicator<S>& comm_;
  Processor& processor_;
  std::unique_ptr<Arena<S>> exact_, got_;
  View<float, S> exact_view_, got_view_;
  std::vector<double> widened_;
};

}  // namespace gradtool
