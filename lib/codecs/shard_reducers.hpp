#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/codecs/generic_reducers.hpp"

/// The ways of plain codecs that cut a vector into one shard a rank: `--reduce alltoall`, and the collectives of
/// sharded training (reduce-scatter, all-gather) and of experts on other ranks (all-to-all).
namespace gradtool {

/// A codec for vectors that encodes each shard by itself. Its payload is one slot for each
/// (PayloadSlots), so that error feedback works on the whole vector while every rank gets a segment's payload alone.
template <Space S>
class ShardedCodec final : public Codec<S> {
 public:
  ShardedCodec(std::shared_ptr<const Codec<S>> codec, const ShardCut& cut)
      : codec_{std::move(codec)}, cut_{cut}, slots_{PayloadSlots::of_shards(*codec_, cut)} {}

  [[nodiscard]] const PayloadSlots& slots() const { return slots_; }
  [[nodiscard]] const Codec<S>& of_shard() const { return *codec_; }
  [[nodiscard]] const ShardCut& cut() const { return cut_; }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == cut_.n, "a codec of shards serves vectors of one length");
    return {.payload_bytes = slots_.bytes(), .scratch_bytes = slots_.scratch_bytes()};
  }
  /// Draws of different shards must not repeat: the shard enters the seed.
  void encode(Queue<S> queue, View<const float, S> gradient, const EncodeContext& context, View<std::byte, S> payload,
              View<std::byte, S> scratch) const override {
    for (int i = 0; i < cut_.ranks; ++i) {
      EncodeContext own = context;
      own.key.seed ^= 0xD1B54A32D192ED03ULL * static_cast<std::uint64_t>(i + 1);
      codec_->encode(queue, shard(gradient, i), own, slots_.room(payload, i), scratch);
    }
  }
  void decode_add(Queue<S> queue, View<const std::byte, S> payload, float weight, View<float, S> out,
                  View<std::byte, S> scratch) const override {
    for (int i = 0; i < cut_.ranks; ++i)
      codec_->decode_add(queue, written(slots_.room(payload, i), i), weight, shard(out, i), scratch);
  }
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {}; }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override {
    std::size_t values = 0;
    for (int i = 0; i < cut_.ranks; ++i) values += codec_->values_sent(cut_.shard(i).count);
    return values;
  }
  [[nodiscard]] std::size_t values_in(View<const std::byte, S> payload, std::size_t /*n*/) const override {
    std::size_t values = 0;
    for (int i = 0; i < cut_.ranks; ++i)
      values += codec_->values_in(written(slots_.room(payload, i), i), cut_.shard(i).count);
    return values;
  }

 private:
  template <class V>
  [[nodiscard]] V shard(V vector, int i) const {
    const Segment s = cut_.shard(i);
    return vector.part(s.first, s.count);
  }
  /// A payload as decode_add takes it: on the host as long as it says that it is, on a GPU with all the room it had.
  [[nodiscard]] View<const std::byte, S> written(View<const std::byte, S> room, int i) const {
    std::uint64_t bytes = room.size();
    if constexpr (S == Space::host) {
      if (!slots_.footprint(i).exact) {
        std::memcpy(&bytes, room.data(), sizeof bytes);
        bytes = slots_.checked(bytes, i);
      }
    }
    return room.first(static_cast<std::size_t>(bytes));
  }

  std::shared_ptr<const Codec<S>> codec_;
  ShardCut cut_;
  PayloadSlots slots_;
};

/// A part of a vector that begins at a shard: side inputs are cut as the vector is.
template <Space S>
[[nodiscard]] SideInputs<S> side_of(const SideInputs<S>& side, Segment shard) {
  const auto cut = [shard](View<const float, S> view) {
    return view.empty() ? view : view.part(shard.first, shard.count);
  };
  return {.weight = cut(side.weight), .second_moment = cut(side.second_moment)};
}

