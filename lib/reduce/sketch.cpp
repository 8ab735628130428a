#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/host/largest.hpp"
#include "kernels/law/hd.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/count_sketch.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {
namespace {

GT_SIMD_CLONES void momentum_step(float mu, const float* g, float* v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) v[i] = mu * v[i] + g[i];
}

/// Sketched-SGD (Ivkin et al. 2019, algorithm 1): round one sums sketches, round two the values that look large.
class SketchReducer final : public HostReducer {
 public:
  explicit SketchReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        mu_{static_cast<float>(setup.spec.params.real("mu"))},
        k_{share(setup.spec.params.real("ratio"))},
        candidates_{std::min(n_, static_cast<std::size_t>(
                                     std::llround(setup.spec.params.real("candidates") * static_cast<double>(k_))))},
        state_{2 * padded(4 * n_)},
        residual_{state_.take<float>(setup.spec.error_feedback ? n_ : 0)},
        momentum_{state_.take<float>(mu_ > 0.0F ? n_ : 0)} {
    const auto rows = static_cast<std::size_t>(std::stoul(setup.spec.params.word("rows")));
    const double cells = static_cast<double>(n_) / setup.spec.params.real("compression");
    const auto columns =
        std::max(kLeastColumns, static_cast<std::size_t>(std::ceil(cells / static_cast<double>(rows))));
    if (columns * rows + candidates_ < n_) {
      sketch_ = std::make_unique<CountSketch>(setup.queue, n_, rows, columns,
                                              static_cast<std::uint64_t>(setup.spec.params.integer("seed")));
    }
    SketchReducer::reset(setup.queue);
  }

  void reset(Queue<Space::host> queue) override {
    fill_zero(queue, residual_);
    fill_zero(queue, momentum_);
  }
  [[nodiscard]] HostView<const float> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return sketch_ || n_ == 0 ? "" : "units too small for a sketch are summed whole";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    if (!sketch_) return padded(4 * n_) + 256;
    return 2 * padded(4 * sketch_->cells()) + padded(4 * sketch_->scratch()) + padded(4 * n_) +
           4 * padded(4 * candidates_) + padded(host::Largest::scratch_bytes(n_)) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& /*context*/, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    if (!sketch_) return reduce_dense(comm, queue, gradient, workspace, clock);
    Carver<Space::host> carve{workspace};
    const auto cells = take<float>(carve, sketch_->cells());
    const auto rows = take<float>(carve, sketch_->scratch());
    const auto estimates = take<float>(carve, n_);
    const auto positions = take<std::uint32_t>(carve, candidates_);
    const auto values = take<float>(carve, candidates_);
    const auto kept = take<std::uint32_t>(carve, k_);
    const auto scratch = carve.take(host::Largest::scratch_bytes(n_));
    const auto segment = carve.take(std::max(comm.scratch_bytes(cells.bytes()), comm.scratch_bytes(values.bytes())));

    HostView<const float> u = gradient;
    in_phase(clock, Phase::encode, queue, [&] {
      u = gather_up(queue, gradient);
      sketch_->add_up(queue, u, cells, rows);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(cells), Dtype::f32, segment); });
    in_phase(clock, Phase::encode, queue, [&] {
      sketch_->estimate(queue, cells, estimates, rows);
      host::Largest{queue, estimates, scratch}.select(positions, nullptr);
      for (std::size_t i = 0; i < candidates_; ++i) values[i] = u[positions[i]];
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      host::Largest{queue, values, scratch}.select(kept, nullptr);
      fill_zero(queue, gradient);
      const float share_of_rank = 1.0F / static_cast<float>(comm.size());
      for (const std::uint32_t at : kept.span()) {
        const std::uint32_t i = positions[at];
        gradient[i] = values[at] * share_of_rank;
        if (!residual_.empty()) residual_[i] = 0.0F;
        if (!momentum_.empty()) momentum_[i] = 0.0F;
      }
    });
    payload_bytes_ = cells.bytes() + values.bytes();
    values_sent_ = cells.size() + values.size();
  }

 private:
  [[nodiscard]] std::size_t share(double ratio) const {
    const auto wanted = static_cast<std::size_t>(std::llround(ratio * static_cast<double>(n_)));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(n_, 1), n_);
  }

  /// This rank's momentum and residual with the gradient in them; all of it is held back until it is sent.
  HostView<const float> gather_up(Queue<Space::host> queue, HostView<float> gradient) {
    HostView<float> u = gradient;
    if (!momentum_.empty()) {
      parallel_for(queue, n_, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
        momentum_step(mu_, gradient.data() + first, momentum_.data() + first, last - first);
        std::copy(momentum_.data() + first, momentum_.data() + last, gradient.data() + first);
      });
    }
    if (!residual_.empty()) {
      add(queue, gradient, residual_);
      u = residual_;
    }
    return u;
  }

  void reduce_dense(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
                    HostView<std::byte> workspace, PhaseClock<Space::host>& clock) {
    in_phase(clock, Phase::encode, queue, [&] {
      // Everything is sent, so nothing stays: neither a residual nor, with masking, momentum.
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
    payload_bytes_ = 4 * n_;
    values_sent_ = n_;
  }

  static constexpr std::size_t kLeastColumns = 256;  // below, estimates are noise

  float mu_;
  std::size_t k_, candidates_;
  Arena<Space::host> state_;
  HostView<float> residual_, momentum_;
  std::unique_ptr<CountSketch> sketch_;
};

}  // namespace

extern constinit const OwnReducer sketch_reducer{
    .codec = "sketch",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<SketchReducer>(setup);
    },
};

}  // namespace gradtool
