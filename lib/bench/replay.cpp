#include "lib/bench/replay.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "lib/bench/copy_rate.hpp"
#include "lib/bench/replay_state.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// One rank of one replay.
class Rank {
 public:
  Rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
       ReplayResult& result)
      : plan_{plan}, comm_{comm}, loader_{loader}, shared_loader_{shared_loader}, result_{result}, pool_{plan.threads},
        queue_{plan.threads > 1 ? &pool_ : nullptr}, codec_{make_codec<Space::host>(plan.codec)},
        clock_{comm, plan.timing}, row_(4 * plan.units->size() + 4) {
    std::size_t workspace = 0;
    std::size_t largest = 0;
    for (const auto& unit : *plan.units) {
      reducers_.push_back(make_reducer<Space::host>(plan.codec, codec_, plan.scheme, unit.elements, plan.ranks, queue_));
      workspace = std::max(workspace, reducers_.back()->workspace_bytes());
      largest = std::max(largest, unit.elements);
      result.values_sent += leads() ? codec_->values_sent(unit.elements) : 0;
    }
    arena_ = std::make_unique<Arena<Space::host>>(workspace + Arena<Space::host>::padded_size(4 * largest));
    buffer_ = arena_->take<float>(largest);
    workspace_ = arena_->take_bytes(workspace);
    if (leads() && !plan.hot) flusher_ = std::make_unique<CacheFlusher>();
    // Touched now, so that no page fault falls into a timed region.
    std::memset(workspace_.data(), 0, workspace_.size());
    std::memset(buffer_.data(), 0, buffer_.bytes());
  }

  void run() {
    if (plan_.errors) run_errors();
    const auto start = std::chrono::steady_clock::now();
    const std::size_t steps = plan_.reader->steps().size();
    std::vector<double> watched;
    const std::size_t warmup = plan_.errors ? 0 : plan_.warmup_steps;
    for (std::size_t i = 0;; ++i) {
      if (i % steps == 0) {
        for (auto& reducer : reducers_) reducer->reset(queue_);
      }
      const PhaseTimes sample = timed_step(i % steps);
      bool done = interrupted();
      if (leads() && i >= warmup) {
        result_.samples.push_back(sample);
        watched.push_back(plan_.timing == Timing::concurrent ? sample.total : sample.phase[0] + sample.phase[1] + sample.phase[2]);
        const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        done = done || plan_.stop.done(watched, elapsed);
      }
      if (leads() && plan_.on_step) plan_.on_step();
      std::array<double, 1> verdict{done ? 1.0 : 0.0};
      comm_.agree_max(verdict);
      if (verdict[0] != 0.0) return;
    }
  }

 private:
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  [[nodiscard]] EncodeContext context(std::size_t step, std::size_t unit) const {
    const auto& steps = plan_.reader->steps();
    const double now = steps[step].learning_rate.value_or(1.0);
    const double first = steps.front().learning_rate.value_or(1.0);
    return {.key = {.seed = plan_.seed,
                    .step = static_cast<std::uint32_t>(step),
                    .rank = static_cast<std::uint32_t>(comm_.rank()),
                    .tensor = static_cast<std::uint32_t>(unit)},
            .iteration = steps[step].iteration,
            .learning_rate_ratio = first > 0.0 ? now / first : 1.0};
  }

  /// Brings the rank's gradient of a unit into the buffer that is reduced. Not timed.
  HostView<float> prepare(std::size_t step, std::size_t unit, bool all_ranks) {
    if (shared_loader_) {
      comm_.barrier({});  // nobody still reads the unit before
      if (leads()) loader_.load((*plan_.units)[unit], step);
      comm_.barrier({});
    } else {
      loader_.load((*plan_.units)[unit], step, all_ranks && leads() ? -1 : comm_.rank());
    }
    const auto gradient = loader_.gradient(comm_.rank());
    std::copy(gradient.begin(), gradient.end(), buffer_.data());
    return buffer_.first(gradient.size());
  }

  void reduce(std::size_t step, std::size_t unit, HostView<float> buffer, PhaseClock<Space::host>& clock) {
    const AllocationWatch watch;
    reducers_[unit]->reduce(comm_, queue_, buffer, context(step, unit), workspace_, clock);
    if (AllocationWatch::active() && watch.on_this_thread() != 0) {
      throw Error{Fault::check, fmt::format("codec {}: {} allocations in the timed region", plan_.codec.name(), watch.on_this_thread())};
    }
  }

  /// Every step once, untimed: errors, bytes, residuals, the same bits on every rank.
  void run_errors() {
    std::unique_ptr<ErrorKeeper> keeper = leads() ? std::make_unique<ErrorKeeper>(plan_, result_) : nullptr;
    NoClock<Space::host> clock;
    const std::size_t steps = plan_.reader->steps().size();
    double payload = 0.0;
    for (std::size_t step = 0; step < steps; ++step) {
      comm_.reset_traffic();
      for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
        const auto buffer = prepare(step, unit, true);
        reduce(step, unit, buffer, clock);
        if (plan_.check) compare_ranks(step, unit, buffer.span());
        payload += static_cast<double>(reducers_[unit]->payload_bytes());
        if (!leads()) continue;
        keeper->observe(unit, loader_.mean(), buffer.span());
        const auto residual = reducers_[unit]->residual();
        result_.has_residual = result_.has_residual || !residual.empty();
        result_.residual_energy += energy(residual.span());
        result_.gradient_energy += energy(loader_.gradient(0));
        if (plan_.on_result) plan_.on_result(step, (*plan_.units)[unit], buffer.span());
      }
      std::array<double, 2> sent{static_cast<double>(comm_.traffic().bytes_sent), static_cast<double>(comm_.traffic().messages_sent)};
      comm_.agree_max(sent);
      if (leads()) {
        result_.wire_bytes += sent[0] / static_cast<double>(steps);
        result_.messages += sent[1] / static_cast<double>(steps);
        if (plan_.on_step) plan_.on_step();
      }
      if (interrupted()) throw Error{Fault::check, "interrupted"};
    }
    if (!leads()) return;
    result_.payload_bytes = payload / static_cast<double>(steps);
    keeper->finish();
  }

  void compare_ranks(std::size_t step, std::size_t unit, std::span<const float> values) {
    const auto print = fingerprint(values);
    std::array<double, 4> both{print[0], -print[0], print[1], -print[1]};
    comm_.agree_max(both);
    if (both[0] != -both[1] || both[2] != -both[3]) {
      const auto& tensor = plan_.reader->tensors()[(*plan_.units)[unit].pieces.front().tensor];
      throw Error{Fault::check, fmt::format("codec {}: ranks ended with different results at step {}, unit of {}",
                                            plan_.codec.name(), plan_.reader->steps()[step].iteration, tensor.name)};
    }
  }

  /// One sample: all units of a step, each as slow as its slowest rank.
  PhaseTimes timed_step(std::size_t step) {
    if (flusher_ != nullptr) flusher_->flush();
    for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
      const auto buffer = prepare(step, unit, false);
      clock_.start();
      reduce(step, unit, buffer, clock_);
      const PhaseTimes times = clock_.stop();
      for (std::size_t i = 0; i < 3; ++i) row_[4 * unit + i] = times.phase[i];
      row_[4 * unit + 3] = times.total;
    }
    comm_.agree_max(row_);
    PhaseTimes sample;
    for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
      for (std::size_t i = 0; i < 3; ++i) sample.phase[i] += row_[4 * unit + i];
      sample.total += row_[4 * unit + 3];
    }
    return sample;
  }

  const ReplayPlan& plan_;
  Communicator<Space::host>& comm_;
  StepLoader& loader_;
  bool shared_loader_;
  ReplayResult& result_;
  TaskPool pool_;
  Queue<Space::host> queue_;
  std::shared_ptr<const Codec<Space::host>> codec_;
  HostClock clock_;
  std::unique_ptr<CacheFlusher> flusher_;  ///< on rank 0, unless hot
  std::vector<std::unique_ptr<Reducer<Space::host>>> reducers_;
  std::unique_ptr<Arena<Space::host>> arena_;
  HostView<float> buffer_;
  HostView<std::byte> workspace_;
  std::vector<double> row_;
};

}  // namespace

void replay_rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
                 ReplayResult& result) {
  Rank{plan, comm, loader, shared_loader, result}.run();
}

}  // namespace gradtool
