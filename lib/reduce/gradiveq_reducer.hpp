#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lib/reduce/gradiveq_message.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/ops.hpp"

namespace gradtool {

/// GradiVeQ (Yu et al., NeurIPS 2018): cycles of sampling and compressed steps around the all-reduce.
/// `Compressor`, of either space, is what one rank knows of the layers (gradiveq_compressor.hpp), with
///   project(..., vote, worst)  also *vote := whether the local loss is above `worst`, where the view is not empty
///   rebuild(..., share)        from coefficients times `share`, which it may overwrite
///   share(queue, scratch, broadcast)  what ranks must hold alike, piece by piece
///   Moves                      ranges of taps, from the gradient to rows of them or to a message, and back
template <Space S, class Compressor>
class GradiVeqReducer final : public CountingReducer<S> {
 public:
  explicit GradiVeqReducer(const ReducerSetup<S>& setup) : GradiVeqReducer{setup, setup.spec.params} {}

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return this->padded(4 * compressor_.sliced()) + 2 * message_bytes() + this->padded(compressor_.scratch_bytes()) +
           (quantised_ ? this->padded(quantised_->workspace_bytes()) : 0) + this->padded(8 * this->ranks_) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    Room room{.slices = carve.take(4 * compressor_.sliced()), .message = carve.take(message_bytes())};
    room.segment = carve.take(message_bytes());
    room.scratch = carve.take(compressor_.scratch_bytes());
    room.digests = carve.take(8 * this->ranks_);
    if (quantised_) room.inner = carve.take(quantised_->workspace_bytes());

    const bool warm = context.iteration >= warmup_;
    if (compressor_.layers().empty() || !warm) {
      send_plain(comm, queue, gradient, room, clock);
      if (!warm) ++warmup_steps_;
      return;
    }
    if (phase_ < samples_) {
      if (quantised_)
        send_quantised(comm, queue, gradient, side, context, room, clock);
      else
        send_plain(comm, queue, gradient, room, clock);
      in_phase(clock, Phase::decode, queue, [&] { take_sample(queue, gradient, room); });
      ++sample_steps_;
      if (++phase_ == samples_) start_compressing(comm, queue, room, clock);
      return;
    }
    const bool restart = send_compressed(comm, queue, gradient, room, clock);
    ++compressed_steps_;
    if (++phase_ == samples_ + compressed_ || restart) phase_ = 0;
  }

  void reset(Queue<S> queue) override {
    if (quantised_) quantised_->reset(queue);
    phase_ = warmup_steps_ = sample_steps_ = compressed_steps_ = restarts_ = disagreements_ = 0;
  }

  [[nodiscard]] std::string note() const override {
    if (compressor_.layers().empty()) return {};
    if (sample_steps_ == 0) return fmt::format("warm-up only: {} steps before iteration {}", warmup_steps_, warmup_);
    if (compressed_steps_ == 0) return fmt::format("sampling only: {} steps of lt={}", sample_steps_, samples_);
    std::size_t bypassed = 0;
    for (std::size_t l = 0; l < compressor_.layers().size(); ++l) bypassed += compressor_.components(l) == 0 ? 1 : 0;
    std::string text =
        fmt::format("{} of {} steps compressed", compressed_steps_, warmup_steps_ + sample_steps_ + compressed_steps_);
    if (bypassed > 0) text += fmt::format(", {} of {} convolutions bypassed", bypassed, compressor_.layers().size());
    if (restarts_ > 0) text += fmt::format(", {} restarts by vote", restarts_);
    if (disagreements_ > 0) text += fmt::format(", rank 0's bases broadcast {} times", disagreements_);
    return text;
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    double compressed = 0.0;
    for (std::size_t l = 0; l < compressor_.layers().size(); ++l) {
      const auto& layer = compressor_.layers()[l];
      if (compressor_.components(l) > 0) compressed += static_cast<double>(layer.sliced());
    }
    return {{"elements under a basis", compressed, static_cast<double>(this->n_)}};
  }

