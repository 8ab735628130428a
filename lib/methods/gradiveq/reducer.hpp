#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/gradiveq/compressor.hpp"
#include "lib/methods/gradiveq/layers.hpp"

namespace gradtool {

/// GradiVeQ (Yu et al., NeurIPS 2018): cycles of sampling and compressed steps around the all-reduce, on either
/// processor. Of gradiveq::Compressor<S> it calls, beside what CompressorBase has,
///   scratch_bytes()                what the calls with a scratch work in
///   sample(queue, slices, index)   takes an aggregated gradient, given as all slices, as sample `index` of a cycle
///   fit(queue, scratch)            ends a cycle's samples: makes bases, components() and means of its compressed steps
///   digest(queue)                  a number that differs where bases or means differ
///   share(queue, scratch, broadcast)  calls broadcast(bytes) for all that ranks must hold alike: components, bases,
///   means project(queue, gradient, y, slices, scratch, vote, worst)  y[layer] := S·d coefficients, slice by slice, of
///   each
///                                  layer with components; where `vote` is not empty, vote[0] := 1 if the local loss
///                                  (eq. 7) is above `worst`, else 0
///   rebuild(queue, y, share, slices, scratch, gradient)  the slices of these layers := U (share y) + mu; y may change
/// `slices` is memory for all slices.
template <Space S>
class GradiVeqReducer final : public CountingReducer<S> {
 public:
  explicit GradiVeqReducer(const ReducerSetup<S>& setup) : GradiVeqReducer{setup, setup.spec.params} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> memory, PhaseClock<S>& clock) override {
    const Workspace workspace{*this, Scratch<S>{memory}};
    const bool warm = context.iteration >= warmup_;
    if (compressor_.layers().empty() || !warm) {
      this->reduce_plain(comm, queue, clock, gradient, workspace.segment);
      if (!warm) ++warmup_steps_;
      return;
    }
    if (phase_ < samples_) {
      if (quantised_) {
        send_quantised(comm, queue, gradient, context, workspace, clock);
      } else {
        this->reduce_plain(comm, queue, clock, gradient, workspace.segment);
      }
      in_phase(clock, Phase::decode, queue, [&] { take_sample(queue, gradient, workspace); });
      ++sample_steps_;
      if (++phase_ == samples_) start_compressing(comm, queue, workspace, clock);
      return;
    }
    const bool restart = send_compressed(comm, queue, gradient, workspace, clock);
    ++compressed_steps_;
    if (++phase_ == samples_ + compressed_ || restart) phase_ = 0;
  }

  void reset(Queue<S> queue) override {
    if (quantised_) quantised_->reset(queue);
    phase_ = warmup_steps_ = sample_steps_ = compressed_steps_ = restarts_ = disagreements_ = 0;
  }
  void visit_state(StateVisitor& visitor) override {
    if constexpr (S == Space::host) {
      if (quantised_) quantised_->visit_state(visitor);
      compressor_.visit_state(visitor);
      for (std::size_t* count :
           {&phase_, &warmup_steps_, &sample_steps_, &compressed_steps_, &restarts_, &disagreements_})
        visitor.value("steps", *count);
      if (!visitor.restores() || phase_ < samples_) return;
      compressing_.compress(compressor_.components());
      beside_coefficients_.choose({}, compressing_.ranges());
    } else {
      Reducer<S>::visit_state(visitor);
    }
  }

