#pragma once

#include <algorithm>

#include "lib/reduce/codec_reducer.hpp"

namespace gradtool {

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
        stated_{this->footprint_.exact ? 0 : sizes_.size()} {}

  /// A slot for every rank's payload, the codec's scratch, and the sizes.
  [[nodiscard]] std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(this->ranks_) * slot() + this->padded(this->footprint_.scratch_bytes) +
           this->padded(8 * sizes_.size()) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto all = carve.take(slot() * sizes_.size());
    const auto scratch = carve.take(this->footprint_.scratch_bytes);
    const auto size_row = carve.take(8 * sizes_.size());
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto mine = all.part(me * slot(), this->footprint_.payload_bytes);  // gathered in place

    in_phase(clock, Phase::encode, queue,
             [&] { this->encode_with_memory(queue, gradient, side, context, mine, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] {
      if (this->footprint_.exact) {
        std::fill(sizes_.begin(), sizes_.end(), this->footprint_.payload_bytes);
      } else {
        comm.all_gather(queue, mine.first(8), size_row);
        stated_.fetch(queue, size_row);
        const auto stated = stated_.wait(queue);
        for (const auto size : stated) {
          if (size > this->footprint_.payload_bytes) {
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
      this->codec_->decode_add_all(queue, parts_, 1.0F / static_cast<float>(comm.size()), gradient, scratch);
    });
    this->payload_bytes_ = sizes_[me];
    this->last_ = mine.first(sizes_[me]);
  }

 private:
  [[nodiscard]] std::size_t slot() const { return this->padded(this->footprint_.payload_bytes); }

  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<View<const std::byte, S>> parts_;
  ReadBack<S> stated_;
};

}  // namespace gradtool
