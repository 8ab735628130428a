#pragma once

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "lib/bench/payload_log.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/replay_state.hpp"
#include "lib/comm/recording.hpp"
#include "lib/comm/registered_memory.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/reduce/ops.hpp"
#include "lib/reduce/pipelined.hpp"

namespace gradtool {

/// What a space needs beyond codecs and reducers: a queue, copies to and from it, a clock, something to flush caches
/// with. HostPlace is in replay.cpp, CudaPlace in replay_cuda.cpp:
///   Queue<S> queue(); Clock& clock();
///   void upload(std::span<const float>, View<float, S>)  (enqueued, from memory of the loader); void finish_uploads();
///   std::span<const float> download(View<const float, S>), HostView<const std::byte> look(View<const std::byte, S>)
///   (each valid until its next call); void evict(View<float, S>);
///   ThrottleWatch& throttle(); std::string clock_note()  (why nothing watches);
///   static bool allocates_alone()  (no library does so in its calls).

/// One rank of one replay.
template <Space S, class Place>
class Rank {
 public:
  Rank(const ReplayPlan& plan, Communicator<S>& comm, Place& place, StepLoader& loader, bool shared_loader,
       ReplayResult& result)
      : plan_{plan},
        comm_{comm},
        place_{place},
        queue_{place.queue()},
        loader_{loader},
        shared_loader_{shared_loader},
        result_{result},
        row_(4 * plan.units->size() + kThrottleReasons.size()),
        prints_(4 * plan.units->size()) {
    result.units.resize(plan.units->size());
    comm_.set_all_reduce(plan.all_reduce);
    std::size_t workspace = 0;
    std::size_t largest = 0;
    std::shared_ptr<const Codec<S>> codec;
    const CodecDescriptor& descriptor = *plan.codec.descriptor;
    for (const auto& unit : *plan.units) {
      const Layout layout = layout_of(unit, plan.reader->tensors());
      if (codec == nullptr || descriptor.by_layout) codec = make_codec<S>(plan.codec, layout);
      reducers_.push_back(make_unit_reducer(codec, layout));
      workspace = std::max(workspace, reducers_.back()->workspace_bytes());
      largest = std::max(largest, unit.elements);
    }
    const std::size_t weights = descriptor.needs_weight ? largest : 0;
    const std::size_t moments = descriptor.needs_second_moment ? largest : 0;
    arena_ = std::make_unique<Arena<S>>(Arena<S>::padded_size(workspace) + Arena<S>::padded_size(4 * largest) +
                                        Arena<S>::padded_size(4 * weights) + Arena<S>::padded_size(4 * moments));
    buffer_ = arena_->template take<float>(largest);
    weight_ = arena_->template take<float>(weights);
    second_moment_ = arena_->template take<float>(moments);
    workspace_ = arena_->take_bytes(workspace);
    registered_ = RegisteredMemory<S>{comm_, {as_writable_bytes(buffer_).data(), arena_->capacity()}};
    // Touched now, so that no page fault falls into a timed region.
    fill_zero(queue_, {reinterpret_cast<float*>(workspace_.data()), workspace_.size() / sizeof(float)});
    fill_zero(queue_, buffer_);
  }

  void run() {
    if (plan_.errors) run_errors();
    const auto start = std::chrono::steady_clock::now();
    const std::size_t steps = plan_.reader->steps().size();
    double limit = 0.0;
    std::vector<double> watched;
    DiscardedSamples discarded;
    const std::size_t warmup = plan_.errors ? 0 : plan_.warmup_steps;  // the pass for the errors warms up too
    for (std::size_t i = 0;; ++i) {
      if (i % steps == 0) {
        for (auto& reducer : reducers_) reducer->reset(queue_);
      }
      const PhaseTimes sample = timed_step(i % steps);
      bool done = interrupted();
      if (leads()) {
        const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i == 0) limit = plan_.stop.limit(elapsed);
        // Warm-up steps are left out, unless the time is over before they are.
        if (i >= warmup || elapsed >= limit) {
          const bool throttled = discarded.count(clock_seen());
          if (!throttled) {
            result_.samples.push_back(sample);
            if (plan_.timing == Timing::isolated) unit_times_.keep(unit_row());
            watched.push_back(plan_.timing == Timing::concurrent ? sample.total
                                                                 : sample.phase[0] + sample.phase[1] + sample.phase[2]);
          }
          const bool hopeless = discarded.samples() >= kMostDiscarded && discarded.samples() > watched.size();
          done = done || hopeless || plan_.stop.done(watched, elapsed, limit);
        }
      }
      std::array<double, 1> verdict{done ? 1.0 : 0.0};
      comm_.agree_max(verdict);
      if (verdict[0] != 0.0) break;
    }
    if (!leads()) return;
    unit_times_.finish(result_.samples, result_.units);
    result_.clock_note = discarded.samples() > 0 ? discarded.note() : place_.clock_note();
  }

