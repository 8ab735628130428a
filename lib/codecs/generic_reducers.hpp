#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/payload_moves.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/codecs/sending_side.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The part that the generic reducers share: the sending side, the running mean of EF21, and the counts of the last
/// step.
template <Space S>
class CodecReducer : public Reducer<S> {
 public:
  CodecReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, Feedback feedback, Queue<S> queue)
      : n_{n},
        sender_{std::move(codec), n, ranks, feedback, queue},
        state_{feedback.ef21() ? n * sizeof(float) : 0},
        mean_{state_.template take<float>(feedback.ef21() ? n : 0)} {
    fill_zero(queue, mean_);
  }

  void reset(Queue<S> queue) override {
    sender_.reset(queue);
    fill_zero(queue, mean_);
  }
  void visit_state(StateVisitor& visitor) override {
    sender_.visit_state(visitor);
    if (!mean_.empty()) visitor.values("mean", mean_);
  }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override {
    return sender_.codec().values_in(last_, n_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return sender_.residual(); }
  [[nodiscard]] View<const float, S> target(Queue<S> queue) override { return sender_.target(queue); }
  [[nodiscard]] std::string note() const override { return sender_.note(); }
  [[nodiscard]] std::vector<Tally> tallies() const override { return sender_.tallies(); }

 protected:
  [[nodiscard]] const Footprint& footprint() const { return sender_.footprint(); }

  /// gradient := the mean of what ranks have sent. `add_decoded` adds the mean of this step's payloads to a view: with
  /// EF21 to the mean of all steps before, which every rank has with the same bits.
  template <class AddDecoded>
  void finish(Queue<S> queue, View<float, S> gradient, const AddDecoded& add_decoded) {
    fill_zero(queue, gradient);
    if (mean_.empty()) return add_decoded(gradient);
    add_decoded(mean_);
    add(queue, mean_, gradient);
  }

  std::size_t n_;
  SendingSide<S> sender_;
  Arena<S> state_;
  View<float, S> mean_;            ///< EF21: the mean over ranks of what their payloads so far add up to
  View<const std::byte, S> last_;  ///< the payload of the last reduce, in the workspace
  std::uint64_t payload_bytes_ = 0;
};

/// Payloads are arrays that add: encode, ring all-reduce of the payload, decode once.
template <Space S>
class SumReducer final : public CodecReducer<S> {
 public:
  SumReducer(std::shared_ptr<const Codec<S>> codec, Dtype dtype, std::size_t n, int ranks, Feedback feedback,
             Queue<S> queue)
      : CodecReducer<S>{std::move(codec), n, ranks, feedback, queue}, dtype_{dtype} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(this->footprint()); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{this->footprint(), Scratch<S>{workspace}};
    const auto payload = work.payload;
    const auto scratch = work.scratch;
    const auto segment = work.segment;
    in_phase(clock, Phase::encode, queue,
             [&] { this->sender_.encode(queue, gradient, side, context, payload, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { comm.all_reduce_sum(queue, payload, dtype_, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      this->finish(queue, gradient, [&](View<float, S> out) {
        this->sender_.codec().decode_add(queue, payload, 1.0F / static_cast<float>(comm.size()), out, scratch);
      });
    });
    this->payload_bytes_ = payload.size();
    this->last_ = payload;  // the sum by now, of payloads of one size
  }

 private:
  struct Workspace {
    Workspace(const Footprint& footprint, Scratch<S> pieces)
        : payload{pieces.take_bytes(footprint.payload_bytes)},
          scratch{pieces.take_bytes(footprint.scratch_bytes)},
          segment{pieces.take_bytes(footprint.payload_bytes)} {}
    View<std::byte, S> payload, scratch;
    View<std::byte, S> segment;  ///< what an all-reduce receives into, at most as long as the payload
  };

  Dtype dtype_;
};

/// A reducer of `none` in the place of a codec's, for a unit below its gate.
template <class Uncompressed>
class BelowGate final : public Uncompressed {
 public:
  using Uncompressed::Uncompressed;
  [[nodiscard]] bool reached() const override { return false; }
  [[nodiscard]] std::string note() const override { return "units below the gate went uncompressed"; }
};

/// Sends nothing; the result, of a reduce-scatter this rank's shard, is zero.
template <Space S>
class SilentReducer final : public Reducer<S> {
 public:
  explicit SilentReducer(Collective op) : op_{op} {}
  [[nodiscard]] std::size_t workspace_bytes() const override { return 0; }
  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> /*workspace*/, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue, [] {});
    const Segment mine = op_ == Collective::reduce_scatter ? ring_segment(gradient.size(), comm.rank(), comm.size())
                                                           : Segment{0, gradient.size()};
    in_phase(clock, Phase::decode, queue, [&] { fill_zero(queue, gradient.part(mine.first, mine.count)); });
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return 0; }

