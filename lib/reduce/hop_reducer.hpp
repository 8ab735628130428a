#pragma once

#include <algorithm>

#include "lib/reduce/codec_reducer.hpp"

namespace gradtool {

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

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return (sizes_.size() + 2) * slot_ + Arena<S>::padded_size(scratch_) + Arena<S>::padded_size(8 * sizes_.size()) +
           1024;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto outgoing = carve.take(slot_);
    const auto incoming = carve.take(slot_);
    const auto all = carve.take(slot_ * sizes_.size());
    const auto scratch = carve.take(scratch_);
    const auto size_row = carve.take(8 * sizes_.size());
    const auto out_size = carve.take(8);
    const auto in_size = carve.take(8);
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
