#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/marks.hpp"
#include "kernels/sparse.hpp"
#include "kernels/sums.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/iwp/format.hpp"

namespace gradtool {

using format::MaskHeader;

/// One tensor, and the threshold that this rank has reached for it.
struct IwpLayer {
  std::uint64_t first = 0;     ///< first element in the bucket
  std::uint64_t elements = 0;  ///< 0 for a tensor without a mask, which is sent whole
  std::uint64_t chunk = 0;     ///< number of chunks (format::sum_cut) in all layers before it
  double k = 0.0;              ///< mean_std: how many standard deviations the threshold lies above the mean
  float threshold = 0.0f;      ///< target_density: kept from step to step; computed anew while it is not positive
  float used = 0.0f;           ///< the threshold of this step's mask
  float floor = 0.0f;          ///< of this step's importances
  std::uint32_t marked = 0;    ///< elements in this step's mask
};

/// The parameters of iwp that decide what one rank marks.
struct MaskPolicy {
  explicit MaskPolicy(const Params& params)
      : k{params.real("k")},
        eps{params.real("eps")},
        warmup{params.integer("warmup")},
        bernoulli{static_cast<float>(params.real("bernoulli"))} {
    using Kind = format::ThresholdPolicy::Kind;
    threshold.kind = params.is("policy", "fixed")        ? Kind::fixed
                     : params.is("policy", "mean_std")   ? Kind::mean_std
                     : params.is("policy", "dispersion") ? Kind::dispersion
                                                         : Kind::target_density;
    threshold.fixed = params.real("threshold");
    threshold.limit = std::max(threshold.fixed, params.real("limit"));
    threshold.density = params.real("density");
  }

  /// The source of a step's thresholds.
  enum class Source : std::uint8_t {
    quantile,          ///< an exact quantile of the importances
    kept_or_quantile,  ///< the threshold of the step before; an exact quantile where that is not positive
    sums,              ///< the sum of the importances and of their squares
    constant,          ///< a parameter
  };
  [[nodiscard]] Source source(double warmup_density) const {
    using Kind = format::ThresholdPolicy::Kind;
    if (warmup_density > 0.0) return Source::quantile;
    if (threshold.kind == Kind::target_density) return Source::kept_or_quantile;
    return threshold.kind == Kind::fixed ? Source::constant : Source::sums;
  }
  /// The density of a step of the warm-up; 0 when the warm-up is over.
  [[nodiscard]] double warmup_density(std::int64_t step) const {
    return step < 5 * warmup ? std::pow(0.25, 1 + step / warmup) : 0.0;
  }
  /// How many of a layer's elements a density is, at least one; 0 stands for all of them.
  [[nodiscard]] static std::size_t elements_at(double density, std::size_t elements) {
    const auto rounded = static_cast<std::size_t>(std::llround(density * static_cast<double>(elements)));
    const std::size_t k = std::max<std::size_t>(rounded, 1);
    return k < elements ? k : 0;
  }

  format::ThresholdPolicy threshold;
  double k;             ///< of mean_std, in the first step
  double eps;           ///< see format::importance_floor
  std::int64_t warmup;  ///< steps in each of the five stages of the warm-up
  float bernoulli;      ///< q: an element below the threshold is marked with probability q importance / threshold
};

/// The inputs of a mask in one step of one rank.
template <Space S>
struct MaskInput {
  View<const float, S> accumulated;
  View<const float, S> weight;  ///< empty where the capture has none
  format::DrawKey key;
  double warmup_density = 0.0;  ///< 0 when the warm-up is over
};

/// The ranks that broadcast a mask in a step: the first of a Fisher-Yates shuffle of all ranks. The random numbers do
/// not depend on the rank, so all ranks draw the same ones.
class BroadcastRanks {
 public:
  BroadcastRanks(std::size_t broadcasters, std::size_t ranks)
      : broadcasters_(std::min(broadcasters, ranks)), shuffled_(ranks) {}

