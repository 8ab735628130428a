#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sums.hpp"
#include "lib/bench/collective_reference.hpp"
#include "lib/bench/error_totals.hpp"
#include "lib/bench/rank_counts.hpp"
#include "lib/bench/rank_units.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/recording.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"

namespace gradtool {

/// Sum of squares, by vectors: one addition after the other takes as long as a quick codec.
inline double energy(std::span<const float> values) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); i += host::kSumChunk)
    sum += host::moments_of(values.data() + i, std::min(host::kSumChunk, values.size() - i)).squares;
  return sum;
}

/// One rank of one replay: for each range of units the pass for the errors, then timed steps until the plan has enough
/// of them.
template <Space S, class Processor>
class RankReplay {
 public:
  RankReplay(const ReplayPlan& plan, Communicator<S>& comm, Processor& processor, StepLoader& loader,
             bool shared_loader, ReplayResult& result)
      : plan_{plan},
        comm_{comm},
        processor_{processor},
        loader_{loader},
        shared_loader_{shared_loader},
        result_{result},
        comparison_{plan, comm, processor},
        counts_{plan.units.size(), plan.errors ? plan.steps() : 0, comm.rank(), comm.size()},
        sent_(plan.steps()),
        sent_inside_(plan.steps()),
        sent_across_(plan.steps()) {
    result.units.resize(plan.units.size());
    const std::size_t tensors = plan.reader.tensors().size();
    result.step_errors.resize(leads() && plan.errors ? plan.steps() : 0);
    result.tensor_steps.resize(plan.options.tensor_steps ? result.step_errors.size() * tensors : 0);
    result.reached = !plan.errors;
    result.windows = plan.windows();
    for (auto* sums : {&result.cumulative_error, &result.cumulative_energy})
      sums->resize(result.windows.size() * tensors);
    if (plan.options.update_rule) result.updates.resize(result.windows.size() * tensors);
    result.tensor_errors.resize(tensors);
  }

  void run() {
    if (plan_.errors && plan_.write_payloads) log_ = std::make_unique<PayloadLog>(plan_, comm_.rank());
    for (const UnitRange range : plan_.ranges()) {
      range_ = range;
      units_.emplace(plan_, range, comm_, processor_, loader_, shared_loader_);
      agreement_.emplace(plan_, range, comm_);
      row_.assign(UnitTimes::kKinds * range.size() + kThrottleReasons.size(), 0.0);
      const bool sampled = plan_.errors && compare_with_mean();
      if (!sampled) sample();
      units_.reset();  // before the next range takes memory
    }
    if (log_) log_->close();
    if (plan_.errors) finish_comparison();
    std::array<double, 4> times{result_.seconds, result_.limit, concurrent_.seconds, concurrent_.limit};
    comm_.agree_max(times);
    result_.seconds = times[0];
    result_.limit = times[1];
    if (concurrent_ranges_ == plan_.ranges().size())
      result_.concurrent = {.times = concurrent_.times, .seconds = times[2], .limit = times[3]};
    look_at_packets();
    if (!leads()) return;
    unit_times_.finish(result_.units);
    result_.clock_note = discarded_.samples() > 0 ? discarded_.note() : processor_.clock_note();
  }

 private:
  void look_at_packets() {
    const TransportCounts* counts = comm_.transport();
    if (counts == nullptr) return;
    const auto share = [](std::uint64_t part, std::uint64_t all) {
      return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
    };
    std::array<double, 4> worst{-counts->least_delivered, share(counts->lost_first, counts->expected),
                                share(counts->repeated, counts->sent), share(counts->lost_first, counts->bursts)};
    comm_.agree_max(worst);
    result_.packets = {-worst[0], worst[1], worst[2], worst[3]};
  }

  /// After so many samples whose clock was held down, and fewer that are good, nothing better is to be expected.
  static constexpr std::size_t kMostDiscarded = 200;

  [[nodiscard]] std::span<double> unit_row() { return std::span{row_}.first(UnitTimes::kKinds * range_.size()); }
  [[nodiscard]] std::span<double> clock_seen() { return std::span{row_}.subspan(UnitTimes::kKinds * range_.size()); }
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