  [[nodiscard]] bool reached() const override { return compressed_steps_ > 0; }
  [[nodiscard]] std::string note() const override {
    if (compressor_.layers().empty()) return {};
    const auto text_of = [](auto number) { return std::to_string(number); };
    if (sample_steps_ == 0)
      return "warm-up only: " + text_of(warmup_steps_) + " steps before iteration " + text_of(warmup_);
    if (compressed_steps_ == 0) return "sampling only: " + text_of(sample_steps_) + " steps of lt=" + text_of(samples_);
    const auto components = compressor_.components();
    const auto bypassed = std::count(components.begin(), components.end(), std::uint64_t{0});
    std::string text = text_of(compressed_steps_) + " of " +
                       text_of(warmup_steps_ + sample_steps_ + compressed_steps_) + " steps compressed";
    if (bypassed > 0) text += ", " + text_of(bypassed) + " of " + text_of(components.size()) + " convolutions bypassed";
    if (restarts_ > 0) text += ", " + text_of(restarts_) + " restarts by vote";
    if (disagreements_ > 0) text += ", rank 0's bases broadcast " + text_of(disagreements_) + " times";
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
  struct Workspace {
    Workspace(const GradiVeqReducer& reducer, Scratch<S> scratch)
        : slices{scratch.template take<float>(reducer.compressor_.sliced())},
          message{scratch.template take<float>(reducer.n_ + 1)},
          segment{scratch.take_bytes(message.bytes())},
          compressor{scratch.take_bytes(reducer.compressor_.scratch_bytes())},
          digests{scratch.take_bytes(8 * reducer.ranks_)},
          quantised{scratch.take_bytes(reducer.quantised_ ? reducer.quantised_->workspace_bytes() : 0)} {}
    View<float, S> slices;          ///< all slices of all layers
    View<float, S> message;         ///< at most the whole gradient and a vote
    View<std::byte, S> segment;     ///< what the all-reduce works in
    View<std::byte, S> compressor;  ///< Compressor::scratch_bytes
    View<std::byte, S> digests;     ///< 8 bytes of each rank
    View<std::byte, S> quantised;   ///< of the reducer for sampling steps
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

  void all_reduce(Communicator<S>& comm, Queue<S> queue, float* values, std::size_t count, const Workspace& workspace,
                  PhaseClock<S>& clock) {
    this->sum(comm, queue, clock, {values, count}, workspace.segment);
    this->payload_bytes_ += 4 * count;
    this->values_sent_ += count;
  }

  /// A sampling step: the slices travel by 4-bit QSGD with decode, add and encode at every hop, everything else in a
  /// sum of its own.
  void send_quantised(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const EncodeContext& context,
                      const Workspace& workspace, PhaseClock<S>& clock) {
    in_phase(clock, Phase::encode, queue, [&] {
      slices_.gather(queue, gradient.data(), workspace.slices.data());
      beside_slices_.gather(queue, gradient.data(), workspace.message.data());
    });
    this->payload_bytes_ = this->values_sent_ = 0;
    all_reduce(comm, queue, workspace.message.data(), sampling_.floats(), workspace, clock);
    quantised_->reduce(comm, queue, workspace.slices, {}, context, workspace.quantised, clock);
    this->payload_bytes_ += quantised_->payload_bytes();
    this->values_sent_ += quantised_->values_sent(queue);
    in_phase(clock, Phase::decode, queue, [&] {
      beside_slices_.scatter(queue, workspace.message.data(), 1.0F / static_cast<float>(comm.size()), gradient.data());
      slices_.scatter(queue, workspace.slices.data(), 1.0F, gradient.data());
    });
  }

  void take_sample(Queue<S> queue, View<float, S> gradient, const Workspace& workspace) {
    // After a quantised step the slices are in the workspace already.
    if (!quantised_) slices_.gather(queue, gradient.data(), workspace.slices.data());
    compressor_.sample(queue, workspace.slices.data(), phase_);
  }

  void start_compressing(Communicator<S>& comm, Queue<S> queue, const Workspace& workspace, PhaseClock<S>& clock) {
    std::uint64_t digest = 0;
    in_phase(clock, Phase::decode, queue, [&] {
      compressor_.fit(queue, workspace.compressor);
      if (comm.size() > 1) digest = compressor_.digest(queue);
    });
    if (comm.size() > 1) agree(comm, queue, workspace, digest, clock);
    in_phase(clock, Phase::decode, queue, [&] {
      compressing_.compress(compressor_.components());
      beside_coefficients_.choose(queue, compressing_.ranges());
    });
  }

  /// Every rank fits the same bases to the same samples (section 2), so only a digest is sent. Where digests differ, as
  /// they may on machines of different kinds, rank 0's bases are broadcast.
  void agree(Communicator<S>& comm, Queue<S> queue, const Workspace& workspace, std::uint64_t digest,
             PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto mine = workspace.digests.part(8 * static_cast<std::size_t>(comm.rank()), 8);
      write_size(queue, digest, mine);
      comm.all_gather(queue, mine, workspace.digests);
      this->payload_bytes_ += 8;
      read_back(queue, workspace.digests, digests_.data());
      if (std::count(digests_.begin(), digests_.end(), digests_[0]) == comm.size()) return;
      ++disagreements_;
      compressor_.share(queue, workspace.compressor,
                        [&](View<std::byte, S> piece) { comm.broadcast(queue, piece, 0); });
    });
  }

  /// Returns whether the ranks voted for new samples.
  bool send_compressed(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const Workspace& workspace,
                       PhaseClock<S>& clock) {
    const bool voting = vote_every_ > 0 && (phase_ - samples_ + 1) % vote_every_ == 0;
    std::size_t count = compressing_.floats();
    for (std::size_t l = 0; l < coefficients_.size(); ++l)
      coefficients_[l] = workspace.message.data() + compressing_.coefficients_first(l);
    in_phase(clock, Phase::encode, queue, [&] {
      beside_coefficients_.gather(queue, gradient.data(), workspace.message.data());
      const View<float, S> vote{workspace.message.data() + count, voting ? 1U : 0U};
      compressor_.project(queue, gradient.data(), coefficients_, workspace.slices.data(), workspace.compressor, vote,
                          worst_loss_);
      count += vote.size();
    });
    this->payload_bytes_ = this->values_sent_ = 0;
    all_reduce(comm, queue, workspace.message.data(), count, workspace, clock);
    bool restart = false;
    in_phase(clock, Phase::decode, queue, [&] {
      if (voting) {
        float votes = 0.0F;
        read_back(queue, as_bytes(View<const float, S>{workspace.message.data() + compressing_.floats(), 1}), &votes);
        restart = 2.0F * votes > static_cast<float>(comm.size());
      }
      const float share = 1.0F / static_cast<float>(comm.size());
      beside_coefficients_.scatter(queue, workspace.message.data(), share, gradient.data());
      compressor_.rebuild(queue, coefficients_, share, workspace.slices.data(), workspace.compressor, gradient.data());
    });
    restarts_ += restart ? 1 : 0;
    return restart;
  }

  std::size_t samples_, compressed_;  ///< L_t, L_c
  std::int64_t warmup_;
  std::size_t vote_every_;  ///< 0: never
  double worst_loss_;
  gradiveq::Compressor<S> compressor_;
  gradiveq::Message sampling_, compressing_;
  gradiveq::TapMoves<S> slices_, beside_slices_, beside_coefficients_;
  std::vector<float*> coefficients_;  ///< where the coefficients of each layer lie in the message
  std::vector<std::uint64_t> digests_;
  std::unique_ptr<Reducer<S>> quantised_;  ///< of sampling steps; null with sampling=raw
  std::size_t phase_ = 0;                  ///< step within the cycle
  std::size_t warmup_steps_ = 0, sample_steps_ = 0, compressed_steps_ = 0, restarts_ = 0, disagreements_ = 0;
};

}  // namespace gradtool
