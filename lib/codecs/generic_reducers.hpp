#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/codecs/sending_side.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// What the generic reducers share: the sending side, and the counts of the last step.
template <Space S>
class CodecReducer : public Reducer<S> {
 public:
  CodecReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, bool error_feedback, Queue<S> queue)
      : n_{n}, sender_{std::move(codec), n, ranks, error_feedback, queue} {}

  void reset(Queue<S> queue) override { sender_.reset(queue); }
  void visit_state(StateVisitor& visitor) override { sender_.visit_state(visitor); }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override {
    return sender_.codec().values_in(last_, n_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return sender_.residual(); }
  [[nodiscard]] std::string note() const override { return sender_.note(); }
  [[nodiscard]] std::vector<Tally> tallies() const override { return sender_.tallies(); }

 protected:
  [[nodiscard]] const Footprint& footprint() const { return sender_.footprint(); }

  std::size_t n_;
  SendingSide<S> sender_;
  View<const std::byte, S> last_;  ///< the payload of the last reduce, in the workspace
  std::uint64_t payload_bytes_ = 0;
};

/// Payloads are arrays that add: encode, ring all-reduce of the payload, decode once.
template <Space S>
class SumReducer final : public CodecReducer<S> {
 public:
  SumReducer(std::shared_ptr<const Codec<S>> codec, Dtype dtype, std::size_t n, int ranks, bool error_feedback,
             Queue<S> queue)
      : CodecReducer<S>{std::move(codec), n, ranks, error_feedback, queue}, dtype_{dtype} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return Workspace{this->footprint(), {}}.bytes; }

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
      fill_zero(queue, gradient);
      this->sender_.codec().decode_add(queue, payload, 1.0F / static_cast<float>(comm.size()), gradient, scratch);
    });
    this->payload_bytes_ = payload.size();
    this->last_ = payload;  // the sum by now, of payloads of one size
  }

 private:
  struct Workspace {
    Workspace(const Footprint& footprint, Scratch<S> pieces)
        : payload{pieces.take_bytes(footprint.payload_bytes)},
          scratch{pieces.take_bytes(footprint.scratch_bytes)},
          segment{pieces.take_bytes(footprint.payload_bytes)},
          bytes{pieces.bytes()} {}
    View<std::byte, S> payload, scratch;
    View<std::byte, S> segment;  ///< what an all-reduce receives into, at most as long as the payload
    std::size_t bytes;
  };

  Dtype dtype_;
};

/// The uncompressed all-reduce, by the library itself: in place, nothing to encode; the division by the number of ranks
/// is its decoding.
template <Space S>
class DenseReducer final : public Reducer<S> {
 public:
  explicit DenseReducer(std::size_t n) : n_{n} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return Arena<S>::padded_size(4 * n_); }
  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_native(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 4 * n_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return n_; }

 private:
  std::size_t n_;
};

/// Sends nothing; the result is zero.
template <Space S>
class SilentReducer final : public Reducer<S> {
 public:
  [[nodiscard]] std::size_t workspace_bytes() const override { return 0; }
  void reduce(Communicator<S>& /*comm*/, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> /*workspace*/, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue, [] {});
    in_phase(clock, Phase::decode, queue, [&] { fill_zero(queue, gradient); });
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return 0; }
};

/// All-gather the payloads, then decode all of them. Where sizes vary they are exchanged first, 8 bytes a rank, from
/// where they were written, and count as traffic like everything else. On a GPU the host waits once, for that row: the
/// collective behind it takes its counts from the host.
template <Space S>
class GatherReducer final : public CodecReducer<S> {
 public:
  GatherReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, bool error_feedback, Queue<S> queue)
      : CodecReducer<S>{std::move(codec), n, ranks, error_feedback, queue},
        sizes_(static_cast<std::size_t>(ranks)),
        offsets_(static_cast<std::size_t>(ranks)),
        parts_(static_cast<std::size_t>(ranks)),
        stated_{this->footprint().exact ? 0 : sizes_.size()} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return Workspace{*this, {}}.bytes; }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto all = work.all;
    const auto scratch = work.scratch;
    const auto size_row = work.size_row;
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto mine = all.part(me * slot(), this->footprint().payload_bytes);  // gathered in place

    in_phase(clock, Phase::encode, queue, [&] { this->sender_.encode(queue, gradient, side, context, mine, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] {
      if (this->footprint().exact) {
        std::fill(sizes_.begin(), sizes_.end(), this->footprint().payload_bytes);
      } else {
        comm.all_gather(queue, mine.first(8), size_row);
        stated_.fetch(queue, size_row);
        const auto stated = stated_.wait(queue);
        for (const auto size : stated) {
          if (size > this->footprint().payload_bytes) {
            throw Error{Fault::data, "a rank states a payload larger than the codec's bound"};
          }
        }
        std::copy(stated.begin(), stated.end(), sizes_.begin());
      }
      for (std::size_t r = 0; r < sizes_.size(); ++r) offsets_[r] = r * slot();
      comm.all_gather_v(queue, mine.first(sizes_[me]), sizes_, offsets_, all);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (std::size_t r = 0; r < sizes_.size(); ++r) parts_[r] = all.part(offsets_[r], sizes_[r]);
      this->sender_.codec().decode_add_all(queue, parts_, 1.0F / static_cast<float>(comm.size()), gradient, scratch);
    });
    this->payload_bytes_ = sizes_[me];
    this->last_ = mine.first(sizes_[me]);
  }

 private:
  struct Workspace {
    Workspace(const GatherReducer& reducer, Scratch<S> pieces)
        : all{pieces.take_bytes(reducer.slot() * reducer.sizes_.size())},
          scratch{pieces.take_bytes(reducer.footprint().scratch_bytes)},
          size_row{pieces.take_bytes(8 * reducer.sizes_.size())},
          bytes{pieces.bytes()} {}
    View<std::byte, S> all;       ///< a slot for every rank's payload
    View<std::byte, S> scratch;   ///< of the codec
    View<std::byte, S> size_row;  ///< the sizes of all payloads, where they vary
    std::size_t bytes;
  };

  /// What one rank's payload may take; a multiple of 256 bytes, so that every payload is aligned.
  [[nodiscard]] std::size_t slot() const { return Arena<S>::padded_size(this->footprint().payload_bytes); }

  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<View<const std::byte, S>> parts_;
  ReadBack<S> stated_;
};