  void draw(const EncodeContext& context) {
    const auto key = format::shared_by_ranks(context.key);
    for (std::size_t r = 0; r < shuffled_.size(); ++r) shuffled_[r] = r;
    format::Draws draws{};
    for (std::size_t j = 0; j < broadcasters_.size(); ++j) {
      if (j % 4 == 0) draws = format::draw4(key, j / 4);
      std::swap(shuffled_[j],
                shuffled_[j + static_cast<std::size_t>(draws.bits[j % 4] * (shuffled_.size() - j) >> 32)]);
      broadcasters_[j] = shuffled_[j];
    }
  }
  [[nodiscard]] std::size_t count() const { return broadcasters_.size(); }
  [[nodiscard]] std::size_t operator[](std::size_t slot) const { return broadcasters_[slot]; }
  /// Which of the broadcasters a rank is; count() when it is none.
  [[nodiscard]] std::size_t slot_of(std::size_t rank) const {
    return static_cast<std::size_t>(std::find(broadcasters_.begin(), broadcasters_.end(), rank) -
                                    broadcasters_.begin());
  }

 private:
  std::vector<std::size_t> broadcasters_, shuffled_;
};

/// Importance-weighted pruning (Cheng and Xu 2019), as reconstructed in README.md, on either processor. `Steps` does
/// the work on elements; it is HostSteps in iwp.cpp and GpuSteps in iwp.cu, whose member functions are alike:
///   Steps(policy, layers, coding, n)   layers: every tensor of the bucket, with its first element and its size
///   Workspace(steps, scratch)          what the functions below work in
///   reset(queue)                       forgets all thresholds
///   upload(queue, words, out)          copies a bitmap from the host
///   accumulate(queue, gradient, largest_norm, mu, u, a, work)
///                                      c = factor that limits |gradient| to largest_norm (0: c = 1);
///                                      u := mu u + c gradient, a += u; with u empty, a += c gradient
///   mark(queue, input, importances, mask, positive, work)
///                                      mask := the important elements; moves the thresholds. positive[l] := 1 where
///                                      layer l has a positive threshold now, else 0
///   learn(positive)                    tells the host what mark() wrote to `positive`
///   encode_mask(queue, mask, positions, slot, header, work)
///                                      writes a mask behind the first 16 bytes of `slot`, and its header
///   merge_mask(queue, header, device_header, slot, positions, marks, work)
///                                      marks |= the mask in `slot`, whose header is known on both sides. The first 16
///                                      bytes of `slot` may be written to. Throws Fault::data if it is no valid mask
///   take_marked(queue, marks, dense, a, u, values, work)
///                                      values := a at the marks, in order; a := 0 there, and u := 0 there except at
///                                      the marks of `dense`. u may be empty. Returns how many marks there are
///   place_marked(queue, marks, values, factor, out, work)
///                                      out := factor * values at the marks, 0 elsewhere, after take_marked
/// Two counts decide what is sent next, so a GPU's reducer waits for them: the sizes of the masks, and the number of
/// elements that they mark together.
template <Space S, class Steps>
class IwpReducer final : public CountingReducer<S> {
  using Base = CountingReducer<S>;
  using Base::n_;
  using Base::padded;
  using Base::payload_bytes_;
  using Base::ranks_;
  using Base::values_sent_;

