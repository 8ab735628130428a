#pragma once

#include <memory>
#include <span>

#include "kernels/vector.hpp"
#include "lib/codecs/generic_reducers.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The error feedback of one rank. `LocoCodec` has step(queue, gradient, held, payload), which begins an empty memory
/// where `held` is null.
template <Space S, class LocoCodec>
class SparseLocoEncoder final : public Encoder<S> {
 public:
  SparseLocoEncoder(const LocoCodec& codec, std::size_t n, Queue<S> queue)
      : codec_{codec}, arena_{Arena<S>::padded_size(4 * n)}, held_{arena_.template take<float>(n)} {
    SparseLocoEncoder::reset(queue);
  }

  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> payload, View<std::byte, S> /*scratch*/) override {
    codec_.step(queue, gradient, held_.data(), payload);
  }
  void reset(Queue<S> queue) override { fill_zero(queue, held_); }
  void visit_state(StateVisitor& visitor) override { visitor.values("residual", held_); }
  [[nodiscard]] View<const float, S> residual() const override { return held_; }

 private:
  const LocoCodec& codec_;
  Arena<S> arena_;
  View<float, S> held_;
};

/// Gathers payloads, and clips what each rank sent of a tensor to the median over ranks of its norm. Every rank decodes
/// all payloads, so the norms are known without another message. `LocoCodec` has tensors(), clip_factors(queue,
/// payloads, energies, factors) and add(queue, payload, weight, factors, out).
template <Space S, class LocoCodec>
class ClippingReducer final : public GatherReducer<S> {
 public:
  explicit ClippingReducer(const ReducerSetup<S>& setup)
      : GatherReducer<S>{setup.codec, setup.layout.elements,
                         setup.ranks, Feedback::off,
                         setup.queue, planned<Workspace>(setup.layout.tensors.size(), setup.ranks)},
        codec_{static_cast<const LocoCodec&>(*setup.codec)} {}

 protected:
  void combine(Queue<S> queue, std::span<const View<const std::byte, S>> payloads, View<float, S> result,
               View<std::byte, S> scratch) override {
    const std::size_t tensors = codec_.tensors();
    const Workspace work{tensors, static_cast<int>(payloads.size()), Scratch<S>{scratch}};
    fill_zero(queue, result);
    codec_.clip_factors(queue, payloads, work.energies, work.factors);
    const float weight = 1.0F / static_cast<float>(payloads.size());
    for (std::size_t r = 0; r < payloads.size(); ++r)
      codec_.add(queue, payloads[r], weight, work.factors.data() + r * tensors, result);
  }

 private:
  /// A number for each tensor of each rank, rank after rank.
  struct Workspace {
    Workspace(std::size_t tensors, int ranks, Scratch<S> pieces)
        : energies{pieces.template take<double>(tensors * static_cast<std::size_t>(ranks))},
          factors{pieces.template take<float>(energies.size())} {}
    View<double, S> energies;
    View<float, S> factors;
  };

  const LocoCodec& codec_;
};

template <Space S, class LocoCodec>
std::unique_ptr<Reducer<S>> make_sparseloco_reducer(const ReducerSetup<S>& setup) {
  if (setup.spec.params.is("clip", "median")) return std::make_unique<ClippingReducer<S, LocoCodec>>(setup);
  return std::make_unique<GatherReducer<S>>(setup.codec, setup.layout.elements, setup.ranks, Feedback::off,
                                            setup.queue);
}

}  // namespace gradtool