 private:
  Collective op_;
};

/// All-gather the payloads, then decode all of them. A method whose result is not the mean of what the payloads decode
/// to derives a reducer of its own, which replaces `combine`.
template <Space S>
class GatherReducer : public CodecReducer<S> {
 public:
  /// `combine_bytes`: what `combine` works in, where that is more than the codec's scratch.
  GatherReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, Feedback feedback, Queue<S> queue,
                std::size_t combine_bytes = 0)
      : CodecReducer<S>{std::move(codec), n, ranks, feedback, queue},
        scratch_bytes_{std::max(this->footprint().scratch_bytes, combine_bytes)},
        gather_{PayloadSlots{std::vector<Footprint>(static_cast<std::size_t>(ranks), this->sender_.footprint())}} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto mine = gather_.slots().room(work.payloads.all, comm.rank());  // gathered in place
    in_phase(clock, Phase::encode, queue,
             [&] { this->sender_.encode(queue, gradient, side, context, mine, work.scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { gather_.gather(comm, queue, work.payloads); });
    in_phase(clock, Phase::decode, queue, [&] {
      if (this->needs_result() || common_payloads().empty()) combine(queue, gather_.payloads(), gradient, work.scratch);
    });
    this->payload_bytes_ = gather_.size(comm.rank());
    this->last_ = mine.first(gather_.size(comm.rank()));
  }

  [[nodiscard]] std::span<const View<const std::byte, S>> common_payloads() const override {
    return this->mean_.empty() ? gather_.payloads() : std::span<const View<const std::byte, S>>{};
  }

 protected:
  /// result := what the payloads of all ranks, in the order of ranks, stand for together: here the mean. Keeps nothing,
  /// but for the mean of EF21.
  virtual void combine(Queue<S> queue, std::span<const View<const std::byte, S>> payloads, View<float, S> result,
                       View<std::byte, S> scratch) {
    this->finish(queue, result, [&](View<float, S> out) {
      this->sender_.codec().decode_add_all(queue, payloads, 1.0F / static_cast<float>(payloads.size()), out, scratch);
    });
  }

 private:
  struct Workspace {
    Workspace(const GatherReducer& reducer, Scratch<S> pieces)
        : payloads{reducer.gather_, pieces}, scratch{pieces.take_bytes(reducer.scratch_bytes_)} {}
    typename PayloadGather<S>::Workspace payloads;
    View<std::byte, S> scratch;  ///< of the codec, or of `combine`
  };

  std::size_t scratch_bytes_;
  PayloadGather<S> gather_;
};