/// Ring reduce-scatter on payloads: at every hop a rank decodes what it received onto its own segment and encodes the
/// sum again; then the finished segments are all-gathered encoded. Costs 2(p-1)/p payloads like a dense ring, but the
/// error of p-1 encodings adds up. Every rank decodes the same final payloads, so all end with the same bits.
template <Space S>
class HopReducer final : public Reducer<S> {
 public:
  HopReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks)
      : codec_{std::move(codec)},
        n_{n},
        ranks_{ranks},
        sizes_(static_cast<std::size_t>(ranks)),
        offsets_(static_cast<std::size_t>(ranks)),
        stated_{std::max<std::size_t>(2, sizes_.size())} {
    for (int i = 0; i < ranks; ++i) {
      footprints_.push_back(codec_->plan(ring_segment(n, i, ranks).count));
      slot_ = std::max(slot_, Arena<S>::padded_size(footprints_.back().payload_bytes));
      scratch_ = std::max(scratch_, footprints_.back().scratch_bytes);
      exact_ = exact_ && footprints_.back().exact;  // the same on every rank, unlike what one hop's two segments say
    }
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return Workspace{*this, {}}.bytes; }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto outgoing = work.outgoing;
    const auto incoming = work.incoming;
    const auto all = work.all;
    const auto scratch = work.scratch;
    const auto size_row = work.size_row;
    const auto out_size = work.out_size;
    const auto in_size = work.in_size;
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
      const int give = (me - hop + p) % p;
      const int take = (give + p - 1) % p;
      std::size_t bytes = footprint(give).payload_bytes;
      std::size_t expected = footprint(take).payload_bytes;
      in_phase(clock, Phase::encode, queue, [&] { encode(queue, part(give), give, context, hop, outgoing, scratch); });
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!exact_) {
          const auto mine = stated_size(queue, give, outgoing, out_size);
          comm.exchange(queue, next, mine, previous, in_size);
          stated_.fetch(queue, mine, 0);
          stated_.fetch(queue, in_size, 1);
          const auto stated = stated_.wait(queue);
          bytes = checked(stated[0], give);
          expected = checked(stated[1], take);
        }
        comm.exchange(queue, next, outgoing.first(bytes), previous, incoming.first(expected));
      });
      payload_bytes_ += bytes;
      in_phase(clock, Phase::decode, queue,
               [&] { codec_->decode_add(queue, incoming.first(expected), 1.0F, part(take), scratch); });
    }

    const int own = (me + 1) % p;  // the segment that is complete here
    const auto own_slot = all.part(static_cast<std::size_t>(own) * slot_, slot_);
    in_phase(clock, Phase::encode, queue, [&] { encode(queue, part(own), own, context, p, own_slot, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { gather(comm, queue, own_slot, all, out_size, size_row); });
    payload_bytes_ += sizes_[static_cast<std::size_t>(me)];
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      for (int i = 0; i < p; ++i) {
        const auto rank = static_cast<std::size_t>((i + p - 1) % p);  // who gathered segment i
        codec_->decode_add(queue, all.part(static_cast<std::size_t>(i) * slot_, sizes_[rank]),
                           1.0F / static_cast<float>(p), part(i), scratch);
      }
    });
  }

  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] typename Reducer<S>::Pattern pattern() const override { return {.shards = true, .ring = true}; }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  /// In all hops and the last payload.
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return values_; }

 private:
  struct Workspace {
    Workspace(const HopReducer& reducer, Scratch<S> pieces)
        : outgoing{pieces.take_bytes(reducer.slot_)},
          incoming{pieces.take_bytes(reducer.slot_)},
          all{pieces.take_bytes(reducer.slot_ * reducer.sizes_.size())},
          scratch{pieces.take_bytes(reducer.scratch_)},
          size_row{pieces.take_bytes(8 * reducer.sizes_.size())},
          out_size{pieces.take_bytes(8)},
          in_size{pieces.take_bytes(8)},
          bytes{pieces.bytes()} {}
    View<std::byte, S> outgoing, incoming;  ///< payloads of one hop
    View<std::byte, S> all;                 ///< the finished segments of all ranks, a slot each
    View<std::byte, S> scratch;             ///< of the codec
    View<std::byte, S> size_row;            ///< sizes of the finished segments, where they vary
    View<std::byte, S> out_size, in_size;   ///< of one hop's payloads
    std::size_t bytes;
  };

  [[nodiscard]] const Footprint& footprint(int segment) const { return footprints_[static_cast<std::size_t>(segment)]; }

  /// Draws of different hops must not repeat: the hop enters the seed.
  void encode(Queue<S> queue, View<float, S> values, int segment, EncodeContext context, int hop,
              View<std::byte, S> payload, View<std::byte, S> scratch) {
    context.key.seed ^= 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(hop + 1);
    codec_->encode(queue, values, context, payload.first(footprint(segment).payload_bytes), scratch);
    values_ += codec_->values_sent(values.size());
  }

  /// The 8 bytes that say how long the payload of a segment is: its own first ones, or `place` where it has none.
  [[nodiscard]] View<const std::byte, S> stated_size(Queue<S> queue, int segment, View<std::byte, S> payload,
                                                     View<std::byte, S> place) const {
    if (!footprint(segment).exact) return payload.first(8);
    write_size(queue, footprint(segment).payload_bytes, place);
    return place;
  }

  [[nodiscard]] std::size_t checked(std::uint64_t stated, int segment) const {
    if (stated > footprint(segment).payload_bytes) {
      throw Error{Fault::data, "a rank states a payload larger than the codec's bound"};
    }
    return static_cast<std::size_t>(stated);
  }

  void gather(Communicator<S>& comm, Queue<S> queue, View<std::byte, S> own_slot, View<std::byte, S> all,
              View<std::byte, S> out_size, View<std::byte, S> size_row) {
    const int p = comm.size();
    const auto segment_of = [p](int rank) { return (rank + 1) % p; };
    for (int r = 0; r < p; ++r) {
      const int segment = segment_of(r);
      sizes_[static_cast<std::size_t>(r)] = footprint(segment).payload_bytes;
      offsets_[static_cast<std::size_t>(r)] = static_cast<std::size_t>(segment) * slot_;
    }
    if (!exact_) {
      comm.all_gather(queue, stated_size(queue, segment_of(comm.rank()), own_slot, out_size), size_row);
      stated_.fetch(queue, size_row);
      const auto stated = stated_.wait(queue);
      for (int r = 0; r < p; ++r) {
        sizes_[static_cast<std::size_t>(r)] = checked(stated[static_cast<std::size_t>(r)], segment_of(r));
      }
    }
    const auto mine = static_cast<std::size_t>(sizes_[static_cast<std::size_t>(comm.rank())]);
    comm.all_gather_v(queue, own_slot.first(mine), sizes_, offsets_, all);
  }

  std::shared_ptr<const Codec<S>> codec_;
  std::size_t n_;
  int ranks_;
  std::vector<Footprint> footprints_;
  bool exact_ = true;
  std::size_t slot_ = 0;
  std::size_t scratch_ = 0;
  std::vector<std::uint64_t> sizes_, offsets_;
  ReadBack<S> stated_;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t values_ = 0;
};

}  // namespace gradtool