/// Every rank sends each other one its encoded shard; the owner decodes all of them, its own included, adds them in
/// float32 in the order of ranks 0, 1, ..., p - 1 and multiplies the sum by 1/p in float32. For an all-reduce it
/// encodes that mean, and all ranks gather and decode it. What a value loses does not grow with the number of ranks: it
/// is rounded once on its way to the owner and once on its way back, while a ring rounds it at every hop. Sends (p-1)/p
/// payloads for each of the two. With error feedback the senders keep a residual of the whole vector, and the owner one
/// of the mean of its shard (Tang et al. 2019, DoubleSqueeze). The form of Megatron-LM's reduce-scatter with float32
/// sums (its pull request 1967), for any codec.
template <Space S>
class AllToAllReducer final : public CodecReducer<S> {
 public:
  /// `op`: all_reduce or reduce_scatter. `own_exact`: an owner adds its own shard as it is, before those of the others,
  /// instead of what its payload says; without error feedback. Shards of a reduce-scatter have a multiple of 1.
  AllToAllReducer(const std::shared_ptr<const Codec<S>>& codec, const ShardCut& cut, Feedback feedback, Queue<S> queue,
                  Collective op, bool own_exact)
      : AllToAllReducer{std::make_shared<ShardedCodec<S>>(codec, cut), codec, feedback, queue, op} {
    own_exact_ = own_exact;
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const int p = comm.size();
    const int me = comm.rank();
    const auto part = [&](int i) {
      const Segment s = shards_->cut().shard(i);
      return gradient.part(s.first, s.count);
    };
    const Codec<S>& codec = shards_->of_shard();
    in_phase(clock, Phase::encode, queue,
             [&] { this->sender_.encode(queue, gradient, side, context, work.exchanged.out, work.scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { exchange_.exchange(comm, queue, work.exchanged); });
    in_phase(clock, Phase::decode, queue, [&] {
      std::span<const View<const std::byte, S>> payloads = exchange_.payloads();
      if (own_exact_) {
        const auto mine = static_cast<std::size_t>(me);
        codec.decode_add_all(queue, payloads.first(mine), 1.0F, part(me), work.scratch);
        payloads = payloads.subspan(mine + 1);
      } else {
        fill_zero(queue, part(me));
      }
      codec.decode_add_all(queue, payloads, 1.0F, part(me), work.scratch);
      scale(queue, part(me), 1.0F / static_cast<float>(p));
    });
    this->last_ = work.exchanged.out;
    this->payload_bytes_ = exchange_.bytes_out();
    if (op_ == Collective::reduce_scatter) return;
    SendingSide<S>& owner = owner_of(me);
    in_phase(clock, Phase::encode, queue, [&] {
      EncodeContext own = context;
      own.key.seed ^= 0x9E3779B97F4A7C15ULL;  // not the draws of the shards
      owner.encode(queue, part(me), {}, own, gather_->slots().room(work.gathered->all, me), work.scratch);
    });
    in_phase(clock, Phase::communicate, queue, [&] { gather_->gather(comm, queue, *work.gathered); });
    in_phase(clock, Phase::decode, queue, [&] {
      if (!this->needs_result() && !common_payloads().empty()) return;
      fill_zero(queue, gradient);
      for (int i = 0; i < p; ++i)
        codec.decode_add(queue, gather_->payloads()[static_cast<std::size_t>(i)], 1.0F, part(i), work.scratch);
    });
    this->payload_bytes_ += gather_->size(me);
    mine_ = me;
  }
  void reset(Queue<S> queue) override {
    this->sender_.reset(queue);
    for (auto& owner : owners_) owner->reset(queue);
  }
  void visit_state(StateVisitor& visitor) override {
    this->sender_.visit_state(visitor);
    for (auto& owner : owners_) owner->visit_state(visitor);
  }
  [[nodiscard]] std::span<const View<const std::byte, S>> common_payloads() const override {
    // Rank 0 decodes for all only where its shard, decoded first, is as large as any: the slowest rank counts.
    const bool equal = shards_->cut().multiple == 1;
    return gather_ && equal ? gather_->payloads() : std::span<const View<const std::byte, S>>{};
  }
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override { return {.shards = true}; }
  /// Values of all shards and of the mean, counted like the payload's bytes.
  [[nodiscard]] std::uint64_t values_sent(Queue<S> queue) const override {
    const std::uint64_t shards = CodecReducer<S>::values_sent(queue);
    if (!gather_) return shards;
    const std::size_t n = shards_->cut().shard(mine_).count;
    return shards + shards_->of_shard().values_in(gather_->payloads()[static_cast<std::size_t>(mine_)], n);
  }

 private:
  AllToAllReducer(std::shared_ptr<ShardedCodec<S>> shards, const std::shared_ptr<const Codec<S>>& codec,
                  Feedback feedback, Queue<S> queue, Collective op)
      : CodecReducer<S>{shards, shards->cut().n, shards->cut().ranks, feedback, queue},
        shards_{std::move(shards)},
        op_{op},
        exchange_{shards_->slots()} {
    if (op == Collective::reduce_scatter) return;
    gather_.emplace(shards_->slots());
    // Which of the lengths of a shard this rank's has is known when it reduces: its rank is the communicator's.
    const auto own = [&](int i) {
      const std::size_t count = shards_->cut().shard(i).count;
      owner_sizes_.push_back(count);
      owners_.push_back(std::make_unique<SendingSide<S>>(codec, count, shards_->cut().ranks, feedback, queue));
    };
    for (const int i : {0, shards_->cut().ranks - 1}) own(i);
    for (int i = 0; i < shards_->cut().ranks; ++i) {
      if (std::find(owner_sizes_.begin(), owner_sizes_.end(), shards_->cut().shard(i).count) == owner_sizes_.end())
        own(i);
    }
  }

  struct Workspace {
    Workspace(const AllToAllReducer& reducer, Scratch<S> pieces)
        : exchanged{reducer.exchange_, pieces}, scratch{pieces.take_bytes(reducer.footprint().scratch_bytes)} {
      if (reducer.gather_) gathered.emplace(*reducer.gather_, pieces);
    }
    typename PayloadExchange<S>::Workspace exchanged;
    View<std::byte, S> scratch;  ///< of the codec
    std::optional<typename PayloadGather<S>::Workspace> gathered;
    std::size_t bytes = 0;
  };

  [[nodiscard]] SendingSide<S>& owner_of(int rank) {
    const auto same = std::find(owner_sizes_.begin(), owner_sizes_.end(), shards_->cut().shard(rank).count);
    return *owners_[static_cast<std::size_t>(same - owner_sizes_.begin())];
  }

  std::shared_ptr<ShardedCodec<S>> shards_;
  Collective op_;
  bool own_exact_ = false;
  PayloadExchange<S> exchange_;
  std::optional<PayloadGather<S>> gather_;
  std::vector<std::unique_ptr<SendingSide<S>>> owners_;  ///< of shards of each length
  std::vector<std::size_t> owner_sizes_;                 ///< these lengths
  int mine_ = 0;                                         ///< this rank's number, once it has reduced
};

/// Reduce-scatter of payloads that add: every shard is encoded by itself, the payloads are summed on their way to the
/// owners, who decode one each. A payload is padded to a multiple of 256 bytes.
template <Space S>
class SumReduceScatter final : public CodecReducer<S> {
 public:
  SumReduceScatter(const std::shared_ptr<const Codec<S>>& codec, Dtype dtype, std::size_t n, int ranks,
                   Feedback feedback, Queue<S> queue)
      : SumReduceScatter{
            std::make_shared<ShardedCodec<S>>(codec, ShardCut{n, ranks}), dtype, n, ranks, feedback, queue} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(this->footprint()); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{this->footprint(), Scratch<S>{workspace}};
    const int me = comm.rank();
    in_phase(clock, Phase::encode, queue, [&] {
      // The bytes between payloads are added too, so they must be valid numbers.
      fill_zero(queue, {reinterpret_cast<float*>(work.payload.data()), work.payload.size() / sizeof(float)});
      this->sender_.encode(queue, gradient, side, context, work.payload, work.scratch);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.reduce_scatter_sum(queue, work.payload, dtype_, work.segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      const Segment s = ring_segment(this->n_, me, comm.size());
      const auto shard = gradient.part(s.first, s.count);
      fill_zero(queue, shard);
      shards_->of_shard().decode_add(queue, shards_->slots().room(View<const std::byte, S>{work.payload}, me),
                                     1.0F / static_cast<float>(comm.size()), shard, work.scratch);
    });
    this->payload_bytes_ = work.payload.size();
    this->last_ = work.payload;
  }

 private:
  SumReduceScatter(std::shared_ptr<ShardedCodec<S>> shards, Dtype dtype, std::size_t n, int ranks, Feedback feedback,
                   Queue<S> queue)
      : CodecReducer<S>{shards, n, ranks, feedback, queue}, shards_{std::move(shards)}, dtype_{dtype} {}

  struct Workspace {
    Workspace(const Footprint& footprint, Scratch<S> pieces)
        : payload{pieces.take_bytes(footprint.payload_bytes)},
          scratch{pieces.take_bytes(footprint.scratch_bytes)},
          segment{pieces.take_bytes(footprint.payload_bytes)} {}
    View<std::byte, S> payload, scratch;
    View<std::byte, S> segment;  ///< what a sum receives into
  };

  std::shared_ptr<ShardedCodec<S>> shards_;
  Dtype dtype_;
};

/// Every rank encodes its shard; all ranks gather and decode the shards of all, their own included, so that all end
/// with the same bits. With error feedback a rank keeps what its shard lost, for a capture whose steps are differences.
template <Space S>
class ShardGather final : public Reducer<S> {
 public:
  ShardGather(const std::shared_ptr<const Codec<S>>& codec, std::size_t n, int ranks, Feedback feedback, Queue<S> queue)
      : n_{n}, codec_{codec}, gather_{PayloadSlots::of_shards(*codec, {n, ranks})} {
    for (const int i : {0, ranks - 1})
      senders_.push_back(
          std::make_unique<SendingSide<S>>(codec, ring_segment(n, i, ranks).count, ranks, feedback, queue));
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const int p = comm.size();
    const int me = comm.rank();
    const auto part = [&](int i) {
      const Segment s = ring_segment(n_, i, p);
      return gradient.part(s.first, s.count);
    };
    const bool shorter = part(me).size() == part(0).size();
    sender_ = senders_[shorter ? 0 : 1].get();
    const auto mine = gather_.slots().room(work.payloads.all, me);
    in_phase(clock, Phase::encode, queue, [&] {
      sender_->encode(queue, part(me), side_of(side, ring_segment(n_, me, p)), context, mine, work.scratch);
    });
    in_phase(clock, Phase::communicate, queue, [&] { gather_.gather(comm, queue, work.payloads); });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (int i = 0; i < p; ++i)
        codec_->decode_add(queue, gather_.payloads()[static_cast<std::size_t>(i)], 1.0F, part(i), work.scratch);
    });
    last_ = mine.first(gather_.size(me));
    shard_ = part(me).size();
  }

