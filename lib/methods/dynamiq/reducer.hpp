#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/dynamiq/quantiser.hpp"

namespace gradtool {

/// DynamiQ on a ring (Han et al., arXiv 2602.08923, section 3): a small all-reduce of statistics, from which all ranks
/// take the same means and widths; then a ring reduce-scatter that decodes, adds and encodes again at every hop, and an
/// all-gather of the finished parts. `Quantiser` is HostDynamiq or CudaDynamiq.
template <Space S, class Quantiser>
class DynamiqReducer final : public CountingReducer<S> {
 public:
  explicit DynamiqReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        correlated_{setup.spec.params.is("rounding", "correlated")},
        quantiser_{this->n_, setup.spec.params.real("bits"), setup.spec.params.is("levels", "uniform"), this->ranks_,
                   setup.queue},
        order_(this->ranks_),
        sizes_(this->ranks_),
        offsets_(this->ranks_) {
    for (std::size_t i = 0; i < this->ranks_; ++i) slot_ = std::max(slot_, this->padded(quantiser_.most_bytes(i)));
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const std::size_t ranks = this->ranks_;
    const std::size_t groups = quantiser_.super_groups();
    const auto means = work.statistics.part(0, groups);
    const auto squares = work.statistics.part(groups, groups);
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto next = static_cast<int>((me + 1) % ranks);
    const auto previous = static_cast<int>((me + ranks - 1) % ranks);
    this->payload_bytes_ = 4 * groups;
    this->values_sent_ = 2 * groups;

    in_phase(clock, Phase::encode, queue, [&] { quantiser_.statistics(queue, gradient, means, squares); });
    in_phase(clock, Phase::communicate, queue, [&] {
      if (groups > 0) comm.all_reduce_sum(queue, as_writable_bytes(work.statistics), Dtype::bf16, work.segment);
    });
    DynamiqRounding rounding{.key = context.key};
    in_phase(clock, Phase::encode, queue, [&] {
      quantiser_.set_widths(queue, squares);
      quantiser_.remove_means(queue, means, gradient);
      if (!correlated_) return;
      draw_order(context.key);
      rounding.place = order_[me];
      rounding.ranks = static_cast<std::uint32_t>(ranks);
    });

    for (std::size_t hop = 0; hop + 1 < ranks; ++hop) {
      const std::size_t give = (me + ranks - hop) % ranks;
      const std::size_t take = (give + ranks - 1) % ranks;
      const auto outgoing = work.outgoing.first(quantiser_.payload_bytes(give));
      const auto incoming = work.incoming.first(quantiser_.payload_bytes(take));
      in_phase(clock, Phase::encode, queue, [&] { encode(queue, gradient, give, rounding, outgoing); });
      in_phase(clock, Phase::communicate, queue, [&] { comm.exchange(queue, next, outgoing, previous, incoming); });
      in_phase(clock, Phase::decode, queue, [&] { quantiser_.add(queue, incoming, take, gradient); });
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {  // rank r has finished part r + 1
      const std::size_t finished = (rank + 1) % ranks;
      sizes_[rank] = quantiser_.payload_bytes(finished);
      offsets_[rank] = finished * slot_;
    }
    const auto mine = work.all.part(offsets_[me], sizes_[me]);
    in_phase(clock, Phase::encode, queue, [&] { encode(queue, gradient, (me + 1) % ranks, rounding, mine); });
    in_phase(clock, Phase::communicate, queue, [&] { comm.all_gather_v(queue, mine, sizes_, offsets_, work.all); });
    in_phase(clock, Phase::decode, queue, [&] {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto payload = work.all.part(offsets_[rank], sizes_[rank]);
        quantiser_.finish(queue, payload, (rank + 1) % ranks, means, gradient);
      }
    });
  }

  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = true};
  }

 private:
  struct Workspace {
    Workspace(const DynamiqReducer& reducer, Scratch<S> pieces)
        : statistics{pieces.template take<std::uint16_t>(2 * reducer.quantiser_.super_groups())},
          segment{pieces.take_bytes(4 * reducer.quantiser_.super_groups())},
          outgoing{pieces.take_bytes(reducer.slot_)},
          incoming{pieces.take_bytes(reducer.slot_)},
          all{pieces.take_bytes(reducer.slot_ * reducer.ranks_)} {}
    View<std::uint16_t, S> statistics;      ///< means of all super-groups, then their sums of squares
    View<std::byte, S> segment;             ///< of the all-reduce of these
    View<std::byte, S> outgoing, incoming;  ///< payloads of one hop
    View<std::byte, S> all;                 ///< the finished parts, a slot each
  };

  void encode(Queue<S> queue, View<const float, S> gradient, std::size_t i, const DynamiqRounding& rounding,
              View<std::byte, S> payload) {
    quantiser_.encode(queue, gradient, i, rounding, payload);
    this->payload_bytes_ += payload.size();
    this->values_sent_ += quantiser_.elements(i);
  }

  /// A permutation of the ranks that all of them draw alike (Fisher and Yates), from the draws behind those of
  /// elements.
  void draw_order(const format::DrawKey& key) {
    std::iota(order_.begin(), order_.end(), 0U);
    const std::uint64_t behind = quantiser_.super_groups() * format::kDynamiqSuper;
    for (std::size_t k = this->ranks_ - 1; k > 0; --k) {
      const std::uint32_t draw = format::draw4(format::shared_by_ranks(key), (behind + k) / 4).bits[k % 4];
      std::swap(order_[k], order_[format::product(draw & 0xffffff00U, static_cast<std::uint32_t>(k + 1)).high]);
    }
  }

  bool correlated_;
  Quantiser quantiser_;
  std::vector<std::uint32_t> order_;  ///< place of every rank
  std::vector<std::uint64_t> sizes_, offsets_;
  std::size_t slot_ = 0;  ///< what one part's payload may take
};

}  // namespace gradtool