 private:
  std::unique_ptr<Reducer<S>> make_unit_reducer(const std::shared_ptr<const Codec<S>>& codec, const Layout& layout) {
    if constexpr (S == Space::host) {
      if (plan_.pipeline > 1) {
        return make_pipelined_reducer(plan_.codec, codec, plan_.scheme, layout, plan_.ranks, queue_,
                                      static_cast<std::size_t>(plan_.pipeline), place_.chunk_threads());
      }
    }
    return make_reducer<S>(plan_.codec, codec, plan_.scheme, layout, plan_.ranks, queue_);
  }

  /// After so many samples whose clock was held down, and fewer that are good, nothing better is to be expected.
  static constexpr std::size_t kMostDiscarded = 200;

  [[nodiscard]] std::span<double> unit_row() { return std::span{row_}.first(4 * reducers_.size()); }
  [[nodiscard]] std::span<double> clock_seen() { return std::span{row_}.subspan(4 * reducers_.size()); }
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
  View<float, S> prepare(std::size_t step, std::size_t unit, bool all_ranks) {
    place_.finish_uploads();
    if (shared_loader_) {
      comm_.barrier(queue_);  // nobody still reads the unit before
      if (leads()) loader_.load((*plan_.units)[unit], step);
      comm_.barrier(queue_);
    } else {
      loader_.load((*plan_.units)[unit], step, all_ranks && leads() ? -1 : comm_.rank());
    }
    const auto gradient = loader_.gradient(comm_.rank());
    place_.upload(gradient, buffer_.first(gradient.size()));
    const auto weight = loader_.weight();
    const auto moment = loader_.second_moment(comm_.rank());
    if (!weight.empty()) place_.upload(weight, weight_.first(weight.size()));
    if (!moment.empty()) place_.upload(moment, second_moment_.first(moment.size()));
    side_ = {.weight = weight_.first(weight.size()), .second_moment = second_moment_.first(moment.size())};
    return buffer_.first(gradient.size());
  }

  void reduce(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer, PhaseClock<S>& clock) {
    const AllocationWatch watch;
    reducers_[unit]->reduce(comm, queue_, buffer, side_, context(step, unit), workspace_, clock);
    // Writing payloads down allocates, on the same thread and only in the untimed pass.
    const bool watched = Place::allocates_alone() && AllocationWatch::active() && !log_;
    if (watched && watch.on_this_thread() != 0) {
      throw Error{Fault::check, fmt::format("codec {}: {} allocations in the timed region", plan_.codec.name(),
                                            watch.on_this_thread())};
    }
  }

  /// Counts the collectives, and writes payloads down when asked to.
  void reduce_observed(std::size_t step, std::size_t unit, View<float, S> buffer, PhaseClock<S>& clock) {
    RecordingCommunicator<S> recording{comm_, [&](const typename RecordingCommunicator<S>::Call& call) {
                                         const auto pattern = reducers_[unit]->pattern();
                                         add_use(result_.units[unit].uses, call.name, call.mean_bytes, pattern.shards,
                                                 pattern.ring);
                                         if (log_) log_->put(step, unit, call.name, place_.look(call.bytes));
                                       }};
    reduce(recording, step, unit, buffer, clock);
  }