  void reset(Queue<S> queue) override {
    for (auto& sender : senders_) sender->reset(queue);
  }
  void visit_state(StateVisitor& visitor) override {
    for (auto& sender : senders_) sender->visit_state(visitor);
  }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return last_.size(); }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override {
    return codec_->values_in(last_, shard_);
  }
  [[nodiscard]] View<const float, S> residual() const override {
    return sender_ == nullptr ? View<const float, S>{} : sender_->residual();
  }
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override { return {.shards = true}; }

 private:
  struct Workspace {
    Workspace(const ShardGather& reducer, Scratch<S> pieces)
        : payloads{reducer.gather_, pieces}, scratch{pieces.take_bytes(reducer.gather_.slots().scratch_bytes())} {}
    typename PayloadGather<S>::Workspace payloads;
    View<std::byte, S> scratch;  ///< of the codec
  };

  std::size_t n_;
  std::shared_ptr<const Codec<S>> codec_;
  PayloadGather<S> gather_;
  std::vector<std::unique_ptr<SendingSide<S>>> senders_;  ///< for the two lengths that a shard may have
  SendingSide<S>* sender_ = nullptr;                      ///< that of this rank, once it has reduced
  View<const std::byte, S> last_;                         ///< the last payload, in the workspace
  std::size_t shard_ = 0;
};