 public:
  explicit IwpReducer(const ReducerSetup<S>& setup)
      : Base{setup.layout.elements, setup.ranks},
        policy_{setup.spec.params},
        mu_{static_cast<float>(setup.spec.params.real("mu"))},
        masking_{setup.spec.params.is("masking", "on")},
        largest_norm_{setup.spec.params.real("clip") / std::sqrt(static_cast<double>(ranks_))},
        coding_{setup.spec.params.word("mask")},
        broadcasters_{static_cast<std::size_t>(setup.spec.params.integer("roots")), ranks_},
        sizes_(ranks_),
        offsets_(ranks_),
        headers_(broadcasters_.count()),
        layers_{setup.layout.tensors.size()},
        steps_{policy_, layers_of(setup.layout, policy_), coding_, n_},
        numbers_{2 * broadcasters_.count() + layers_},
        state_{2 * padded(sizeof(float) * n_) + padded(sizeof(std::uint32_t) * mark_words(n_))},
        accumulated_{state_.template take<float>(n_)},
        momentum_{state_.template take<float>(mu_ > 0.0F ? n_ : 0)},
        dense_{state_.template take<std::uint32_t>(mark_words(n_))} {
    std::vector<std::uint32_t> dense(mark_words(n_));
    for (const auto& tensor : setup.layout.tensors) {
      if (!sent_whole(tensor)) continue;
      for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i) dense[i / 32] |= 1U << i % 32;
    }
    steps_.upload(setup.queue, {dense.data(), dense.size()}, dense_);
    IwpReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = false};
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, accumulated_);
    fill_zero(queue, momentum_);
    steps_.reset(queue);
    step_ = 0;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("accumulated", accumulated_);
    visitor.values("momentum", momentum_);
    if constexpr (S == Space::host) steps_.visit_state(visitor);
    visitor.value("step", step_);
    visitor.value("without weight", without_weight_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return accumulated_; }
  [[nodiscard]] bool reached() const override { return !without_weight_; }
  [[nodiscard]] std::string note() const override {
    return without_weight_ ? "weights are missing (--with weight): importance is the accumulated magnitude" : "";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    broadcasters_.draw(context);
    const std::size_t slot = broadcasters_.slot_of(static_cast<std::size_t>(comm.rank()));
    const bool broadcasts = slot < broadcasters_.count();
    without_weight_ = side.weight.empty() && n_ > 0;

    in_phase(clock, Phase::encode, queue, [&] {
      steps_.accumulate(queue, gradient, largest_norm_, mu_, momentum_, accumulated_, work.steps);
      if (!broadcasts) return;
      const MaskInput<S> input{accumulated_, side.weight, context.key, policy_.warmup_density(step_)};
      steps_.mark(queue, input, work.values, work.mask, work.positive, work.steps);
      steps_.encode_mask(queue, work.mask, work.positions, work.slots.part(slot * slot_bytes(), slot_bytes()),
                         work.headers.part(slot, 1), work.steps);
    });

    in_phase(clock, Phase::communicate, queue, [&] { gather_masks(comm, queue, work, broadcasts); });

    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.copy(queue, dense_, work.marks);
      for (std::size_t r = 0; r < broadcasters_.count(); ++r) {
        steps_.merge_mask(queue, headers_[r], work.headers.part(r, 1), work.slots.part(r * slot_bytes(), slot_bytes()),
                          work.positions, work.marks, work.steps);
      }
      count = steps_.take_marked(queue, work.marks, dense_, accumulated_, masking_ ? momentum_ : View<float, S>{},
                                 work.values, work.steps);
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      comm.all_reduce_sum(queue, as_writable_bytes(work.values.first(count)), Dtype::f32, work.ring_segment);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      steps_.place_marked(queue, work.marks, work.values, 1.0F / static_cast<float>(comm.size()), gradient, work.steps);
    });
    payload_bytes_ = sizeof(float) * count + (broadcasts ? sizeof(MaskHeader) + headers_[slot].bytes : 0);
    values_sent_ = count;
    ++step_;  // on every rank, because the warm-up counts steps, and not masks of this rank
  }

 private:
  struct Workspace {
    Workspace(const IwpReducer& reducer, Scratch<S> scratch)
        : values{scratch.template take<float>(reducer.n_)},
          positions{scratch.template take<std::uint32_t>(reducer.n_)},
          mask{scratch.template take<std::uint32_t>(mark_words(reducer.n_))},
          marks{scratch.template take<std::uint32_t>(mark_words(reducer.n_))},
          slots{scratch.take_bytes(reducer.broadcasters_.count() * reducer.slot_bytes())},
          headers{scratch.template take<MaskHeader>(reducer.broadcasters_.count())},
          positive{scratch.template take<std::uint64_t>(reducer.layers_)},
          ring_segment{scratch.take_bytes(sizeof(float) * reducer.n_)},
          steps{reducer.steps_, scratch} {}
    View<float, S> values;             ///< first importances, then the values that are summed
    View<std::uint32_t, S> positions;  ///< of one mask's elements
    View<std::uint32_t, S> mask;       ///< bitmap of what this rank marks
    View<std::uint32_t, S> marks;      ///< bitmap of what is sent
    View<std::byte, S> slots;          ///< the encoded mask of each broadcaster
    View<MaskHeader, S> headers;
    View<std::uint64_t, S> positive;  ///< see Steps
    View<std::byte, S> ring_segment;  ///< Communicator::scratch_bytes is at most the size of what is summed
    typename Steps::Workspace steps;
  };

  /// Tensors of one dimension whose kind is known (biases, norms) have no mask: they are small, and sent whole.
  [[nodiscard]] static bool sent_whole(const TensorShape& tensor) {
    return tensor.shape.size() < 2 && tensor.kind != "other";
  }
  [[nodiscard]] static std::vector<IwpLayer> layers_of(const Layout& layout, const MaskPolicy& policy) {
    std::vector<IwpLayer> layers;
    std::uint64_t chunk = 0;
    for (const auto& tensor : layout.tensors) {
      const std::size_t elements = sent_whole(tensor) ? 0 : tensor.elements;
      layers.push_back({.first = tensor.first, .elements = elements, .chunk = chunk, .k = policy.k});
      chunk += format::sum_cut(elements).count;
    }
    return layers;
  }

  /// A slot holds a SparseHeader, which a GPU wants in front of positions that it reads, and the mask. Only the mask
  /// is sent.
  [[nodiscard]] std::size_t slot_bytes() const { return padded(sizeof(SparseHeader) + coding_.bound(n_, n_)); }

  /// All-gathers the headers and then the masks, to which only the broadcasters contribute.
  void gather_masks(Communicator<S>& comm, Queue<S> queue, const Workspace& work, bool broadcasts) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto gather = [&](View<std::byte, S> all) {
      comm.all_gather_v(queue, all.part(offsets_[me], sizes_[me]), sizes_, offsets_, all);
    };
    std::fill(sizes_.begin(), sizes_.end(), 0U);
    std::fill(offsets_.begin(), offsets_.end(), 0U);
    for (std::size_t r = 0; r < broadcasters_.count(); ++r) {
      sizes_[broadcasters_[r]] = sizeof(MaskHeader);
      offsets_[broadcasters_[r]] = r * sizeof(MaskHeader);
    }
    gather(as_writable_bytes(work.headers));
    numbers_.fetch(queue, as_bytes(work.headers));
    if (broadcasts) numbers_.fetch(queue, as_bytes(work.positive), 2 * broadcasters_.count());
    const std::span<const std::uint64_t> numbers = numbers_.wait(queue);
    for (std::size_t r = 0; r < broadcasters_.count(); ++r) {
      headers_[r] = {numbers[2 * r], static_cast<std::uint32_t>(numbers[2 * r + 1]),
                     static_cast<std::uint32_t>(numbers[2 * r + 1] >> 32)};
      if (headers_[r].bytes > slot_bytes() - sizeof(SparseHeader) || headers_[r].count > n_ || headers_[r].code > 2)
        throw Error{Fault::data, "iwp: a rank states a mask that cannot be one"};
      sizes_[broadcasters_[r]] = headers_[r].bytes;
      offsets_[broadcasters_[r]] = r * slot_bytes() + sizeof(SparseHeader);
    }
    if (broadcasts) steps_.learn(numbers.subspan(2 * broadcasters_.count(), layers_));
    gather(work.slots);
  }

  MaskPolicy policy_;
  float mu_;
  bool masking_;
  double largest_norm_;  ///< of this rank's gradient; 0 does not clip
  IndexCoding coding_;
  BroadcastRanks broadcasters_;
  std::vector<std::uint64_t> sizes_, offsets_;  ///< of every rank's contribution to an all-gather
  std::vector<MaskHeader> headers_;             ///< of every broadcaster, on the host
  std::size_t layers_;
  Steps steps_;
  ReadBack<S> numbers_;
  Arena<S> state_;
  View<float, S> accumulated_;    ///< what was not sent yet
  View<float, S> momentum_;       ///< empty where mu = 0
  View<std::uint32_t, S> dense_;  ///< bitmap of the tensors that are sent whole
  std::int64_t step_ = 0;
  bool without_weight_ = false;
};

}  // namespace gradtool
