// GradiVeQ (Yu et al., NeurIPS 2018): cycles of sampling and compressed steps around the all-reduce.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/task_pool.hpp"
#include "lib/reduce/gradiveq_compressor.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {
namespace {

using gradiveq::Compressor;
using gradiveq::Layer;

/// The samples are taken from gradients quantised like this (section 3: 4-bit QSGD).
constexpr std::string_view kSampling = "qsgd:bits=4";

class GradiVeqReducer final : public HostReducer {
 public:
  explicit GradiVeqReducer(const ReducerSetup<Space::host>& setup) : GradiVeqReducer{setup, setup.spec.params} {}

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return padded(4 * compressor_.sliced()) + 2 * message_bytes() + padded(compressor_.scratch_bytes()) +
           (quantised_ ? padded(quantised_->workspace_bytes()) : 0) + padded(8 * ranks_) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& side, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    Room room{.slices = carve.take(4 * compressor_.sliced()), .message = carve.take(message_bytes())};
    room.segment = carve.take(message_bytes());
    room.scratch = carve.take(compressor_.scratch_bytes());
    room.digests = carve.take(8 * ranks_);
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

  void reset(Queue<Space::host> queue) override {
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
    return {{"elements under a basis", compressed, static_cast<double>(n_)}};
  }

 private:
  /// The workspace of one call.
  struct Room {
    HostView<std::byte> slices, message, segment{}, scratch{}, digests{}, inner{};
    [[nodiscard]] float* sliced() const { return reinterpret_cast<float*>(slices.data()); }
    [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(message.data()); }
  };
  /// A stretch of the gradient: tensors that are never compressed, or one layer.
  struct Piece {
    std::size_t first = 0;
    std::size_t count = 0;
    const Layer* layer = nullptr;
    std::size_t index = 0;  ///< of the layer
  };

  GradiVeqReducer(const ReducerSetup<Space::host>& setup, const Params& params)
      : HostReducer{setup.layout.elements, setup.ranks},
        samples_{static_cast<std::size_t>(params.integer("lt"))},
        compressed_{static_cast<std::size_t>(params.integer("lc"))},
        warmup_{params.integer("warmup")},
        vote_every_{params.is("vote", "on") ? static_cast<std::size_t>(params.integer("vote_every")) : 0},
        worst_loss_{params.real("vote_c") * std::sqrt(params.real("lambda"))},
        compressor_{gradiveq::layers_of(setup.layout, params), params, setup.queue},
        coefficients_(compressor_.layers().size(), nullptr) {
    std::size_t at = 0;
    for (std::size_t l = 0; l < compressor_.layers().size(); ++l) {
      const Layer& layer = compressor_.layers()[l];
      if (layer.first > at) pieces_.push_back({.first = at, .count = layer.first - at});
      const std::size_t elements = layer.filters * layer.taps;
      pieces_.push_back({.first = layer.first, .count = elements, .layer = &layer, .index = l});
      at = layer.first + elements;
    }
    if (at < n_) pieces_.push_back({.first = at, .count = n_ - at});
    if (params.is("sampling", "qsgd") && compressor_.sliced() > 0) {
      const auto layout = Layout::flat(compressor_.sliced());
      const CodecSpec spec = parse_codec(kSampling);
      quantised_ = make_reducer<Space::host>(spec, make_codec<Space::host>(spec, layout), Scheme::hop, layout,
                                             setup.ranks, setup.queue);
    }
  }

  /// Room for the whole gradient and a vote.
  [[nodiscard]] std::size_t message_bytes() const { return padded(4 * (n_ + 1)); }

