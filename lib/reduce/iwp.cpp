#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/host/select.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/importance_mask.hpp"
#include "lib/reduce/iwp_roots.hpp"
#include "lib/reduce/marks.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;

/// u := mu u + c g; a += u. Without momentum u is null.
GT_SIMD_CLONES void accumulate(const float* g, float factor, float mu, float* u, float* a, std::size_t count) {
  if (u == nullptr) {
    for (std::size_t i = 0; i < count; ++i) a[i] += factor * g[i];
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    u[i] = mu * u[i] + factor * g[i];
    a[i] += u[i];
  }
}

/// What precedes a mask.
struct MaskHeader {
  std::uint64_t bytes = 0;  ///< of the positions behind it
  std::uint32_t count = 0;
  std::uint32_t code = 0;
};

/// Importance-weighted pruning (Cheng and Xu 2019), as reconstructed in docs/payload-format.md, iwp.
class IwpReducer final : public HostReducer {
 public:
  explicit IwpReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        mask_{setup.spec.params, setup.layout},
        mu_{static_cast<float>(setup.spec.params.real("mu"))},
        masking_{setup.spec.params.is("masking", "on")},
        clip_{setup.spec.params.real("clip")},
        coding_{setup.spec.params.word("mask")},
        roots_{static_cast<std::size_t>(setup.spec.params.integer("roots")), ranks_},
        sizes_(ranks_),
        offsets_(ranks_),
        state_{2 * padded(4 * n_) + padded(4 * mark_words(n_))},
        held_{state_.take<float>(n_)},
        momentum_{state_.take<float>(mu_ > 0.0F ? n_ : 0)},
        dense_{state_.take<std::uint32_t>(mark_words(n_))} {
    std::fill(dense_.span().begin(), dense_.span().end(), 0U);
    mask_.mark_dense(dense_);
    IwpReducer::reset(setup.queue);
  }

