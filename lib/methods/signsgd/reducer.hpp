#pragma once

#include <algorithm>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/signsgd/format.hpp"

namespace gradtool {

// The steps of the reducer on either processor (signsgd.cpp, signsgd.cu), enqueued.

/// m := beta m + (1 - beta) g, element by element.
void move_momentum(Queue<Space::host> queue, HostView<const float> g, float beta, HostView<float> m);
void move_momentum(Queue<Space::cuda> queue, View<const float, Space::cuda> g, float beta, View<float, Space::cuda> m);
/// votes.own := the majority of all ranks' words, bit by bit; a tie gives 0. On a GPU Fault::usage for 2^16 ranks or
/// more.
void vote(Queue<Space::host> queue, const format::Votes& votes);
void vote(Queue<Space::cuda> queue, const format::Votes& votes);
/// view /= by.
void divide(Queue<Space::host> queue, HostView<float> view, float by);
void divide(Queue<Space::cuda> queue, View<float, Space::cuda> view, float by);

/// signSGD with majority vote (Bernstein et al. 2019). In place of the paper's server every rank owns a shard of the
/// words of signs, on which it counts the votes.
template <Space S>
class SignSgdReducer final : public CountingReducer<S> {
 public:
  explicit SignSgdReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        codec_{setup.codec},
        beta_{static_cast<float>(setup.spec.params.real("momentum"))},
        footprint_{codec_->plan(n_)},
        means_{setup.spec.params.is("scale", "mean") ? setup.layout.tensors.size() : 0},
        words_{footprint_.payload_bytes / 4 - means_},
        sizes_(ranks_),
        offsets_(ranks_),
        state_{beta_ > 0.0F ? this->padded(4 * n_) : 0},
        momentum_{state_.template take<float>(beta_ > 0.0F ? n_ : 0)} {
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment shard = ring_segment(words_, static_cast<int>(r), static_cast<int>(ranks_));
      sizes_[r] = 4 * shard.count;
      offsets_[r] = 4 * shard.first;
      slot_ = std::max(slot_, this->padded(sizes_[r]));
    }
    SignSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = false};
  }
  void reset(Queue<S> queue) override { fill_zero(queue, momentum_); }
  void visit_state(StateVisitor& visitor) override { visitor.values("momentum", momentum_); }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const auto payload = work.payload;
    const auto means = payload.first(4 * means_);
    const auto segment = work.segment.first(comm.scratch_bytes(means.size()));
    const auto signs = payload.part(means.size(), 4 * words_);
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto mine = signs.part(offsets_[me], sizes_[me]);

    in_phase(clock, Phase::encode, queue, [&] {
      View<const float, S> sent = gradient;
      if (!momentum_.empty()) {
        move_momentum(queue, gradient, beta_, momentum_);
        sent = momentum_;
      }
      codec_->encode(queue, sent, context, payload, work.scratch);
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t k = 1; k < ranks_; ++k) {
        const std::size_t to = (me + k) % ranks_;
        const std::size_t from = (me + ranks_ - k) % ranks_;
        comm.exchange(queue, static_cast<int>(to), signs.part(offsets_[to], sizes_[to]), static_cast<int>(from),
                      work.received.part(from * slot_, sizes_[me]));
      }
      if (!means.empty()) comm.all_reduce_sum(queue, means, Dtype::f32, segment);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      vote(queue, format::Votes{.ranks = ranks_,
                                .owner = me,
                                .own = reinterpret_cast<std::uint32_t*>(mine.data()),
                                .received = reinterpret_cast<const std::uint32_t*>(work.received.data()),
                                .slot = slot_ / 4,
                                .words = mine.size() / 4});
    });
    in_phase(clock, Phase::communicate, queue, [&] { comm.all_gather_v(queue, mine, sizes_, offsets_, signs); });
    in_phase(clock, Phase::decode, queue, [&] {
      divide(queue, View<float, S>{reinterpret_cast<float*>(means.data()), means_}, static_cast<float>(ranks_));
      fill_zero(queue, gradient);
      codec_->decode_add(queue, payload, 1.0F, gradient, work.scratch);
    });
    payload_bytes_ = footprint_.payload_bytes;
    values_sent_ = n_;
  }

 private:
  struct Workspace {
    Workspace(const SignSgdReducer& r, Scratch<S> pieces)
        : payload{pieces.take_bytes(r.footprint_.payload_bytes)},
          scratch{pieces.take_bytes(r.footprint_.scratch_bytes)},
          received{pieces.take_bytes(r.ranks_ * r.slot_)},
          segment{pieces.take_bytes(4 * r.means_)} {}

    View<std::byte, S> payload;   ///< this rank's own
    View<std::byte, S> scratch;   ///< of the codec
    View<std::byte, S> received;  ///< the other ranks' signs of the own shard
    View<std::byte, S> segment;   ///< what the communicator needs to add the means
  };

  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;
  using CountingReducer<S>::payload_bytes_;
  using CountingReducer<S>::values_sent_;

  std::shared_ptr<const Codec<S>> codec_;
  float beta_;
  Footprint footprint_;
  std::size_t means_;                           ///< at the start of a payload
  std::size_t words_;                           ///< of signs behind them
  std::size_t slot_ = 0;                        ///< bytes between two ranks' signs of the own shard
  std::vector<std::uint64_t> sizes_, offsets_;  ///< bytes of every shard of signs
  Arena<S> state_;
  View<float, S> momentum_;
};

}  // namespace gradtool
