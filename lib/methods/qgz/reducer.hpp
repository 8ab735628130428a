#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The quantiser of qgZ: `bits` (4 or 8) an element, in blocks with a float32 scale. Its payloads are multiples of 4
/// bytes and need an alignment of 4 bytes only. Throws Fault::usage for a block that is not a multiple of 32.
[[nodiscard]] std::unique_ptr<Codec<Space::host>> make_qgz_codec(std::int64_t bits, std::size_t block);

/// qgZ of ZeRO++ as an all-reduce in two levels, which the communicator must have (Reducer::prepare). With m ranks in
/// each of q nodes, rank N·m + l is rank l of node N, and ends up owning slice N·m + l of the p = q·m slices. A "group"
/// is the slices of one l, which lie next to each other when encoded (0, m, 2m, ..., then 1, m+1, ...), so that one
/// message to each rank of the node holds what that rank will pass on to all nodes. The last all-gather goes between
/// nodes first and hands a group on inside, as it was encoded: LevelledReducer would encode once more. A rank receives
/// (p-1)/p of the vector in it, as from an all-gather in one level.
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
        inside_{local_},
        across_{nodes_},
        arrived_(std::max(local_, nodes_)),
        state_{setup.spec.error_feedback ? 4 * n_ : 0},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)} {
    for (std::size_t s = 0; s < ranks_; ++s) {
      const Footprint plan = codec_->plan(slice(s).count);
      const Footprint last_plan = last_codec_->plan(slice(s).count);
      bytes_[s] = plan.payload_bytes;
      last_bytes_[s] = last_plan.payload_bytes;
      scratch_bytes_ = std::max({scratch_bytes_, plan.scratch_bytes, last_plan.scratch_bytes});
      largest_ = std::max<std::size_t>(largest_, bytes_[s]);
    }
    for (std::size_t l = 0; l < local_; ++l) {
      for (std::size_t node = 0; node < nodes_; ++node) {
        const std::size_t s = node * local_ + l;
        offsets_[s] = all_;
        all_ += bytes_[s];
        last_offsets_[s] = last_all_;
        last_all_ += last_bytes_[s];
      }
      largest_group_ = std::max<std::size_t>(largest_group_, group_bytes(bytes_, l));
    }
    QgzReducer::reset(setup.queue);
  }

  [[nodiscard]] int node() const override { return nodes_ > 1 ? static_cast<int>(local_) : 1; }
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = false};
  }
  void reset(Queue<S> queue) override { fill_zero(queue, residual_); }
  void visit_state(StateVisitor& visitor) override { visitor.values("residual", residual_); }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    if (nodes_ > 1 || asked_ <= 1) return "";
    return ranks_ > asked_ ? "node does not divide the ranks: one level"
                           : "node has all ranks: one level, also where more are modelled";
  }

  /// The encoded gradient, what arrives in a node, what arrives from other nodes, all last payloads, and the codecs'
  /// scratch.
  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    scratch_ = work.scratch;
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::size_t place = me % local_;
    payload_bytes_ = 0;
    values_sent_ = 0;

    in_phase(clock, Phase::encode, queue, [&] {
      View<float, S> values = gradient;
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        values = residual_;
      }
      for (std::size_t s = 0; s < ranks_; ++s) encode(queue, *codec_, values, s, context, part(work.encoded, s));
      if (residual_.empty()) return;
      for (std::size_t s = 0; s < ranks_; ++s) decode(queue, *codec_, part(work.encoded, s), -1.0F, residual_, s);
    });
    for (std::size_t l = 0; l < local_; ++l) {
      inside_.send(l, offsets_[l], l == place ? 0 : group_bytes(bytes_, l));
      inside_.receive(l, l * this->padded(largest_group_), l == place ? 0 : group_bytes(bytes_, place));
    }
    in_phase(clock, Phase::communicate, queue,
             [&] { inside_.exchange(inside_of(comm), queue, work.encoded, work.from_node); });
    // The gradient's memory holds the sums of the slices that this rank works on.
    in_phase(clock, Phase::decode, queue, [&] {
      for (std::size_t node = 0; node < nodes_; ++node) {
        const std::size_t s = node * local_ + place;
        for (std::size_t l = 0; l < local_; ++l) {
          arrived_[l] = l == place ? part(work.encoded, s)
                                   : work.from_node.part(
                                         l * this->padded(largest_group_) + offsets_[s] - offsets_[place], bytes_[s]);
        }
        sum_arrived(queue, local_, gradient, s);
      }
    });
    if (nodes_ > 1) reduce_between_nodes(comm, queue, gradient, context, work, clock);
    in_phase(clock, Phase::encode, queue, [&] {
      encode(queue, *last_codec_, gradient, me, context, work.last.part(last_offsets_[me], last_bytes_[me]));
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      if (nodes_ > 1) {
        for (std::size_t node = 0; node < nodes_; ++node) {
          const std::size_t s = node * local_ + place;
          across_.receive(node, last_offsets_[s], last_bytes_[s]);
        }
        across_.gather(comm.across(), queue, work.last);
      }
      for (std::size_t l = 0; l < local_; ++l) inside_.receive(l, last_offsets_[l], group_bytes(last_bytes_, l));
      inside_.gather(inside_of(comm), queue, work.last);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (std::size_t s = 0; s < ranks_; ++s) {
        decode(queue, *last_codec_, work.last.part(last_offsets_[s], last_bytes_[s]), 1.0F / static_cast<float>(ranks_),
               gradient, s);
      }
    });
  }

 private:
  /// The messages between the ranks of one level.
  class Moves {
   public:
    explicit Moves(std::size_t ranks) : out_sizes_(ranks), out_offsets_(ranks), in_sizes_(ranks), in_offsets_(ranks) {}

    void send(std::size_t to, std::uint64_t offset, std::uint64_t size) {
      out_offsets_[to] = offset;
      out_sizes_[to] = size;
    }
    void receive(std::size_t from, std::uint64_t offset, std::uint64_t size) {
      in_offsets_[from] = offset;
      in_sizes_[from] = size;
    }

    void exchange(Communicator<S>& level, Queue<S> queue, View<const std::byte, S> from, View<std::byte, S> to) const {
      level.all_to_all_v(queue, from, {out_sizes_, out_offsets_}, to, {in_sizes_, in_offsets_});
    }
    /// In place: this rank's part of `all` is there.
    void gather(Communicator<S>& level, Queue<S> queue, View<std::byte, S> all) const {
      const auto me = static_cast<std::size_t>(level.rank());
      level.all_gather_v(queue, all.part(in_offsets_[me], in_sizes_[me]), in_sizes_, in_offsets_, all);
    }

   private:
    std::vector<std::uint64_t> out_sizes_, out_offsets_, in_sizes_, in_offsets_;
  };

  struct Workspace {
    Workspace(const QgzReducer& r, Scratch<S> pieces)
        : encoded{pieces.take_bytes(r.all_)},
          from_node{pieces.take_bytes(r.local_ * r.padded(r.largest_group_))},
          from_nodes{pieces.take_bytes(r.nodes_ * r.padded(r.largest_))},
          last{pieces.take_bytes(r.last_all_)},
          scratch{pieces.take_bytes(r.scratch_bytes_)} {}

    View<std::byte, S> encoded;     ///< all slices, as this rank sends them
    View<std::byte, S> from_node;   ///< this rank's group from each rank of the node
    View<std::byte, S> from_nodes;  ///< this rank's slice from each node
    View<std::byte, S> last;        ///< all slices, as the all-gather sends them
    View<std::byte, S> scratch;     ///< of the codecs
  };

  [[nodiscard]] static std::size_t block_of(const ReducerSetup<S>& setup) {
    return static_cast<std::size_t>(setup.spec.params.integer("block"));
  }
  /// The elements of slice s. Every slice but the last one that has any elements has a multiple of 32.
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
  /// Bytes of the slices that rank `place` of every node works on.
  [[nodiscard]] std::uint64_t group_bytes(const std::vector<std::uint64_t>& slices, std::size_t place) const {
    std::uint64_t bytes = 0;
    for (std::size_t node = 0; node < nodes_; ++node) bytes += slices[node * local_ + place];
    return bytes;
  }

  /// The ranks of this one's node.
  [[nodiscard]] Communicator<S>& inside_of(Communicator<S>& comm) const { return nodes_ > 1 ? comm.inside() : comm; }

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
  /// Slice s of `values` := the sum of the first `count` payloads that arrived, in their order.
  void sum_arrived(Queue<S> queue, std::size_t count, View<float, S> values, std::size_t s) const {
    fill_zero(queue, slice_of(values, s));
    codec_->decode_add_all(queue, std::span{arrived_}.first(count), 1.0F, slice_of(values, s), scratch_);
  }

  void reduce_between_nodes(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient,
                            const EncodeContext& context, const Workspace& work, PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::size_t place = me % local_;
    const std::size_t mine = me / local_;
    in_phase(clock, Phase::encode, queue, [&] {
      for (std::size_t node = 0; node < nodes_; ++node) {
        const std::size_t s = node * local_ + place;
        encode(queue, *codec_, gradient, s, context, part(work.encoded, s));
        across_.send(node, offsets_[s] - offsets_[place], node == mine ? 0 : bytes_[s]);
        across_.receive(node, node * this->padded(largest_), node == mine ? 0 : bytes_[me]);
      }
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      across_.exchange(comm.across(), queue, work.encoded.part(offsets_[place], group_bytes(bytes_, place)),
                       work.from_nodes);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      for (std::size_t node = 0; node < nodes_; ++node) {
        arrived_[node] =
            node == mine ? part(work.encoded, me) : work.from_nodes.part(node * this->padded(largest_), bytes_[me]);
      }
      sum_arrived(queue, nodes_, gradient, me);
    });
  }

  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;
  using CountingReducer<S>::payload_bytes_;
  using CountingReducer<S>::values_sent_;

  std::unique_ptr<Codec<S>> codec_, last_codec_;
  std::size_t asked_;  ///< ranks in a node, as the user says
  std::size_t local_;  ///< ranks in a node, all of them where `asked_` does not divide them
  std::size_t nodes_;
  std::vector<std::uint64_t> bytes_;         ///< of every slice, encoded
  std::vector<std::uint64_t> offsets_;       ///< of every slice in the encoded gradient, where groups lie together
  std::vector<std::uint64_t> last_bytes_;    ///< of every slice, encoded for the all-gather
  std::vector<std::uint64_t> last_offsets_;  ///< in the last payloads, where groups lie together too
  Moves inside_, across_;
  std::vector<View<const std::byte, S>> arrived_;
  std::size_t all_ = 0;            ///< bytes of all encoded slices
  std::size_t largest_ = 0;        ///< bytes of the largest encoded slice
  std::size_t largest_group_ = 0;  ///< bytes of the largest group
  std::size_t last_all_ = 0;       ///< bytes of all slices, encoded for the all-gather
  std::size_t scratch_bytes_ = 0;
  View<std::byte, S> scratch_;  ///< of the codecs, in the workspace of the running reduce
  Arena<S> state_;
  View<float, S> residual_;
};

}  // namespace gradtool