 private:
  /// The workspace of one call.
  struct Room {
    View<std::byte, S> slices, message, segment{}, scratch{}, digests{}, inner{};
    [[nodiscard]] float* sliced() const { return reinterpret_cast<float*>(slices.data()); }
    [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(message.data()); }
  };

  GradiVeqReducer(const ReducerSetup<S>& setup, const Params& params)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        samples_{static_cast<std::size_t>(params.integer("lt"))},
        compressed_{static_cast<std::size_t>(params.integer("lc"))},
        warmup_{params.integer("warmup")},
        vote_every_{params.is("vote", "on") ? static_cast<std::size_t>(params.integer("vote_every")) : 0},
        worst_loss_{params.real("vote_c") * std::sqrt(params.real("lambda"))},
        compressor_{gradiveq::layers_of(setup.layout, params), params, setup.queue},
        sampling_{compressor_.layers(), this->n_},
        compressing_{compressor_.layers(), this->n_},
        slices_{gradiveq::slice_ranges(compressor_.layers())},
        beside_slices_{sampling_.every_range()},
        beside_coefficients_{compressing_.every_range()},
        coefficients_(compressor_.layers().size(), nullptr),
        digests_(this->ranks_, 0) {
    sampling_.leave_slices();
    slices_.choose(setup.queue, gradiveq::slice_ranges(compressor_.layers()));
    beside_slices_.choose(setup.queue, sampling_.ranges());
    if (params.is("sampling", "qsgd") && compressor_.sliced() > 0) {
      const auto layout = Layout::flat(compressor_.sliced());
      const CodecSpec spec = parse_codec("qsgd:bits=4");  // section 3
      quantised_ = make_reducer<S>(spec, make_codec<S>(spec, layout), Scheme::hop, layout, setup.ranks, setup.queue);
    }
  }

  /// Room for the whole gradient and a vote.
  [[nodiscard]] std::size_t message_bytes() const { return this->padded(4 * (this->n_ + 1)); }