  /// Every step once, untimed: errors, bytes, residuals, the same bits on every rank.
  void run_errors() {
    std::unique_ptr<ErrorKeeper> keeper = leads() ? std::make_unique<ErrorKeeper>(plan_, result_) : nullptr;
    if (!plan_.payloads.empty()) log_ = std::make_unique<PayloadLog>(plan_, comm_.rank());
    NoClock<S> clock;
    const std::size_t steps = plan_.reader->steps().size();
    double payload = 0.0;
    double values_sent = 0.0;
    for (std::size_t step = 0; step < steps; ++step) {
      comm_.reset_traffic();
      for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
        const auto buffer = prepare(step, unit, true);
        reduce_observed(step, unit, buffer, clock);
        const auto values = place_.download(buffer);
        keep_fingerprint(unit, values);
        payload += static_cast<double>(reducers_[unit]->payload_bytes());
        values_sent += static_cast<double>(reducers_[unit]->values_sent(queue_));
        if (!leads()) continue;
        keeper->observe(unit, loader_.mean(), values);
        if (plan_.on_result) plan_.on_result(step, (*plan_.units)[unit], values);
        reducers_[unit]->settle(queue_);
        const auto residual = reducers_[unit]->residual();
        result_.has_residual = result_.has_residual || !residual.empty();
        if (!residual.empty()) result_.residual_energy += energy(place_.download(residual));
        result_.gradient_energy += energy(loader_.gradient(0));
      }
      compare_ranks(step);
      std::array<double, 1> sent{static_cast<double>(comm_.traffic().bytes_sent)};
      comm_.agree_max(sent);
      if (leads()) {
        result_.wire_bytes += sent[0] / static_cast<double>(steps);
      }
      if (interrupted()) throw Error{Fault::check, "interrupted"};
    }
    if (log_) log_->close();
    log_.reset();
    if (!leads()) return;
    result_.payload_bytes = payload / static_cast<double>(steps);
    result_.values_sent = values_sent / static_cast<double>(steps);
    for (auto& unit : result_.units) {
      for (auto& use : unit.uses) {
        use.calls /= static_cast<double>(steps);
        use.bytes /= static_cast<double>(steps);
      }
    }
    collect_notes();
    keeper->finish();
  }

  /// What rank 0's reducers say: every note once, tallies added over units.
  void collect_notes() {
    std::vector<Tally> tallies;
    std::vector<std::string> notes;
    for (const auto& reducer : reducers_) {
      std::string note = reducer->note();
      if (!note.empty() && std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
      for (const auto& tally : reducer->tallies()) {
        const auto same = std::find_if(tallies.begin(), tallies.end(), [&](auto& t) { return t.what == tally.what; });
        if (same == tallies.end()) {
          tallies.push_back(tally);
        } else {
          same->part += tally.part;
          same->whole += tally.whole;
        }
      }
    }
    for (const auto& tally : tallies) {
      if (tally.whole > 0.0) notes.push_back(fmt::format("{}: {:.4g} %", tally.what, 100.0 * tally.part / tally.whole));
    }
    result_.note = fmt::format("{}", fmt::join(notes, "; "));
  }

  /// What a unit came to on this rank, for compare_ranks.
  void keep_fingerprint(std::size_t unit, std::span<const float> values) {
    if (!plan_.check) return;
    const auto print = fingerprint(values);
    const std::array<double, 4> both{print[0], -print[0], print[1], -print[1]};
    std::copy(both.begin(), both.end(), prints_.begin() + static_cast<std::ptrdiff_t>(4 * unit));
  }

  /// All units of a step at once: the largest print and the largest negative one are of the same print, or ranks
  /// differ.
  void compare_ranks(std::size_t step) {
    if (!plan_.check) return;
    comm_.agree_max(prints_);
    for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
      const double* both = &prints_[4 * unit];
      if (both[0] == -both[1] && both[2] == -both[3]) continue;
      const auto& tensor = plan_.reader->tensors()[(*plan_.units)[unit].pieces.front().tensor];
      throw Error{Fault::check, fmt::format("codec {}: ranks ended with different results at step {}, unit of {}",
                                            plan_.codec.name(), plan_.reader->steps()[step].iteration, tensor.name)};
    }
  }

  /// One sample: all units of a step, each as slow as its slowest rank.
  PhaseTimes timed_step(std::size_t step) {
    ThrottleWatch& throttle = place_.throttle();
    throttle.look();
    for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
      const auto buffer = prepare(step, unit, false);
      if (!plan_.hot) place_.evict(buffer);
      place_.clock().start();
      reduce(comm_, step, unit, buffer, place_.clock());
      const PhaseTimes times = place_.clock().stop();
      throttle.look();
      for (std::size_t i = 0; i < 3; ++i) row_[4 * unit + i] = times.phase[i];
      row_[4 * unit + 3] = times.total;
      if (!plan_.check) continue;
      comm_.barrier(queue_);  // after every rank's clock has stopped
      keep_fingerprint(unit, place_.download(buffer));
    }
    const auto seen = throttle.take();
    std::copy(seen.begin(), seen.end(), clock_seen().begin());
    comm_.agree_max(row_);
    compare_ranks(step);
    PhaseTimes sample;
    for (std::size_t unit = 0; unit < reducers_.size(); ++unit) {
      for (std::size_t i = 0; i < 3; ++i) sample.phase[i] += row_[4 * unit + i];
      sample.total += row_[4 * unit + 3];
    }
    return sample;
  }

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Place& place_;
  Queue<S> queue_;
  StepLoader& loader_;
  bool shared_loader_;
  ReplayResult& result_;
  std::vector<std::unique_ptr<Reducer<S>>> reducers_;
  std::unique_ptr<Arena<S>> arena_;
  RegisteredMemory<S> registered_;  ///< ends before the arena does
  View<float, S> buffer_, weight_, second_moment_;
  SideInputs<S> side_;
  View<std::byte, S> workspace_;
  std::vector<double> row_;  ///< of a step: for each unit the seconds of its phases, and in all; then why it was slow
  std::vector<double> prints_;  ///< of a step: for each unit the fingerprint of its result, and its negative
  UnitTimes unit_times_;
  std::unique_ptr<PayloadLog> log_;  ///< while payloads are written down
};

}  // namespace gradtool