namespace gradtool::detail {

[[noreturn]] void throw_no_cuda(std::string_view codec);

/// Body of make_reducer for either space; included where a space's factory is instantiated.
template <Space S>
std::unique_ptr<Reducer<S>> build_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<S>> codec, Scheme scheme,
                                          const Layout& layout, int ranks, Queue<S> queue) {
  const CodecDescriptor& descriptor = *spec.descriptor;
  const std::size_t n = layout.elements;
  scheme = resolve(scheme, spec);
  if (scheme == Scheme::own) {
    const ReducerSetup<S> setup{spec, std::move(codec), layout, ranks, queue};
    if constexpr (S == Space::host) {
      return descriptor.make_host_reducer(setup);
    } else {
      if (descriptor.gpu.reducer == nullptr) throw_no_cuda(descriptor.name);
      return descriptor.gpu.reducer(setup);
    }
  }
  if (descriptor.aggregation == Aggregation::none) return std::make_unique<SilentReducer<S>>();
  if (scheme == Scheme::hop) return std::make_unique<HopReducer<S>>(std::move(codec), n, ranks);
  if (scheme == Scheme::gather) {
    return std::make_unique<GatherReducer<S>>(std::move(codec), n, ranks, spec.error_feedback, queue);
  }
  if (descriptor.name == "none") return std::make_unique<DenseReducer<S>>(n);
  return std::make_unique<SumReducer<S>>(std::move(codec), descriptor.sum_dtype, n, ranks, spec.error_feedback, queue);
}

}  // namespace gradtool::detail
