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
        offsets_(static_cast<std::size_t>(ranks)) {
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
      std::size_t bytes = 0;
      std::size_t expected = footprints_[static_cast<std::size_t>(take)].payload_bytes;
      in_phase(clock, Phase::encode, queue,
               [&] { bytes = encode(queue, part(give), give, context, hop, outgoing, scratch); });
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!exact_) {
          write_size(queue, bytes, out_size);
          comm.exchange(queue, next, out_size, previous, in_size);
          std::uint64_t stated = 0;
          read_back(queue, in_size, &stated);
          expected = static_cast<std::size_t>(stated);
          if (expected > slot_) throw Error{Fault::data, "a rank states a payload larger than the codec's bound"};
        }
        comm.exchange(queue, next, outgoing.first(bytes), previous, incoming.first(expected));
      });
      in_phase(clock, Phase::decode, queue,
               [&] { codec_->decode_add(queue, incoming.first(expected), 1.0F, part(take), scratch); });
    }

    const int own = (me + 1) % p;  // the segment that is complete here
    const auto own_slot = all.part(static_cast<std::size_t>(own) * slot_, slot_);
    std::size_t bytes = 0;
    in_phase(clock, Phase::encode, queue,
             [&] { bytes = encode(queue, part(own), own, context, p, own_slot, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] {
      write_size(queue, bytes, out_size);
      gather(comm, queue, own_slot.first(bytes), out_size, all, size_row);
    });
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
  /// Draws of different hops must not repeat: the hop enters the seed.
  std::size_t encode(Queue<S> queue, View<float, S> segment, int index, EncodeContext context, int hop,
                     View<std::byte, S> payload, View<std::byte, S> scratch) {
    context.key.seed ^= 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(hop + 1);
    const Footprint& plan = footprints_[static_cast<std::size_t>(index)];
    codec_->encode(queue, segment, context, payload, scratch);
    std::uint64_t bytes = plan.payload_bytes;
    if (!plan.exact) read_back(queue, payload.first(8), &bytes);
    payload_bytes_ += bytes;
    values_ += codec_->values_sent(segment.size());
    return static_cast<std::size_t>(bytes);
  }

  void gather(Communicator<S>& comm, Queue<S> queue, View<const std::byte, S> mine, View<const std::byte, S> mine_size,
              View<std::byte, S> all, View<std::byte, S> size_row) {
    const int p = comm.size();
    for (int r = 0; r < p; ++r) {
      const auto segment = static_cast<std::size_t>((r + 1) % p);
      sizes_[static_cast<std::size_t>(r)] = footprints_[segment].payload_bytes;
      offsets_[static_cast<std::size_t>(r)] = segment * slot_;
    }
    if (!exact_) {
      comm.all_gather(queue, mine_size, size_row);
      read_back(queue, size_row, sizes_.data());
    }
    comm.all_gather_v(queue, mine, sizes_, offsets_, all);
  }

  std::shared_ptr<const Codec<S>> codec_;
  std::size_t n_;
  int ranks_;
  std::vector<Footprint> footprints_;
  bool exact_ = true;
  std::size_t slot_ = 0;
  std::size_t scratch_ = 0;
  std::vector<std::uint64_t> sizes_, offsets_;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t values_ = 0;
};

}  // namespace gradtool