/// Every rank encodes what it has for each other one, and decodes what it gets from each, its own part included.
template <Space S>
class ShardExchange final : public CodecReducer<S> {
 public:
  ShardExchange(const std::shared_ptr<const Codec<S>>& codec, std::size_t n, int ranks, Queue<S> queue)
      : ShardExchange{std::make_shared<ShardedCodec<S>>(codec, ShardCut{n, ranks}), n, ranks, queue} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    in_phase(clock, Phase::encode, queue,
             [&] { this->sender_.encode(queue, gradient, side, context, work.exchanged.out, work.scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { exchange_.exchange(comm, queue, work.exchanged); });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (int r = 0; r < comm.size(); ++r) {
        const Segment s = ring_segment(this->n_, r, comm.size());
        shards_->of_shard().decode_add(queue, exchange_.payloads()[static_cast<std::size_t>(r)], 1.0F,
                                       gradient.part(s.first, s.count), work.scratch);
      }
    });
    this->last_ = work.exchanged.out;
    this->payload_bytes_ = exchange_.bytes_out();
  }

 private:
  ShardExchange(std::shared_ptr<ShardedCodec<S>> shards, std::size_t n, int ranks, Queue<S> queue)
      : CodecReducer<S>{shards, n, ranks, Feedback::off, queue},
        shards_{std::move(shards)},
        exchange_{shards_->slots()} {
    expects(n % static_cast<std::size_t>(ranks) == 0, "an all-to-all needs as many elements for each rank");
  }

  struct Workspace {
    Workspace(const ShardExchange& reducer, Scratch<S> pieces)
        : exchanged{reducer.exchange_, pieces}, scratch{pieces.take_bytes(reducer.footprint().scratch_bytes)} {}
    typename PayloadExchange<S>::Workspace exchanged;
    View<std::byte, S> scratch;  ///< of the codec
  };

  std::shared_ptr<ShardedCodec<S>> shards_;
  PayloadExchange<S> exchange_;
};

}  // namespace gradtool