  void all_reduce(Communicator<S>& comm, Queue<S> queue, float* values, std::size_t count, const Room& room,
                  PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      if (count > 0)
        comm.all_reduce_sum(queue, as_writable_bytes(View<float, S>{values, count}), Dtype::f32, room.segment);
    });
    this->payload_bytes_ += 4 * count;
    this->values_sent_ += count;
  }

  void send_plain(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const Room& room,
                  PhaseClock<S>& clock) {
    this->payload_bytes_ = this->values_sent_ = 0;
    all_reduce(comm, queue, gradient.data(), gradient.size(), room, clock);
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
  }

  /// A sampling step: the slices by 4-bit QSGD with decode, add, encode at every hop; all else in a sum of its own.
  void send_quantised(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
                      const EncodeContext& context, const Room& room, PhaseClock<S>& clock) {
    in_phase(clock, Phase::encode, queue, [&] {
      slices_.gather(queue, gradient.data(), room.sliced());
      beside_slices_.gather(queue, gradient.data(), room.floats());
    });
    this->payload_bytes_ = this->values_sent_ = 0;
    all_reduce(comm, queue, room.floats(), sampling_.floats(), room, clock);
    quantised_->reduce(comm, queue, {room.sliced(), compressor_.sliced()}, {}, context, room.inner, clock);
    this->payload_bytes_ += quantised_->payload_bytes();
    this->values_sent_ += quantised_->values_sent(queue);
    in_phase(clock, Phase::decode, queue, [&] {
      beside_slices_.scatter(queue, room.floats(), 1.0F / static_cast<float>(comm.size()), gradient.data());
      slices_.scatter(queue, room.sliced(), 1.0F, gradient.data());
    });
  }

  void take_sample(Queue<S> queue, View<float, S> gradient, const Room& room) {
    if (!quantised_) slices_.gather(queue, gradient.data(), room.sliced());  // else they are there
    compressor_.sample(queue, room.sliced(), phase_);
  }

  void start_compressing(Communicator<S>& comm, Queue<S> queue, const Room& room, PhaseClock<S>& clock) {
    std::uint64_t digest = 0;
    in_phase(clock, Phase::decode, queue, [&] {
      compressor_.fit(queue, room.scratch);
      if (comm.size() > 1) digest = compressor_.digest(queue);
    });
    if (comm.size() > 1) agree(comm, queue, room, digest, clock);
    in_phase(clock, Phase::decode, queue, [&] {
      compressing_.compress(compressor_.components());
      beside_coefficients_.choose(queue, compressing_.ranges());
    });
  }

  /// Every rank fits the same bases to the same samples (section 2), so nothing is sent but a digest. Where digests
  /// differ, as they may on machines of different kinds, rank 0's bases are broadcast.
  void agree(Communicator<S>& comm, Queue<S> queue, const Room& room, std::uint64_t digest, PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto mine = room.digests.part(8 * static_cast<std::size_t>(comm.rank()), 8);
      write_size(queue, digest, mine);
      comm.all_gather(queue, mine, room.digests);
      this->payload_bytes_ += 8;
      read_back(queue, room.digests, digests_.data());
      if (std::all_of(digests_.begin(), digests_.end(), [&](std::uint64_t one) { return one == digests_[0]; })) return;
      ++disagreements_;
      compressor_.share(queue, room.scratch, [&](View<std::byte, S> piece) { comm.broadcast(queue, piece, 0); });
    });
  }

  /// Returns whether the ranks voted for new samples.
  bool send_compressed(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const Room& room,
                       PhaseClock<S>& clock) {
    const bool voting = vote_every_ > 0 && (phase_ - samples_ + 1) % vote_every_ == 0;
    std::size_t count = compressing_.floats();
    for (std::size_t l = 0; l < coefficients_.size(); ++l)
      coefficients_[l] = room.floats() + compressing_.coefficients_at(l);
    in_phase(clock, Phase::encode, queue, [&] {
      beside_coefficients_.gather(queue, gradient.data(), room.floats());
      const View<float, S> vote{room.floats() + count, voting ? 1U : 0U};
      compressor_.project(queue, gradient.data(), coefficients_, room.sliced(), room.scratch, vote, worst_loss_);
      count += vote.size();
    });
    this->payload_bytes_ = this->values_sent_ = 0;
    all_reduce(comm, queue, room.floats(), count, room, clock);
    bool restart = false;
    in_phase(clock, Phase::decode, queue, [&] {
      if (voting) {
        float votes = 0.0F;
        read_back(queue, as_bytes(View<const float, S>{room.floats() + compressing_.floats(), 1}), &votes);
        restart = 2.0F * votes > static_cast<float>(comm.size());
      }
      const float share = 1.0F / static_cast<float>(comm.size());
      beside_coefficients_.scatter(queue, room.floats(), share, gradient.data());
      compressor_.rebuild(queue, coefficients_, share, room.sliced(), room.scratch, gradient.data());
    });
    restarts_ += restart ? 1 : 0;
    return restart;
  }

  std::size_t samples_, compressed_;  ///< L_t, L_c
  std::int64_t warmup_;
  std::size_t vote_every_;  ///< 0: never
  double worst_loss_;
  Compressor compressor_;
  gradiveq::Message sampling_, compressing_;
  typename Compressor::Moves slices_, beside_slices_, beside_coefficients_;
  std::vector<float*> coefficients_;  ///< of every layer in the message
  std::vector<std::uint64_t> digests_;
  std::unique_ptr<Reducer<S>> quantised_;
  std::size_t phase_ = 0;  ///< step within the cycle
  std::size_t warmup_steps_ = 0, sample_steps_ = 0, compressed_steps_ = 0, restarts_ = 0, disagreements_ = 0;
};

}  // namespace gradtool
