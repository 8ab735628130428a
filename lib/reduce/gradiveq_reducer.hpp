#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "lib/reduce/gradiveq_layers.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/ops.hpp"

namespace gradtool {

/// GradiVeQ (Yu et al., NeurIPS 2018): cycles of sampling and compressed steps around the all-reduce.
/// `Compressor`, of either space, is what one rank knows of the layers (gradiveq_compressor.hpp), with
///   project(..., vote, worst)  also *vote := whether the local loss is above `worst`, where the view is not empty
///   share(queue, scratch, broadcast)  what ranks must hold alike, piece by piece
///   gather, scatter, copy      between the gradient, and rows of taps or a message
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
  /// A stretch of the gradient: tensors that are never compressed, or one layer.
  struct Piece {
    std::size_t first = 0;
    std::size_t count = 0;
    const gradiveq::Layer* layer = nullptr;
    std::size_t index = 0;  ///< of the layer
  };

  GradiVeqReducer(const ReducerSetup<S>& setup, const Params& params)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        samples_{static_cast<std::size_t>(params.integer("lt"))},
        compressed_{static_cast<std::size_t>(params.integer("lc"))},
        warmup_{params.integer("warmup")},
        vote_every_{params.is("vote", "on") ? static_cast<std::size_t>(params.integer("vote_every")) : 0},
        worst_loss_{params.real("vote_c") * std::sqrt(params.real("lambda"))},
        compressor_{gradiveq::layers_of(setup.layout, params), params, setup.queue},
        coefficients_(compressor_.layers().size(), nullptr),
        digests_(this->ranks_, 0) {
    std::size_t at = 0;
    for (std::size_t l = 0; l < compressor_.layers().size(); ++l) {
      const gradiveq::Layer& layer = compressor_.layers()[l];
      if (layer.first > at) pieces_.push_back({.first = at, .count = layer.first - at});
      const std::size_t elements = layer.filters * layer.taps;
      pieces_.push_back({.first = layer.first, .count = elements, .layer = &layer, .index = l});
      at = layer.first + elements;
    }
    if (at < this->n_) pieces_.push_back({.first = at, .count = this->n_ - at});
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
    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      gather_slices(queue, gradient.data(), room);
      count = walk<Write>(queue, gradient.data(), room.floats(), false);
    });
    this->payload_bytes_ = this->values_sent_ = 0;
    all_reduce(comm, queue, room.floats(), count, room, clock);
    quantised_->reduce(comm, queue, {room.sliced(), compressor_.sliced()}, {}, context, room.inner, clock);
    this->payload_bytes_ += quantised_->payload_bytes();
    this->values_sent_ += quantised_->values_sent(queue);
    in_phase(clock, Phase::decode, queue, [&] {
      scale(queue, {room.floats(), count}, 1.0F / static_cast<float>(comm.size()));
      walk<Read>(queue, gradient.data(), room.floats(), false);
      for (const gradiveq::Layer& layer : compressor_.layers())
        Compressor::scatter(queue, layer, room.sliced() + layer.sliced_at, 0, layer.slices * layer.slice_taps,
                            gradient.data());
    });
  }

  void gather_slices(Queue<S> queue, const float* gradient, const Room& room) const {
    for (const gradiveq::Layer& layer : compressor_.layers())
      Compressor::gather(queue, layer, gradient, 0, layer.slices * layer.slice_taps, room.sliced() + layer.sliced_at);
  }

  void take_sample(Queue<S> queue, View<float, S> gradient, const Room& room) {
    if (!quantised_) gather_slices(queue, gradient.data(), room);  // else they are there
    compressor_.sample(queue, room.sliced(), phase_);
  }

  /// Every rank fits the same bases to the same samples (section 2), so nothing is sent but a digest. Where digests
  /// differ, as they may on machines of different kinds, rank 0's bases are broadcast.
  void start_compressing(Communicator<S>& comm, Queue<S> queue, const Room& room, PhaseClock<S>& clock) {
    std::uint64_t digest = 0;
    in_phase(clock, Phase::decode, queue, [&] {
      compressor_.fit(queue, room.scratch);
      if (comm.size() > 1) digest = compressor_.digest(queue);
    });
    if (comm.size() == 1) return;
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
    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      count = walk<Write>(queue, gradient.data(), room.floats(), true);
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
        read_back(queue, as_bytes(View<const float, S>{room.floats() + --count, 1}), &votes);
        restart = 2.0F * votes > static_cast<float>(comm.size());
      }
      scale(queue, {room.floats(), count}, 1.0F / static_cast<float>(comm.size()));
      walk<Read>(queue, gradient.data(), room.floats(), true);
      compressor_.rebuild(queue, coefficients_, room.sliced(), room.scratch, gradient.data());
    });
    restarts_ += restart ? 1 : 0;
    return restart;
  }

  struct Write {};
  struct Read {};
  /// Between the gradient and a message, tensor by tensor: what is sent as it is. With `compressing`, finds the places
  /// of the coefficients on the way and leaves them to the compressor. Returns the floats of the message.
  template <class Way>
  std::size_t walk(Queue<S> queue, float* gradient, float* message, bool compressing) {
    constexpr bool kWrite = std::is_same_v<Way, Write>;
    std::size_t at = 0;
    for (const Piece& piece : pieces_) {
      const std::size_t d = piece.layer == nullptr || !compressing ? 0 : compressor_.components(piece.index);
      if (piece.layer == nullptr || (compressing && d == 0)) {
        float* outside = gradient + piece.first;
        float* inside = message + at;
        Compressor::copy(queue, kWrite ? outside : inside, piece.count, kWrite ? inside : outside);
        at += piece.count;
        continue;
      }
      const gradiveq::Layer& layer = *piece.layer;
      coefficients_[piece.index] = message + at;
      at += layer.slices * d;
      if (layer.rest() == 0) continue;
      const std::size_t sliced_taps = layer.slices * layer.slice_taps;
      if constexpr (kWrite)
        Compressor::gather(queue, layer, gradient, sliced_taps, layer.taps, message + at);
      else
        Compressor::scatter(queue, layer, message + at, sliced_taps, layer.taps, gradient);
      at += layer.rest();
    }
    return at;
  }

  std::size_t samples_, compressed_;  ///< L_t, L_c
  std::int64_t warmup_;
  std::size_t vote_every_;  ///< 0: never
  double worst_loss_;
  Compressor compressor_;
  std::vector<float*> coefficients_;  ///< of every layer in the message
  std::vector<std::uint64_t> digests_;
  std::vector<Piece> pieces_;
  std::unique_ptr<Reducer<S>> quantised_;
  std::size_t phase_ = 0;  ///< step within the cycle
  std::size_t warmup_steps_ = 0, sample_steps_ = 0, compressed_steps_ = 0, restarts_ = 0, disagreements_ = 0;
};

}  // namespace gradtool
