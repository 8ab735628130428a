#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/arena.hpp"
#include "lib/methods/dgc/format.hpp"

namespace gradtool {

/// The plan that follows from dgc's parameters and a bucket's layout, the same for the CPU and the GPU (Lin et al.,
/// ICLR 2018).
class DgcPlan {
 public:
  /// Consecutive elements of the bucket that are sent in the same way.
  struct Run {
    std::size_t first = 0, count = 0;
  };
  /// The elements from which the threshold is estimated: every `stride`-th one.
  struct Sampling {
    std::size_t stride = 1;
    std::size_t bound = 0;  ///< at most so many samples, wherever the first one lies
  };

  DgcPlan(const Params& params, const Layout& layout);

  /// Elements that compete for being sent, and elements that are sent whole: tensors of one dimension.
  [[nodiscard]] const std::vector<Run>& competing_runs() const { return competing_runs_; }
  [[nodiscard]] const std::vector<Run>& whole_runs() const { return whole_runs_; }
  [[nodiscard]] std::size_t elements() const { return elements_; }    ///< of the bucket
  [[nodiscard]] std::size_t competing() const { return competing_; }  ///< elements
  [[nodiscard]] std::size_t whole() const { return whole_; }          ///< elements

  /// Without local clipping, which changes `scale` in each step.
  [[nodiscard]] const format::MomentumCorrection& momentum() const { return momentum_; }
  [[nodiscard]] bool masks_momentum() const { return masks_momentum_; }
  [[nodiscard]] bool clips() const { return clip_ > 0.0; }
  /// Largest norm of a rank's gradient: its share of the global limit (section 3.3).
  [[nodiscard]] double norm_limit(int ranks) const { return clip_ / std::sqrt(static_cast<double>(ranks)); }

  /// Share of the competing elements that is sent in an iteration. During the warm-up it is ratio^(1/5), ratio^(2/5),
  /// ratio^(3/5) and ratio^(4/5), each for a quarter of the iterations.
  [[nodiscard]] double density(std::int64_t iteration) const;
  /// Number of elements sent at a density, at least one.
  [[nodiscard]] std::size_t kept(double density) const;
  /// The most that any iteration sends.
  [[nodiscard]] std::size_t most_kept() const { return most_kept_; }
  [[nodiscard]] format::ThresholdCorrection correction(std::size_t k) const { return {k, raises_threshold_}; }

  /// 1 % of the competing elements, but enough that two samples lie above the threshold.
  [[nodiscard]] Sampling sampling(double density) const;
  [[nodiscard]] std::size_t most_samples() const {
    return std::max(sampling(density(0)).bound, sampling(ratio_).bound);
  }
  /// The first sample, counted among the competing elements.
  [[nodiscard]] static std::size_t first_sample(const EncodeContext& context, const Sampling& sampling) {
    return format::draw4(context.key, 0).bits[0] % sampling.stride;
  }
  /// How many of `taken` samples reach the threshold.
  [[nodiscard]] static std::size_t samples_above(double density, std::size_t taken);

  [[nodiscard]] const IndexCoding& coding() const { return coding_; }
  /// The offset in bytes of the elements sent whole in the payload, behind its size, and that of its sparse part.
  static constexpr std::size_t kWholeOffset = sizeof(std::uint64_t);
  [[nodiscard]] std::size_t sparse_offset() const { return whole_ == 0 ? 0 : kWholeOffset + sizeof(float) * whole_; }
  [[nodiscard]] std::size_t payload_bound() const {
    return sparse_offset() + sparse_bound(coding_, most_kept_, elements_);
  }

 private:
  std::vector<Run> competing_runs_, whole_runs_;
  std::size_t elements_, competing_ = 0, whole_ = 0;
  format::MomentumCorrection momentum_;
  bool masks_momentum_;
  double clip_;  ///< 0: off
  double ratio_;
  bool raises_threshold_;
  std::int64_t warmup_;  ///< iterations
  std::size_t most_kept_;
  IndexCoding coding_;
};

/// The velocity u and the accumulated velocity v of one rank. `C` is the codec of a processor; its function step()
/// encodes one step and updates both.
template <Space S, class C>
class DgcEncoder final : public Encoder<S> {
 public:
  DgcEncoder(const C& codec, int ranks, Queue<S> queue)
      : codec_{codec},
        ranks_{ranks},
        arena_{2 * Arena<S>::padded_size(sizeof(float) * codec.step_plan().elements())},
        u_{arena_.template take<float>(codec.step_plan().elements())},
        v_{arena_.template take<float>(codec.step_plan().elements())} {
    DgcEncoder::reset(queue);
  }

  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> payload, View<std::byte, S> scratch) override {
    codec_.step(queue, gradient, context, ranks_, u_, v_, payload, scratch);
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, u_);
    fill_zero(queue, v_);
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("u", u_);
    visitor.values("v", v_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return v_; }

 private:
  const C& codec_;
  int ranks_;
  Arena<S> arena_;
  View<float, S> u_, v_;
};

}  // namespace gradtool