  /// The pass for the errors over the range. Every step once, untimed: errors, bytes, residuals, the same bits on every
  /// rank. Rank 0 judges, and the others decode no more than what they go on with; on processors of their own, though,
  /// they decode all of the first step, because the same code may round differently there.
  ///
  /// Where sampling would end with its first sample, because a step takes all the time that there is, the last step is
  /// timed and is that sample: another would say as much for as much work again. The step before it is timed with
  /// concurrent ranks where the plan asks for that; where it is the first step, nobody knows yet how long steps take,
  /// and its times are thrown away if it was no long one. Returns whether there is a sample of the plan's timing.
  bool compare_with_mean() {
    std::optional<ErrorTotals> totals;
    if (leads()) {
      totals.emplace(range_.of(plan_.units), plan_.options.update_rule, plan_.codec.own_momentum(), result_);
    }
    const std::size_t steps = plan_.steps();
    // In a step, for each unit: of all, inside machines, between them. Last, 1 where rank 0 found such a step too long.
    const std::size_t count = range_.size();
    std::vector<double> sent(3 * count + 1);
    std::size_t window = 0;
    const bool may_sample = plan_.timing == Timing::isolated && !log_;
    bool sampled = false;
    for (std::size_t step = 0; step < steps; ++step) {
      if (step == result_.windows[window].end) {
        if (leads()) {
          totals->finish_window();
          collect_notes();  // before the reducers forget
        }
        ++window;
        units_->forget();
      }
      comm_.reset_traffic();
      std::optional<Timing> timed;
      const bool slow = sent.back() != 0.0;
      if (may_sample && step + 1 == steps && slow) timed = Timing::isolated;
      if (may_sample && step + 2 == steps && plan_.also_concurrent && (slow || step == 0)) timed = Timing::concurrent;
      units_->spare_results(timed != Timing::concurrent && (step > 0 || (shared_loader_ && S == Space::host)));
      double prepared = 0.0, reduced = 0.0;  // seconds
      if (timed) processor_.throttle().look();
      for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
        const auto begun = Clock::now();
        const auto buffer = units_->prepare(step, unit, true);
        prepared += since(begun);
        // Now, because on the host the reduction overwrites what was loaded.
        if (leads()) {
          result_.step_errors[step].gradient_energy += energy(comparison_.encoded_by_first(loader_.gradient(0)));
        }
        comparison_.before(buffer);
        comm_.reset_traffic();
        const auto ready = Clock::now();
        reduce_recorded(step, unit, buffer, timed);
        reduced += since(ready);
        Reducer<S>& reducer = (*units_)[unit];
        counts_.add(step, unit, reducer.payload_bytes(), reducer.values_sent(processor_.queue()));
        sent[unit - range_.first] = static_cast<double>(comm_.traffic().bytes_sent);
        sent_[step] += sent[unit - range_.first];
        if (comm_.has_levels()) {
          const std::size_t u = unit - range_.first;
          sent[count + u] = static_cast<double>(comm_.inside().traffic().bytes_sent);
          sent[2 * count + u] = static_cast<double>(comm_.across().traffic().bytes_sent);
          sent_inside_[step] += sent[count + u];
          sent_across_[step] += sent[2 * count + u];
        }
        const auto result = units_->result(unit, buffer);
        comparison_.after(result);
        const auto target = mean_target(reducer);
        const auto values = processor_.download(result).first(plan_.units[unit].elements);
        remember(unit, values);
        if (!leads()) continue;
        if (plan_.on_result) plan_.on_result(step, plan_.units[unit], values);
        comparison_.compare(target.empty() ? loader_.mean() : target, values, [&](auto exact, auto got) {
          totals->observe(step, unit - range_.first, exact, got, plan_.options.adds_up(plan_.codec));
        });
        reducer.settle(processor_.queue());
        const auto residual = reducer.residual();
        result_.has_residual = result_.has_residual || !residual.empty();
        if (residual.empty()) continue;
        result_.step_errors[step].residual_energy += energy(processor_.download(residual));
      }
      agreement_->compare(step);
      sent.back() = leads() && reduced >= limit_of(reduced) ? 1.0 : 0.0;
      comm_.agree_max(sent);
      if (timed) {
        const SpareSample sample{.times = finish_sample(),
                                 .seconds = prepared + reduced,
                                 .limit = leads() ? limit_of(prepared + reduced) : 0.0};
        sampled = sent.back() != 0.0 && !discarded_.count(clock_seen());
        if (sampled) keep_spare(*timed, sample);
      }
      for (std::size_t u = 0; u < count; ++u) {
        StepBytes& bytes = result_.units[range_.first + u].bytes;
        bytes.wire_per_rank += sent[u] / static_cast<double>(steps);
        bytes.wire_inside += sent[count + u] / static_cast<double>(steps);
        bytes.wire_across += sent[2 * count + u] / static_cast<double>(steps);
      }
      if (interrupted()) throw Error{Fault::check, std::string{kInterruptedMessage}};
    }
    if (leads()) {
      totals->finish_window();
      collect_notes();
    }
    return sampled;
  }

  void keep_spare(Timing timing, const SpareSample& sample) {
    if (timing == Timing::isolated) {
      if (leads()) unit_times_.keep(range_.first, unit_row());
      return add_samples({sample.times}, sample.seconds, sample.limit);
    }
    ++concurrent_ranges_;
    concurrent_.times += sample.times;
    concurrent_.seconds += sample.seconds;
    concurrent_.limit += sample.limit;
  }

  /// The rule for the range, which gets its share of the time.
  [[nodiscard]] StopRule range_stop() const {
    StopRule stop = plan_.stop;
    stop.part *= range_.share_of(plan_.units);
    return stop;
  }
  /// The seconds for sampling the range, given those of the first sample.
  [[nodiscard]] double limit_of(double first_sample) const {
    return range_stop().limit(first_sample / range_.share_of(plan_.units));
  }

  /// Keeps for the comparison of ranks what the last reduction of a unit came to on this one, or would have.
  void remember(std::size_t unit, std::span<const float> values) {
    if (!units_->spared(unit)) return agreement_->keep(unit, values);
    agreement_->keep(unit, (*units_)[unit].common_payloads(), [&](auto payload) { return processor_.look(payload); });
  }

  /// For a method with a target of its own, on rank 0: the mean over ranks, valid until the next call. Else empty.
  std::span<const double> mean_target(Reducer<S>& reducer) {
    if (plan_.codec.descriptor->target.empty()) return {};
    const auto mine = reducer.target(processor_.queue());
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t n = mine.size();
    Arena<S> targets{leads() ? Arena<S>::padded_size(4 * n * ranks) : 0};
    const auto all = leads() ? targets.template take<float>(n * ranks) : View<float, S>{};
    comm_.gather(processor_.queue(), as_bytes(mine), as_writable_bytes(all), 0);
    if (!leads()) return {};
    mean_target_.assign(n, 0.0);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto part = processor_.download(all.part(rank * n, n));
      for (std::size_t i = 0; i < n; ++i) mean_target_[i] += static_cast<double>(part[i]);
    }
    for (double& value : mean_target_) value /= static_cast<double>(ranks);
    return mean_target_;
  }

  /// After the passes for the errors over all ranges.
  void finish_comparison() {
    const auto steps = static_cast<double>(plan_.steps());
    const auto mean_of_largest = [&](std::vector<double>& sent) {
      comm_.agree_max(sent);
      return std::accumulate(sent.begin(), sent.end(), 0.0) / steps;
    };
    result_.bytes.wire_per_rank = mean_of_largest(sent_);
    result_.bytes.wire_inside = mean_of_largest(sent_inside_);
    result_.bytes.wire_across = mean_of_largest(sent_across_);
    counts_.share(comm_);
    if (!leads()) return;
    counts_.finish(plan_.steps(), result_);
    for (std::size_t step = 0; step < sent_.size(); ++step) {
      StepErrors& errors = result_.step_errors[step];
      errors.bytes.wire_per_rank = sent_[step];
      result_.gradient_energy += errors.gradient_energy;
      result_.residual_energy += errors.residual_energy;
    }
    for (auto& unit : result_.units) {
      for (auto& use : unit.uses) {
        use.calls /= steps;
        use.bytes /= steps;
      }
    }
    for (const auto& tally : tallies_) {
      if (tally.whole > 0.0)
        notes_.push_back(fmt::format("{}: {:.4g} %", tally.what, 100.0 * tally.part / tally.whole));
    }
    const CodecDescriptor& codec = *plan_.codec.descriptor;
    if (!codec.target.empty()) {
      notes_.push_back(fmt::format("errors are those against {}", codec.target));
    } else if (plan_.codec.own_momentum()) {
      notes_.push_back(fmt::format(
          "what is sent carries momentum, so errors against plain gradients are large; {}=0 compares", codec.momentum));
    }
    if (!codec.caveat.empty()) notes_.emplace_back(codec.caveat);
    result_.note = joined(notes_, "; ");
  }

  /// Counts the collectives, and writes payloads down when asked to. `timed`: as in a sample of this timing.
  void reduce_recorded(std::size_t step, std::size_t unit, View<float, S> buffer, std::optional<Timing> timed) {
    RecordingCommunicator<S> recording{comm_, [&](const typename RecordingCommunicator<S>::Call& call) {
                                         const auto pattern = (*units_)[unit].pattern(call.level);
                                         add_use(result_.units[unit].uses, call.name, call.mean_bytes, pattern.shards,
                                                 pattern.ring, call.level, call.node);
                                         if (!log_) return;
                                         log_->put(step, unit, call.name, call.level, processor_.look(call.bytes),
                                                   call.parts);
                                       }};
    if (timed) {
      reduce_timed(recording, step, unit, buffer, *timed);
      comm_.barrier(processor_.queue());  // so that what follows disturbs no rank whose clock still runs
      return;
    }
    NoClock<S> clock;
    if (log_)
      units_->reduce_unwatched(recording, step, unit, buffer, clock);  // writing payloads down allocates
    else
      units_->reduce(recording, step, unit, buffer, clock);
  }

  /// Collects what rank 0's reducers say: every note once, tallies added over units.
  void collect_notes() {
    for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
      const Reducer<S>& reducer = (*units_)[unit];
      std::string note = reducer.note();
      if (!note.empty() && std::find(notes_.begin(), notes_.end(), note) == notes_.end())
        notes_.push_back(std::move(note));
      for (const auto& tally : reducer.tallies()) {
        const auto same = std::find_if(tallies_.begin(), tallies_.end(), [&](auto& t) { return t.what == tally.what; });
        if (same == tallies_.end()) {
          tallies_.push_back(tally);
        } else {
          same->part += tally.part;
          same->whole += tally.whole;
        }
      }
      result_.reached = result_.reached || reducer.reached();
    }
  }

  /// Timed steps of the range, which gets its share of the time. Samples of ranges add up, one to one: each is a step.
  /// Where ranks take turns, what all decode alike is timed on rank 0 alone: p times the same work says nothing more.
  void sample() {
    units_->spare_results(plan_.timing == Timing::isolated);
    const auto start = Clock::now();
    const std::size_t steps = plan_.steps();
    const StopRule stop = range_stop();
    double limit = 0.0;
    std::vector<PhaseTimes> samples;
    std::vector<double> watched;
    const std::size_t warmup = plan_.errors ? 0 : plan_.options.warmup_steps;  // the pass for the errors warms up too
    for (std::size_t i = 0;; ++i) {
      const auto begins = [&](const StepWindow& window) { return window.begin == i % steps; };
      if (std::any_of(result_.windows.begin(), result_.windows.end(), begins)) units_->forget();
      const PhaseTimes sample = timed_step(i % steps);
      bool done = interrupted();
      if (leads()) {
        const double elapsed = since(start);
        if (i == 0) limit = limit_of(elapsed);
        // Warm-up steps are left out, unless the time is over before they are.
        if (i >= warmup || elapsed >= limit) {
          const bool throttled = discarded_.count(clock_seen());
          if (!throttled) {
            samples.push_back(sample);
            if (plan_.timing == Timing::isolated) unit_times_.keep(range_.first, unit_row());
            watched.push_back(plan_.timing == Timing::concurrent ? sample.total
                                                                 : sample.phase[0] + sample.phase[1] + sample.phase[2]);
          }
          const bool hopeless = discarded_.samples() >= kMostDiscarded && discarded_.samples() > watched.size();
          done = done || hopeless || stop.done(watched, elapsed, limit);
        }
      }
      std::array<double, 1> verdict{done ? 1.0 : 0.0};
      comm_.agree_max(verdict);
      if (verdict[0] != 0.0) break;
    }
    add_samples(std::move(samples), since(start), limit);
  }

  /// Adds samples of the range, with the seconds that they took and that they had.
  void add_samples(std::vector<PhaseTimes> samples, double seconds, double limit) {
    result_.seconds += seconds;
    result_.limit += limit;
    if (range_.first == 0) {
      result_.samples = std::move(samples);
      return;
    }
    result_.samples.resize(std::min(result_.samples.size(), samples.size()));
    for (std::size_t i = 0; i < result_.samples.size(); ++i) result_.samples[i] += samples[i];
  }

  /// One sample: all units of the range in a step.
  PhaseTimes timed_step(std::size_t step) {
    processor_.throttle().look();
    for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
      const auto buffer = units_->prepare(step, unit, false);
      reduce_timed(comm_, step, unit, buffer, plan_.timing);
      if (!plan_.options.check) continue;
      comm_.barrier(processor_.queue());  // after every rank's clock has stopped
      remember(unit, processor_.download(units_->result(unit, buffer)));
    }
    const PhaseTimes sample = finish_sample();
    agreement_->compare(step);
    return sample;
  }

  /// Reduces a unit while the clock runs, and puts into row_ what it took.
  void reduce_timed(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer, Timing timing) {
    if (plan_.options.hot)
      processor_.warm(units_->input(unit, buffer));
    else
      processor_.evict(units_->input(unit, buffer));
    processor_.clock().start(timing);
    units_->reduce(comm, step, unit, buffer, processor_.clock());
    const PhaseTimes times = processor_.clock().stop();
    processor_.throttle().look();
    double* const row = &row_[UnitTimes::kKinds * (unit - range_.first)];
    std::copy(times.phase.begin(), times.phase.end(), row);
    row[3] = times.total;
    row[4] = times.decode_across;
  }

  /// The sample that row_ adds up to, after all units of a step, each as slow as its slowest rank.
  PhaseTimes finish_sample() {
    const auto seen = processor_.throttle().take();
    std::copy(seen.begin(), seen.end(), clock_seen().begin());
    comm_.agree_max(row_);
    PhaseTimes sample;
    for (std::size_t i = 0; i < UnitTimes::kKinds * range_.size(); i += UnitTimes::kKinds) {
      sample += {.phase = {row_[i], row_[i + 1], row_[i + 2]}, .total = row_[i + 3], .decode_across = row_[i + 4]};
    }
    return sample;
  }

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Processor& processor_;
  StepLoader& loader_;
  bool shared_loader_;
  ReplayResult& result_;
  UnitRange range_;  ///< the one that is replayed; units_, agreement_ and row_ are its own
  std::optional<RankUnits<S, Processor>> units_;
  std::optional<RankAgreement<S>> agreement_;
  std::vector<double> row_;  ///< of a step: seconds of each unit (UnitTimes); then the reasons for which the clock was
                             ///< held down
  CollectiveReference<S, Processor> comparison_;
  UnitCounts counts_;
  std::vector<double> sent_;                       ///< bytes that this rank sent in each step
  std::vector<double> sent_inside_, sent_across_;  ///< of these, on the levels that a communicator has
  std::vector<std::string> notes_;
  std::vector<Tally> tallies_;
  UnitTimes unit_times_;
  DiscardedSamples discarded_;
  SpareSample concurrent_;             ///< added over ranges
  std::size_t concurrent_ranges_ = 0;  ///< that have one
  std::vector<double> mean_target_;
  std::unique_ptr<PayloadLog> log_;  ///< where payloads are written down
};

}  // namespace gradtool
