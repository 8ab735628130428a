#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "lib/reduce/host_reducer.hpp"

namespace gradtool {

/// qgZ of ZeRO++ as an all-reduce. Rank N·m + l is rank l of node N, m ranks to a node, q nodes; it ends up owning
/// slice N·m + l of p = q·m. Slices are grouped by their place in the node (0, m, 2m, ..., 1, m+1, ...), so that one
/// message to each rank of the node holds what that rank will pass on to all nodes.
template <Space S>
class QgzReducer final : public CountingReducer<S> {
 public:
  using MakeCodec = std::unique_ptr<Codec<S>> (*)(std::int64_t bits, std::size_t block);

  QgzReducer(const ReducerSetup<S>& setup, MakeCodec make_codec)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        codec_{make_codec(setup.spec.params.is("bits", "8") ? 8 : 4, block_of(setup))},
        last_codec_{make_codec(setup.spec.params.is("gather", "8") ? 8 : 4, block_of(setup))},
        asked_{static_cast<std::size_t>(setup.spec.params.integer("node"))},
        local_{asked_ > 1 && ranks_ % asked_ == 0 ? asked_ : ranks_},
        nodes_{ranks_ / local_},
        bytes_(ranks_),
        offsets_(ranks_),
        last_bytes_(ranks_),
        last_offsets_(ranks_),
        arrived_(std::max(local_, nodes_)),
        state_{setup.spec.error_feedback ? 4 * n_ : 0},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)} {
    for (std::size_t s = 0; s < ranks_; ++s) {
      const Footprint plan = codec_->plan(slice(s).count);
      const Footprint last_plan = last_codec_->plan(slice(s).count);
      bytes_[s] = plan.payload_bytes;
      last_bytes_[s] = last_plan.payload_bytes;
      scratch_bytes_ = std::max({scratch_bytes_, plan.scratch_bytes, last_plan.scratch_bytes});
      last_offsets_[s] = last_all_;
      last_all_ += last_bytes_[s];
      largest_ = std::max<std::size_t>(largest_, bytes_[s]);
    }
    for (std::size_t l = 0; l < local_; ++l) {
      for (std::size_t node = 0; node < nodes_; ++node) {
        offsets_[node * local_ + l] = all_;
        all_ += bytes_[node * local_ + l];
      }
      largest_group_ = std::max(largest_group_, group_bytes(l));
    }
    QgzReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<S> queue) override { fill_zero(queue, residual_); }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return ranks_ > asked_ && asked_ > 1 && nodes_ == 1 ? "node does not divide the ranks: one level" : "";
  }

  /// The encoded gradient, what arrives in a node, what arrives from other nodes, all last payloads, and the codecs'
  /// scratch.
  [[nodiscard]] std::size_t workspace_bytes() const override {
    return this->padded(all_) + local_ * this->padded(largest_group_) + nodes_ * this->padded(largest_) +
           this->padded(last_all_) + this->padded(scratch_bytes_) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto encoded = carve.take(all_);
    const auto from_node = carve.take(local_ * this->padded(largest_group_));
    const auto from_nodes = carve.take(nodes_ * this->padded(largest_));
    const auto last = carve.take(last_all_);
    scratch_ = carve.take(scratch_bytes_);
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::size_t place = me % local_;
    const std::size_t node = me / local_;
    payload_bytes_ = 0;
    values_sent_ = 0;

    in_phase(clock, Phase::encode, queue, [&] {
      View<float, S> values = gradient;
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        values = residual_;
      }
      for (std::size_t s = 0; s < ranks_; ++s) encode(queue, *codec_, values, s, context, part(encoded, s));
      if (residual_.empty()) return;
      for (std::size_t s = 0; s < ranks_; ++s) decode(queue, *codec_, part(encoded, s), -1.0F, residual_, s);
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto group = [&](std::size_t l) { return encoded.part(offsets_[l], group_bytes(l)); };
      for (std::size_t k = 1; k < local_; ++k) {
        const std::size_t to = (place + k) % local_;
        const std::size_t from = (place + local_ - k) % local_;
        comm.exchange(queue, rank_of(node, to), group(to), rank_of(node, from),
                      from_node.part(from * this->padded(largest_group_), group_bytes(place)));
      }
    });
    // The gradient's memory holds the sums of the slices that this rank works on.
    in_phase(clock, Phase::decode, queue, [&] {
      for (std::size_t other = 0; other < nodes_; ++other) {
        const std::size_t s = other * local_ + place;
        fill_zero(queue, slice_of(gradient, s));
        for (std::size_t l = 0; l < local_; ++l) {
          arrived_[l] =
              l == place ? part(encoded, s)
                         : from_node.part(l * this->padded(largest_group_) + offsets_[s] - offsets_[place], bytes_[s]);
        }
        add_arrived(queue, local_, gradient, s);
      }
    });
    if (nodes_ > 1) reduce_between_nodes(comm, queue, gradient, context, encoded, from_nodes, clock);
    in_phase(clock, Phase::encode, queue, [&] {
      encode(queue, *last_codec_, gradient, me, context, last.part(last_offsets_[me], last_bytes_[me]));
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      comm.all_gather_v(queue, last.part(last_offsets_[me], last_bytes_[me]), last_bytes_, last_offsets_, last);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (std::size_t s = 0; s < ranks_; ++s) {
        decode(queue, *last_codec_, last.part(last_offsets_[s], last_bytes_[s]), 1.0F / static_cast<float>(ranks_),
               gradient, s);
      }
    });
  }

 private:
  [[nodiscard]] static std::size_t block_of(const ReducerSetup<S>& setup) {
    return static_cast<std::size_t>(setup.spec.params.integer("block"));
  }
  /// Slice s of p, in elements: a multiple of 32 each, but for the last that has any.
  [[nodiscard]] Segment slice(std::size_t s) const {
    const Segment groups = ring_segment((n_ + 31) / 32, static_cast<int>(s), static_cast<int>(ranks_));
    const std::size_t first = std::min(n_, 32 * groups.first);
    return {first, std::min(n_, 32 * (groups.first + groups.count)) - first};
  }
  [[nodiscard]] View<float, S> slice_of(View<float, S> values, std::size_t s) const {
    const Segment range = slice(s);
    return values.part(range.first, range.count);
  }
  [[nodiscard]] View<std::byte, S> part(View<std::byte, S> encoded, std::size_t s) const {
    return encoded.part(offsets_[s], bytes_[s]);
  }
  /// Of the slices that rank `place` of every node works on.
  [[nodiscard]] std::size_t group_bytes(std::size_t place) const {
    std::size_t bytes = 0;
    for (std::size_t node = 0; node < nodes_; ++node) bytes += bytes_[node * local_ + place];
    return bytes;
  }
  [[nodiscard]] int rank_of(std::size_t node, std::size_t place) const {
    return static_cast<int>(node * local_ + place);
  }

  void encode(Queue<S> queue, const Codec<S>& codec, View<float, S> values, std::size_t s, const EncodeContext& context,
              View<std::byte, S> payload) {
    const auto from = slice_of(values, s);
    codec.encode(queue, from, context, payload, scratch_);
    payload_bytes_ += payload.size();
    values_sent_ += from.size();
  }
  void decode(Queue<S> queue, const Codec<S>& codec, View<const std::byte, S> payload, float weight,
              View<float, S> values, std::size_t s) const {
    codec.decode_add(queue, payload, weight, slice_of(values, s), scratch_);
  }
  /// values += the first `count` payloads that arrived, in their order.
  void add_arrived(Queue<S> queue, std::size_t count, View<float, S> values, std::size_t s) const {
    codec_->decode_add_all(queue, std::span{arrived_}.first(count), 1.0F, slice_of(values, s), scratch_);
  }

  void reduce_between_nodes(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient,
                            const EncodeContext& context, View<std::byte, S> encoded, View<std::byte, S> from_nodes,
                            PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::size_t place = me % local_;
    const std::size_t node = me / local_;
    in_phase(clock, Phase::encode, queue, [&] {
      for (std::size_t other = 0; other < nodes_; ++other) {
        const std::size_t s = other * local_ + place;
        encode(queue, *codec_, gradient, s, context, part(encoded, s));
      }
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t k = 1; k < nodes_; ++k) {
        const std::size_t to = (node + k) % nodes_;
        const std::size_t from = (node + nodes_ - k) % nodes_;
        comm.exchange(queue, rank_of(to, place), part(encoded, to * local_ + place), rank_of(from, place),
                      from_nodes.part(from * this->padded(largest_), bytes_[me]));
      }
    });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, slice_of(gradient, me));
      for (std::size_t other = 0; other < nodes_; ++other) {
        arrived_[other] =
            other == node ? part(encoded, me) : from_nodes.part(other * this->padded(largest_), bytes_[me]);
      }
      add_arrived(queue, nodes_, gradient, me);
    });
  }

  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;
  using CountingReducer<S>::payload_bytes_;
  using CountingReducer<S>::values_sent_;

  std::unique_ptr<Codec<S>> codec_, last_codec_;
  std::size_t asked_, local_, nodes_;
  std::vector<std::uint64_t> bytes_;       ///< of every slice, encoded
  std::vector<std::uint64_t> offsets_;     ///< of slices in the encoded gradient, grouped by place
  std::vector<std::uint64_t> last_bytes_;  ///< of every slice, encoded for the all-gather
  std::vector<std::uint64_t> last_offsets_;
  std::vector<View<const std::byte, S>> arrived_;
  std::size_t all_ = 0, largest_ = 0, largest_group_ = 0, last_all_ = 0, scratch_bytes_ = 0;
  View<std::byte, S> scratch_;  ///< in the workspace of a reduce
  Arena<S> state_;
  View<float, S> residual_;
};

}  // namespace gradtool