/// Ring reduce-scatter on payloads: at every hop a rank decodes what it received onto its own segment and encodes the
/// sum again; then, where all ranks want the whole, the finished segments are all-gathered encoded. Costs (p-1)/p
/// payloads for each of the two like a dense ring, but the error of p-1 encodings adds up. Every rank decodes the same
/// final payloads, so all end with the same bits. Segment s is added in the order of ranks s + 1, s + 2, ..., s.
template <Space S>
class HopReducer final : public Reducer<S> {
 public:
  /// `op`: all_reduce, or reduce_scatter, which leaves out the all-gather.
  HopReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, Collective op = Collective::all_reduce)
      : codec_{std::move(codec)}, n_{n}, op_{op}, gather_{PayloadSlots::of_shards(*codec_, {n, ranks})} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto outgoing = work.outgoing;
    const auto incoming = work.incoming;
    const auto scratch = work.scratch;
    const int p = comm.size();
    const int me = comm.rank();
    const int next = (me + 1) % p;
    const int previous = (me + p - 1) % p;
    const auto part = [&](int i) {
      const Segment s = ring_segment(n_, i, p);
      return gradient.part(s.first, s.count);
    };
    payload_bytes_ = 0;
    values_ = 0;

    for (int hop = 0; hop + 1 < p; ++hop) {
      const int give = (me - 1 - hop + 2 * p) % p;
      const int take = (give + p - 1) % p;
      std::size_t bytes = slots().footprint(give).payload_bytes;
      std::size_t expected = slots().footprint(take).payload_bytes;
      in_phase(clock, Phase::encode, queue, [&] { encode(queue, part(give), give, context, hop, outgoing, scratch); });
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!slots().exact()) {
          const auto mine = stated_size(queue, give, outgoing, work.out_size);
          comm.exchange(queue, next, mine, previous, work.in_size);
          stated_.fetch(queue, mine, 0);
          stated_.fetch(queue, work.in_size, 1);
          const auto stated = stated_.wait(queue);
          bytes = slots().checked(stated[0], give);
          expected = slots().checked(stated[1], take);
        }
        comm.exchange(queue, next, outgoing.first(bytes), previous, incoming.first(expected));
      });
      payload_bytes_ += bytes;
      in_phase(clock, Phase::decode, queue,
               [&] { codec_->decode_add(queue, incoming.first(expected), 1.0F, part(take), scratch); });
    }

    const float share = 1.0F / static_cast<float>(p);
    if (op_ == Collective::reduce_scatter) {
      in_phase(clock, Phase::decode, queue, [&] { scale(queue, part(me), share); });
      return;
    }
    const auto own_slot = slots().room(work.payloads.all, me);
    in_phase(clock, Phase::encode, queue, [&] { encode(queue, part(me), me, context, p, own_slot, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { gather_.gather(comm, queue, work.payloads); });
    payload_bytes_ += gather_.size(me);
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (int i = 0; i < p; ++i)
        codec_->decode_add(queue, gather_.payloads()[static_cast<std::size_t>(i)], share, part(i), scratch);
    });
  }

  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = true};
  }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  /// In all hops and the last payload.
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return values_; }

 private:
  struct Workspace {
    Workspace(const HopReducer& reducer, Scratch<S> pieces)
        : outgoing{pieces.take_bytes(reducer.slots().slot_bytes())},
          incoming{pieces.take_bytes(reducer.slots().slot_bytes())},
          payloads{reducer.gather_, pieces},
          scratch{pieces.take_bytes(reducer.slots().scratch_bytes())},
          out_size{pieces.take_bytes(8)},
          in_size{pieces.take_bytes(8)} {}
    View<std::byte, S> outgoing, incoming;          ///< payloads of one hop
    typename PayloadGather<S>::Workspace payloads;  ///< the finished segments of all ranks
    View<std::byte, S> scratch;                     ///< of the codec
    View<std::byte, S> out_size, in_size;           ///< of one hop's payloads
  };

  [[nodiscard]] const PayloadSlots& slots() const { return gather_.slots(); }

  /// Draws of different hops must not repeat: the hop enters the seed.
  void encode(Queue<S> queue, View<float, S> values, int segment, EncodeContext context, int hop,
              View<std::byte, S> payload, View<std::byte, S> scratch) {
    context.key.seed ^= 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(hop + 1);
    codec_->encode(queue, values, context, payload.first(slots().footprint(segment).payload_bytes), scratch);
    values_ += codec_->values_sent(values.size());
  }

  /// The 8 bytes that say how long the payload of a segment is: its own first ones, or `place` where it has none.
  [[nodiscard]] View<const std::byte, S> stated_size(Queue<S> queue, int segment, View<std::byte, S> payload,
                                                     View<std::byte, S> place) const {
    if (!slots().footprint(segment).exact) return payload.first(8);
    write_size(queue, slots().footprint(segment).payload_bytes, place);
    return place;
  }

  std::shared_ptr<const Codec<S>> codec_;
  std::size_t n_;
  Collective op_;
  PayloadGather<S> gather_;
  ReadBack<S> stated_{2};  ///< of one hop's payloads
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t values_ = 0;
};

}  // namespace gradtool