  [[nodiscard]] Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<Space::host> queue) override {
    fill_zero(queue, held_);
    fill_zero(queue, momentum_);
    mask_.reset();
  }

  [[nodiscard]] HostView<const float> residual() const override { return held_; }
  [[nodiscard]] std::string note() const override {
    return without_weight_ ? "no weights of some tensors or all: importance is the accumulated magnitude" : "";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 3 * padded(4 * n_) + 2 * padded(4 * mark_words(n_)) + roots_.count() * padded(coding_.bound(n_, n_)) +
           padded(sizeof(MaskHeader) * roots_.count()) + host::Selector::scratch_bytes() + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& side, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    const auto values = take<float>(carve, n_);  // importances first, then the values that travel
    const auto positions = take<std::uint32_t>(carve, n_);
    const auto mine = take<std::uint32_t>(carve, mark_words(n_));
    const auto marks = take<std::uint32_t>(carve, mark_words(n_));
    const auto masks = carve.take(roots_.count() * padded(coding_.bound(n_, n_)));
    const auto headers = take<MaskHeader>(carve, roots_.count());
    const auto selector = carve.take(host::Selector::scratch_bytes());
    const auto segment = carve.take(comm.scratch_bytes(4 * n_));

    const auto me = static_cast<std::size_t>(comm.rank());
    roots_.draw(context);
    const std::size_t slot = roots_.slot_of(me);
    const bool marks_for_all = slot < roots_.count();
    without_weight_ = side.weight.empty() && n_ > 0;

    IndexCoding::Choice choice;
    in_phase(clock, Phase::encode, queue, [&] {
      hold(queue, gradient);
      if (!marks_for_all) return;
      mask_.mark(queue, held_, side.weight, context, values, selector, mine);
      const std::size_t count =
          for_each_mark(queue, mine, [&](std::size_t at, std::size_t i) { positions[at] = to_u32(i); });
      choice = coding_.choose(positions.first(count), n_);
      headers[slot] = {choice.bytes, to_u32(count), static_cast<std::uint32_t>(choice.code)};
      IndexCoding::write(queue, choice, positions.first(count), n_, masks.data() + slot * mask_slot());
    });

    in_phase(clock, Phase::communicate, queue, [&] { gather_masks(comm, queue, headers, masks); });

    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      std::copy(dense_.span().begin(), dense_.span().end(), marks.data());
      for (std::size_t r = 0; r < roots_.count(); ++r) add_mask(queue, headers[r], masks, r, positions, marks);
      count = for_each_mark(queue, marks, [&](std::size_t at, std::size_t i) {
        values[at] = law::one_nan(held_[i]);
        held_[i] = 0.0F;
        if (!momentum_.empty() && masking_ && (dense_[i / 32] >> i % 32 & 1U) == 0) momentum_[i] = 0.0F;
      });
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(values.first(count)), Dtype::f32, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      const float share = 1.0F / static_cast<float>(comm.size());
      fill_zero(queue, gradient);
      for_each_mark(queue, marks, [&](std::size_t at, std::size_t i) { gradient[i] = values[at] * share; });
    });
    payload_bytes_ = 4 * count + (marks_for_all ? sizeof(MaskHeader) + choice.bytes : 0);
    values_sent_ = count;
    mask_.next_step();
  }

 private:
  [[nodiscard]] static std::uint32_t to_u32(std::size_t i) { return static_cast<std::uint32_t>(i); }
  [[nodiscard]] std::size_t mask_slot() const { return padded(coding_.bound(n_, n_)); }

  /// The local part of every step: clipping, momentum correction, accumulation.
  void hold(Queue<Space::host> queue, HostView<const float> gradient) {
    float factor = 1.0F;
    if (clip_ > 0.0) {
      factor = law::clip_factor(moments(queue, gradient).squares, clip_ / std::sqrt(static_cast<double>(ranks_)));
    }
    parallel_for(queue, n_, 16, kGrain, [&](std::size_t first, std::size_t last) {
      accumulate(gradient.data() + first, factor, mu_, momentum_.empty() ? nullptr : momentum_.data() + first,
                 held_.data() + first, last - first);
    });
  }

  /// Headers, then masks, from the roots to all. The other ranks put in nothing.
  void gather_masks(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<MaskHeader> headers,
                    HostView<std::byte> masks) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto gather = [&](HostView<std::byte> all) {
      comm.all_gather_v(queue, all.part(offsets_[me], sizes_[me]), sizes_, offsets_, all);
    };
    std::fill(sizes_.begin(), sizes_.end(), 0U);
    std::fill(offsets_.begin(), offsets_.end(), 0U);
    for (std::size_t r = 0; r < roots_.count(); ++r) {
      sizes_[roots_.rank_of(r)] = sizeof(MaskHeader);
      offsets_[roots_.rank_of(r)] = r * sizeof(MaskHeader);
    }
    gather(as_writable_bytes(headers));
    for (std::size_t r = 0; r < roots_.count(); ++r) {
      if (headers[r].bytes > mask_slot() || headers[r].count > n_ || headers[r].code > 2)
        throw Error{Fault::data, "iwp: a rank states a mask that cannot be one"};
      sizes_[roots_.rank_of(r)] = headers[r].bytes;
      offsets_[roots_.rank_of(r)] = r * mask_slot();
    }
    gather(masks);
  }

  void add_mask(Queue<Space::host> queue, const MaskHeader& header, HostView<const std::byte> masks, std::size_t r,
                HostView<std::uint32_t> positions, HostView<std::uint32_t> marks) const {
    const auto section = masks.part(r * mask_slot(), static_cast<std::size_t>(header.bytes));
    const auto code = static_cast<IndexCode>(header.code);
    if (code == IndexCode::bitmap && header.bytes == 4 * marks.size()) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(section.data());
      if (n_ % 32 != 0 && words[marks.size() - 1] >> n_ % 32 != 0)
        throw Error{Fault::data, "iwp: a rank's mask goes past the end"};
      parallel_for(queue, marks.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) marks[i] |= words[i];
      });
      return;
    }
    const auto marked = positions.first(header.count);
    IndexCoding::read("iwp", code, section, n_, marked);
    for (const std::uint32_t i : marked.span()) marks[i / 32] |= 1U << i % 32;
  }

  ImportanceMask mask_;
  float mu_;
  bool masking_;
  double clip_;
  IndexCoding coding_;
  IwpRoots roots_;
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<Space::host> state_;
  HostView<float> held_, momentum_;
  HostView<std::uint32_t> dense_;
  bool without_weight_ = false;
};

}  // namespace

extern constinit const OwnReducer iwp_reducer{
    .codec = "iwp",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<IwpReducer>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_iwp),
};

}  // namespace gradtool
