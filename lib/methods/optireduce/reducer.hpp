#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/optireduce/format.hpp"

namespace gradtool {

/// The elements of one shard, and how it is cut: into packets of `each` elements, of which the last may be shorter.
template <Space S>
struct OptireduceShard {
  View<float, S> values;
  std::size_t each;
  [[nodiscard]] std::size_t packets() const { return (values.size() + each - 1) / each; }
};

/// OptiReduce (Warraich et al., NSDI 2025): every rank sends shard r of its rotated vector to rank r, which averages
/// what arrives, and sends the mean to all. `Steps` is the work on elements on one processor:
///   turn(queue, signs, factor, from, to)   to := factor * from, with the random signs of that key, or (null) as it is.
///                                          A NaN becomes format::one_nan, because ranks send what is made here
///   transform(queue, shape, x)             columns of x := their product with the Hadamard matrix, not normalised
///   mark(queue, message, packets, lost)    lost[i] := whether packet i of the message is lost
///   average(queue, shard, received, lost, over_all)   shard.values := their mean with what `received` holds of the
///                                          other ranks, one after the other, `lost` in the same order
///   zero_lost(queue, message, shard)       shard.values := 0 where the message lost them
template <Space S, class Steps>
class OptireduceReducer final : public CountingReducer<S> {
 public:
  explicit OptireduceReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        rotates_{setup.spec.params.is("hadamard", "on")},
        shape_{n_, rotates_ ? static_cast<std::size_t>(setup.spec.params.integer("block")) : 1},
        each_{static_cast<std::size_t>(setup.spec.params.integer("packet")) / sizeof(float)},
        model_{setup.spec.params.is("model", "tail") ? format::PacketLoss::tail : format::PacketLoss::iid},
        over_all_{setup.spec.params.is("average", "all")} {
    expect_valid(setup.spec.params.integer("packet") % 4 == 0, "codec optireduce: packet must be a multiple of 4");
    expect_valid(std::has_single_bit(static_cast<std::uint64_t>(setup.spec.params.integer("block"))),
                 "codec optireduce: block must be a power of two");
    const double loss = setup.spec.params.real("loss");
    push_loss_ = setup.spec.params.is("direction", "pull") ? 0.0 : loss;
    // The mean of a single rank is sent to nobody.
    pull_loss_ = setup.spec.params.is("direction", "push") || ranks_ == 1 ? 0.0 : loss;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment shard = ring_segment(shape_.elements(), static_cast<int>(r), setup.ranks);
      shards_.push_back({.first = shard.first, .count = shard.count, .first_packet = packets_});
      packets_ += packets_in(shard.count);
      sizes_.push_back(sizeof(float) * shard.count);
      offsets_.push_back(sizeof(float) * shard.first);
    }
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = false};
  }
  void reset(Queue<S> /*queue*/) override { delivered_ = {}; }
  void visit_state(StateVisitor& visitor) override {
    Reducer<S>::visit_state(visitor);
    visitor.value("delivered", delivered_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {{"contributions delivered", static_cast<double>(delivered_.arrived[0]),
             static_cast<double>(delivered_.sent[0])},
            {"means delivered", static_cast<double>(delivered_.arrived[1]), static_cast<double>(delivered_.sent[1])}};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto vector = as_writable_bytes(work.vector);
    const format::DrawKey signs = format::shared_by_ranks(context.key);
    const format::DrawKey* turns = rotates_ ? &signs : nullptr;
    const float factor = 1.0F / std::sqrt(static_cast<float>(shape_.order));

    in_phase(clock, Phase::encode, queue, [&] {
      Steps::turn(queue, turns, factor, gradient, work.vector);
      fill_zero(queue, work.vector.part(n_, work.vector.size() - n_));
      Steps::transform(queue, shape_, work.vector);
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t k = 1; k < ranks_; ++k) {
        const std::size_t to = (me + k) % ranks_;
        const std::size_t from = (me + ranks_ - k) % ranks_;
        comm.exchange(queue, static_cast<int>(to), vector.part(offsets_[to], sizes_[to]), static_cast<int>(from),
                      as_writable_bytes(received_from(work, me, from)));
      }
    });
    in_phase(clock, Phase::decode, queue, [&] { average(queue, context.key, me, work); });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_gather_v(queue, vector.part(offsets_[me], sizes_[me]), sizes_, offsets_, vector); });
    in_phase(clock, Phase::decode, queue, [&] {
      lose_means(queue, context.key, me, work.vector);
      Steps::transform(queue, shape_, work.vector);
      Steps::turn(queue, turns, factor, work.vector.first(n_), gradient);
    });
    payload_bytes_ = vector.size();
    values_sent_ = work.vector.size();
  }

 private:
  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;
  using CountingReducer<S>::payload_bytes_;
  using CountingReducer<S>::values_sent_;

  /// The shard that rank r averages. Each shard is cut into packets by itself, so that the last packet of a shard may
  /// be shorter.
  struct Shard {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t first_packet = 0;  ///< counted over the whole vector
  };
  /// Elements in packets to this rank (0) and of the means that it sends (1).
  struct Delivered {
    std::uint64_t sent[2] = {};
    std::uint64_t arrived[2] = {};
  };
  struct Workspace {
    Workspace(const OptireduceReducer& r, Scratch<S> pieces)
        : vector{pieces.template take<float>(r.shape_.elements())},
          received{pieces.template take<float>((r.ranks_ - 1) * r.largest_shard())},
          lost{pieces.template take<std::uint8_t>((r.ranks_ - 1) * r.packets_in(r.largest_shard()))} {}
    View<float, S> vector;       ///< rotated: at first this rank's, and at last the mean
    View<float, S> received;     ///< the other ranks' elements of the own shard
    View<std::uint8_t, S> lost;  ///< for each packet of those: whether it is lost
  };

  [[nodiscard]] std::size_t packets_in(std::size_t count) const { return (count + each_ - 1) / each_; }
  [[nodiscard]] std::size_t largest_shard() const { return (shape_.elements() + ranks_ - 1) / ranks_; }
  /// The values that rank `from` sent to this rank; shards are added in the order of ranks me + 1, me + 2, ...
  [[nodiscard]] View<float, S> received_from(const Workspace& work, std::size_t me, std::size_t from) const {
    const std::size_t place = (from + ranks_ - me) % ranks_ - 1;
    return work.received.part(place * shards_[me].count, shards_[me].count);
  }
  [[nodiscard]] format::MessageLoss message(format::DrawKey key, double loss, std::size_t from,
                                            std::size_t shard) const {
    key.rank = static_cast<std::uint32_t>(from);
    return {model_, loss, key, shards_[shard].first_packet, packets_in(shards_[shard].count)};
  }
  [[nodiscard]] OptireduceShard<S> shard_of(View<float, S> vector, std::size_t r) const {
    return {vector.part(shards_[r].first, shards_[r].count), each_};
  }

  /// Own shard of the vector := its mean over what has arrived, or over all ranks, of which the missing ones have zero.
  void average(Queue<S> queue, const format::DrawKey& key, std::size_t me, const Workspace& work) {
    const std::size_t packets = packets_in(shards_[me].count);
    for (std::size_t k = 1; k < ranks_; ++k) {
      const format::MessageLoss loss = message(key, push_loss_, (me + k) % ranks_, me);
      Steps::mark(queue, loss, packets, work.lost.data() + (k - 1) * packets);
      count(0, loss, shards_[me].count);
    }
    Steps::average(queue, shard_of(work.vector, me), work.received.first((ranks_ - 1) * shards_[me].count),
                   work.lost.data(), over_all_);
  }

  /// Means that are lost on their way are zero, on all ranks alike, their owner included.
  void lose_means(Queue<S> queue, const format::DrawKey& key, std::size_t me, View<float, S> vector) {
    for (std::size_t r = 0; r < ranks_ && ranks_ > 1; ++r) {
      const format::MessageLoss loss = message(key, pull_loss_, r, r);
      if (pull_loss_ > 0.0) Steps::zero_lost(queue, loss, shard_of(vector, r));
      if (r == me) count(1, loss, shards_[r].count);
    }
  }

  /// Counts the elements of a message, on the CPU whatever the space: what is lost follows from numbers that both have.
  void count(std::size_t direction, const format::MessageLoss& loss, std::size_t elements) {
    delivered_.sent[direction] += elements;
    for (std::size_t i = 0; i < packets_in(elements); ++i) {
      if (!loss.loses(i)) delivered_.arrived[direction] += std::min(each_, elements - i * each_);
    }
  }

  bool rotates_;
  format::RotationShape shape_;
  std::size_t each_;  ///< elements of a full packet
  format::PacketLoss model_;
  bool over_all_;
  double push_loss_ = 0.0;  ///< share of packets lost on their way to where they are averaged
  double pull_loss_ = 0.0;  ///< and of means
  std::vector<Shard> shards_;
  std::vector<std::uint64_t> sizes_, offsets_;  ///< bytes of every shard
  std::size_t packets_ = 0;                     ///< of the whole vector
  Delivered delivered_;
};

}  // namespace gradtool