  void all_reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, float* values, std::size_t count,
                  const Room& room, PhaseClock<Space::host>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      if (count > 0)
        comm.all_reduce_sum(queue, as_writable_bytes(HostView<float>{values, count}), Dtype::f32, room.segment);
    });
    payload_bytes_ += 4 * count;
    values_sent_ += count;
  }

  void send_plain(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient, const Room& room,
                  PhaseClock<Space::host>& clock) {
    payload_bytes_ = values_sent_ = 0;
    all_reduce(comm, queue, gradient.data(), gradient.size(), room, clock);
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
  }

  /// A sampling step: the slices by 4-bit QSGD with decode, add, encode at every hop; all else in a sum of its own.
  void send_quantised(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
                      const SideInputs<Space::host>& /*side*/, const EncodeContext& context, const Room& room,
                      PhaseClock<Space::host>& clock) {
    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      gather_slices(queue, gradient.data(), room);
      count = walk<Write>(queue, gradient.data(), room.floats(), false);
    });
    payload_bytes_ = values_sent_ = 0;
    all_reduce(comm, queue, room.floats(), count, room, clock);
    quantised_->reduce(comm, queue, {room.sliced(), compressor_.sliced()}, {}, context, room.inner, clock);
    payload_bytes_ += quantised_->payload_bytes();
    values_sent_ += quantised_->values_sent(queue);
    in_phase(clock, Phase::decode, queue, [&] {
      scale(queue, {room.floats(), count}, 1.0F / static_cast<float>(comm.size()));
      walk<Read>(queue, gradient.data(), room.floats(), false);
      for (const Layer& layer : compressor_.layers())
        gradiveq::scatter_taps(queue, layer, room.sliced() + layer.sliced_at, 0, layer.slices * layer.slice_taps, 1.0F,
                               gradient.data());
    });
  }

  void gather_slices(Queue<Space::host> queue, const float* gradient, const Room& room) const {
    for (const Layer& layer : compressor_.layers())
      gradiveq::gather_taps(queue, layer, gradient, 0, layer.slices * layer.slice_taps,
                            room.sliced() + layer.sliced_at);
  }

  void take_sample(Queue<Space::host> queue, HostView<float> gradient, const Room& room) {
    if (!quantised_) gather_slices(queue, gradient.data(), room);  // else they are there
    compressor_.sample(queue, room.sliced(), phase_);
  }

  /// Every rank fits the same bases to the same samples (section 2), so nothing is sent but a digest. Where digests
  /// differ, as they may on machines of different kinds, rank 0's bases are broadcast.
  void start_compressing(Communicator<Space::host>& comm, Queue<Space::host> queue, const Room& room,
                         PhaseClock<Space::host>& clock) {
    std::uint64_t digest = 0;
    in_phase(clock, Phase::decode, queue, [&] {
      compressor_.fit(queue);
      if (comm.size() > 1) digest = compressor_.digest(queue);
    });
    if (comm.size() == 1) return;
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto me = static_cast<std::size_t>(comm.rank());
      std::memcpy(room.digests.data() + 8 * me, &digest, 8);
      comm.all_gather(queue, room.digests.part(8 * me, 8), room.digests);
      payload_bytes_ += 8;
      bool same = true;
      for (int r = 0; r < comm.size(); ++r)
        same = same && std::memcmp(room.digests.data() + 8 * r, room.digests.data(), 8) == 0;
      if (same) return;
      ++disagreements_;
      const auto counts = compressor_.components();
      comm.broadcast(queue, as_writable_bytes(HostView<std::uint64_t>{counts.data(), counts.size()}), 0);
      for (std::size_t l = 0; l < counts.size(); ++l) comm.broadcast(queue, as_writable_bytes(compressor_.basis(l)), 0);
      comm.broadcast(queue, as_writable_bytes(compressor_.means()), 0);
    });
  }

  /// Returns whether the ranks voted for new samples.
  bool send_compressed(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
                       const Room& room, PhaseClock<Space::host>& clock) {
    const bool voting = vote_every_ > 0 && (phase_ - samples_ + 1) % vote_every_ == 0;
    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      count = walk<Write>(queue, gradient.data(), room.floats(), true);
      double loss = 0.0;
      compressor_.project(queue, gradient.data(), coefficients_, room.scratch, voting ? &loss : nullptr);
      if (voting) room.floats()[count++] = loss > worst_loss_ ? 1.0F : 0.0F;
    });
    payload_bytes_ = values_sent_ = 0;
    all_reduce(comm, queue, room.floats(), count, room, clock);
    bool restart = false;
    in_phase(clock, Phase::decode, queue, [&] {
      if (voting) restart = 2.0F * room.floats()[--count] > static_cast<float>(comm.size());
      scale(queue, {room.floats(), count}, 1.0F / static_cast<float>(comm.size()));
      walk<Read>(queue, gradient.data(), room.floats(), true);
      compressor_.rebuild(queue, coefficients_, gradient.data());
    });
    restarts_ += restart ? 1 : 0;
    return restart;
  }

  struct Write {};
  struct Read {};
  /// Between the gradient and a message, tensor by tensor: what is sent as it is. With `compressing`, finds the places
  /// of the coefficients on the way and leaves them to the compressor. Returns the floats of the message.
  template <class Way>
  std::size_t walk(Queue<Space::host> queue, float* gradient, float* message, bool compressing) {
    constexpr bool kWrite = std::is_same_v<Way, Write>;
    std::size_t at = 0;
    for (const Piece& piece : pieces_) {
      const std::size_t d = piece.layer == nullptr || !compressing ? 0 : compressor_.components(piece.index);
      if (piece.layer == nullptr || (compressing && d == 0)) {
        float* outside = gradient + piece.first;
        float* inside = message + at;
        parallel_for(queue, piece.count, 16, 1 << 15, [&](std::size_t first, std::size_t last) {
          std::memcpy((kWrite ? inside : outside) + first, (kWrite ? outside : inside) + first, 4 * (last - first));
        });
        at += piece.count;
        continue;
      }
      const Layer& layer = *piece.layer;
      coefficients_[piece.index] = message + at;
      at += layer.slices * d;
      if (layer.rest() == 0) continue;
      const std::size_t sliced_taps = layer.slices * layer.slice_taps;
      if constexpr (kWrite)
        gradiveq::gather_taps(queue, layer, gradient, sliced_taps, layer.taps, message + at);
      else
        gradiveq::scatter_taps(queue, layer, message + at, sliced_taps, layer.taps, 1.0F, gradient);
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
  std::vector<Piece> pieces_;
  std::unique_ptr<Reducer<Space::host>> quantised_;
  std::size_t phase_ = 0;  ///< step within the cycle
  std::size_t warmup_steps_ = 0, sample_steps_ = 0, compressed_steps_ = 0, restarts_ = 0, disagreements_ = 0;
};

}  // namespace

extern constinit const OwnReducer gradiveq_reducer{
    .codec = "gradiveq",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<GradiVeqReducer>(setup);
    },
};

}  // namespace gradtool
