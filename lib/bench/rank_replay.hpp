#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/bench/fingerprint.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/codecs/pipelined.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/recording.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"

namespace gradtool {

/// Sum of squares.
inline double energy(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

/// What rank 0 adds up in the pass for the errors: error sums per tensor, and running sums over steps per element.
class ErrorTotals {
 public:
  ErrorTotals(const ReplayPlan& plan, ReplayResult& result) : units_{plan.units}, result_{result} {
    const std::size_t tensors = plan.reader.tensors().size();
    result.tensor_errors.assign(tensors, {});
    result.cumulative_error.assign(tensors, 0.0);
    result.cumulative_energy.assign(tensors, 0.0);
    for (const auto& unit : units_) {
      difference_.emplace_back(unit.elements, 0.0);
      total_.emplace_back(unit.elements, 0.0);
    }
  }

  /// `loaded` holds the unit's gradients, `got` is what became of them.
  void observe(std::size_t unit_index, const StepLoader& loaded, std::span<const float> got) {
    // Block by block, so that a large unit comes through the caches once. The sums run over all blocks in order.
    constexpr std::size_t kBlock = 1024;
    std::array<double, kBlock> mean;
    for (const auto& piece : units_[unit_index].pieces) {
      ErrorSums sums;
      for (std::size_t done = 0; done < piece.elements; done += kBlock) {
        const std::size_t first = piece.first + done;
        const auto exact = std::span{mean}.first(std::min(kBlock, piece.elements - done));
        const auto result = got.subspan(first, exact.size());
        loaded.mean(first, exact);
        sums.observe(exact, result);
        add_to_totals(exact, result, &difference_[unit_index][first], &total_[unit_index][first]);
      }
      result_.tensor_errors[piece.tensor].merge(sums);
      step_.sums.merge(sums);
    }
  }

  /// All units of a step were observed.
  void end_step() { result_.step_errors.push_back(std::exchange(step_, {})); }

  void finish() {
    for (std::size_t u = 0; u < difference_.size(); ++u) {
      for (const auto& piece : units_[u].pieces) {
        for (std::size_t i = piece.first; i < piece.first + piece.elements; ++i) {
          result_.cumulative_error[piece.tensor] += difference_[u][i] * difference_[u][i];
          result_.cumulative_energy[piece.tensor] += total_[u][i] * total_[u][i];
        }
      }
    }
  }

 private:
  void add_to_totals(std::span<const double> exact, std::span<const float> got, double* difference, double* total) {
    double error = step_.cumulative_error;  // not added up in memory, which the stores below might be to
    double energy = step_.cumulative_energy;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      difference[i] += exact[i] - static_cast<double>(got[i]);
      total[i] += exact[i];
      error += difference[i] * difference[i];
      energy += total[i] * total[i];
    }
    step_.cumulative_error = error;
    step_.cumulative_energy = energy;
  }

  const std::vector<Unit>& units_;
  ReplayResult& result_;
  StepErrors step_;
  std::vector<std::vector<double>> difference_, total_;
};

/// What every rank counts of every unit, added over steps.
class UnitCounts {
 public:
  UnitCounts(std::size_t units, int rank, int ranks)
      : rank_{static_cast<std::size_t>(rank)},
        ranks_{static_cast<std::size_t>(ranks)},
        counts_(units * ranks_ * kKinds, 0.0) {}

  void add(std::size_t unit, std::uint64_t payload_bytes, std::uint64_t values_sent) {
    double* const mine = &counts_[(unit * ranks_ + rank_) * kKinds];
    mine[0] += static_cast<double>(payload_bytes);
    mine[1] += static_cast<double>(values_sent);
  }

  /// The counts of all ranks, after all of them have called this. Each leaves the places of the others at 0.
  template <Space S>
  void share(Communicator<S>& comm) {
    comm.agree_max(counts_);
  }

  /// What they come to, once they are shared.
  void finish(std::size_t steps, ReplayResult& result) const {
    const std::size_t row = ranks_ * kKinds;
    std::vector<double> all(row, 0.0);
    for (std::size_t unit = 0; unit < result.units.size(); ++unit) {
      const auto counts = std::span{counts_}.subspan(unit * row, row);
      std::transform(counts.begin(), counts.end(), all.begin(), all.begin(), std::plus<>{});
      over_ranks(counts, static_cast<double>(steps), result.units[unit].bytes);
    }
    over_ranks(all, static_cast<double>(steps), result.bytes);
  }

 private:
  static constexpr std::size_t kKinds = 2;

  static void over_ranks(std::span<const double> counts, double steps, StepBytes& bytes) {
    bytes.fewest_values_sent = counts[1] / steps;
    for (std::size_t i = 0; i < counts.size(); i += kKinds) {
      bytes.payload += counts[i];
      bytes.payload_max = std::max(bytes.payload_max, counts[i] / steps);
      bytes.values_sent += counts[i + 1];
      bytes.fewest_values_sent = std::min(bytes.fewest_values_sent, counts[i + 1] / steps);
    }
    const double ranks = static_cast<double>(counts.size() / kKinds);
    bytes.payload /= ranks * steps;
    bytes.values_sent /= ranks * steps;
  }

  std::size_t rank_, ranks_;
  std::vector<double> counts_;  ///< of each unit and rank: bytes of the payload, values sent
};

/// Keeps what a unit's encode and decode took in every sample.
class UnitTimes {
 public:
  /// `row`: encode, communicate, decode, total of each unit.
  void keep(std::span<const double> row) {
    times_.resize(row.size() / 2);
    for (std::size_t unit = 0; unit < row.size() / 4; ++unit) {
      times_[2 * unit].push_back(row[4 * unit]);
      times_[2 * unit + 1].push_back(row[4 * unit + 2]);
    }
  }
  /// Medians over the samples.
  void finish(std::vector<UnitProfile>& units) const {
    if (times_.empty()) return;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      units[unit].encode = summarise(times_[2 * unit]).median;
      units[unit].decode = summarise(times_[2 * unit + 1]).median;
    }
  }

 private:
  std::vector<std::vector<double>> times_;  ///< encode and decode of the first unit, then of the second, and so on
};

/// Whether all ranks end a step with the same bits. Does nothing where --check is off.
template <Space S>
class RankAgreement {
 public:
  RankAgreement(const ReplayPlan& plan, Communicator<S>& comm)
      : plan_{plan}, comm_{comm}, prints_(4 * plan.units.size()) {}

  /// Remembers what a unit came to on this rank.
  void keep(std::size_t unit, std::span<const float> values) {
    if (!plan_.options.check) return;
    const auto print = fingerprint(values);
    const std::array<double, 4> both{print[0], -print[0], print[1], -print[1]};
    std::copy(both.begin(), both.end(), prints_.begin() + static_cast<std::ptrdiff_t>(4 * unit));
  }

  /// Compares all units of a step at once. The ranks agree where the largest fingerprint over ranks is also the
  /// smallest, which is the largest negative one. Throws Fault::check where they do not.
  void compare(std::size_t step) {
    if (!plan_.options.check) return;
    comm_.agree_max(prints_);
    for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
      const double* both = &prints_[4 * unit];
      if (both[0] == -both[1] && both[2] == -both[3]) continue;
      const auto& tensor = plan_.reader.tensors()[plan_.units[unit].pieces.front().tensor];
      throw Error{Fault::check, fmt::format("codec {}: ranks ended with different results at step {}, unit of {}",
                                            plan_.codec.name(), plan_.reader.steps()[step].iteration, tensor.name)};
    }
  }

 private:
  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  std::vector<double> prints_;  ///< of a step: for each unit both halves of the fingerprint, each with its negative
};

// The template parameter `Processor` of what follows is what a replay needs of a processor beyond codecs and reducers.
// HostProcessor is in replay.cpp, CudaProcessor in replay_cuda.cpp:
//   Queue<S> queue(); Queue<S> queue(std::size_t elements) for a unit of so many; Clock& clock();
//   void upload(std::span<const float>, View<float, S>)  enqueued, from memory of the loader; void finish_uploads();
//   std::span<const float> download(View<const float, S>), HostView<const std::byte> look(View<const std::byte, S>):
//     each result is valid until the next call;
//   void evict(View<float, S>)  drives the buffer out of the caches;
//   ThrottleWatch& throttle(); std::string clock_note()  says why nothing watches the clock;
//   static bool allocates_alone()  is true where no library allocates in its own calls.

/// The units of one rank: their reducers, and the buffer in which one after the other is reduced.
template <Space S, class Processor>
class RankUnits {
 public:
  RankUnits(const ReplayPlan& plan, Communicator<S>& comm, Processor& processor, StepLoader& loader, bool shared_loader)
      : plan_{plan},
        comm_{comm},
        processor_{processor},
        queue_{processor.queue()},
        loader_{loader},
        shared_loader_{shared_loader} {
    comm_.set_all_reduce(plan.options.all_reduce);
    std::size_t workspace = 0;
    std::size_t largest = 0;
    std::shared_ptr<const Codec<S>> codec;
    const CodecDescriptor& descriptor = *plan.codec.descriptor;
    for (const auto& unit : plan.units) {
      const Layout layout = layout_of(unit, plan.reader.tensors());
      if (codec == nullptr || descriptor.by_layout) codec = make_codec<S>(plan.codec, layout);
      queues_.push_back(processor.queue(unit.elements));
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

  [[nodiscard]] std::size_t size() const { return reducers_.size(); }
  [[nodiscard]] Reducer<S>& operator[](std::size_t unit) const { return *reducers_[unit]; }
  void reset() {
    for (auto& reducer : reducers_) reducer->reset(queue_);
  }

  /// Brings the rank's gradient of a unit into the buffer that is reduced. Not timed. `all_ranks`: rank 0
  /// loads those of all, for their mean.
  View<float, S> prepare(std::size_t step, std::size_t unit, bool all_ranks) {
    processor_.finish_uploads();
    if (shared_loader_) {
      comm_.barrier(queue_);  // nobody still reads the unit before
      if (comm_.rank() == 0) loader_.load(plan_.units[unit], step);
      comm_.barrier(queue_);
    } else {
      loader_.load(plan_.units[unit], step, all_ranks && comm_.rank() == 0 ? -1 : comm_.rank());
    }
    const auto gradient = loader_.gradient(comm_.rank());
    processor_.upload(gradient, buffer_.first(gradient.size()));
    const auto weight = loader_.weight();
    const auto moment = loader_.second_moment(comm_.rank());
    if (!weight.empty()) processor_.upload(weight, weight_.first(weight.size()));
    if (!moment.empty()) processor_.upload(moment, second_moment_.first(moment.size()));
    side_ = {.weight = weight_.first(weight.size()), .second_moment = second_moment_.first(moment.size())};
    return buffer_.first(gradient.size());
  }

  /// Throws Fault::check when it allocates.
  void reduce(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer, PhaseClock<S>& clock) {
    const AllocationWatch watch;
    reduce_unwatched(comm, step, unit, buffer, clock);
    if (Processor::allocates_alone() && AllocationWatch::active() && watch.on_this_thread() != 0) {
      throw Error{Fault::check, fmt::format("codec {}: {} allocations in the timed region", plan_.codec.name(),
                                            watch.on_this_thread())};
    }
  }
  void reduce_unwatched(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer,
                        PhaseClock<S>& clock) {
    reducers_[unit]->reduce(comm, queues_[unit], buffer, side_, context(step, unit), workspace_, clock);
  }

 private:
  std::unique_ptr<Reducer<S>> make_unit_reducer(const std::shared_ptr<const Codec<S>>& codec, const Layout& layout) {
    if constexpr (S == Space::host) {
      if (plan_.pipeline() > 1) {
        return make_pipelined_reducer(plan_.codec, codec, plan_.scheme(), layout, plan_.ranks, queue_,
                                      static_cast<std::size_t>(plan_.pipeline()), processor_.chunk_threads());
      }
    }
    return make_reducer<S>(plan_.codec, codec, plan_.scheme(), layout, plan_.ranks, queue_);
  }

  [[nodiscard]] EncodeContext context(std::size_t step, std::size_t unit) const {
    const auto& steps = plan_.reader.steps();
    const double now = steps[step].learning_rate.value_or(1.0);
    const double first = steps.front().learning_rate.value_or(1.0);
    return {.key = {.seed = plan_.options.seed,
                    .step = static_cast<std::uint32_t>(step),
                    .rank = static_cast<std::uint32_t>(comm_.rank()),
                    .tensor = static_cast<std::uint32_t>(unit)},
            .iteration = steps[step].iteration,
            .learning_rate_ratio = first > 0.0 ? now / first : 1.0};
  }

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Processor& processor_;
  Queue<S> queue_;
  StepLoader& loader_;
  bool shared_loader_;
  std::vector<std::unique_ptr<Reducer<S>>> reducers_;
  std::vector<Queue<S>> queues_;  ///< of each, with the threads that it feeds
  std::unique_ptr<Arena<S>> arena_;
  RegisteredMemory<S> registered_;  ///< ends before the arena does
  View<float, S> buffer_, weight_, second_moment_;
  SideInputs<S> side_;
  View<std::byte, S> workspace_;
};

/// One rank of one replay: the pass for the errors, then timed steps until the plan has enough of them.
template <Space S, class Processor>
class RankReplay {
 public:
  RankReplay(const ReplayPlan& plan, Communicator<S>& comm, Processor& processor, StepLoader& loader,
             bool shared_loader, ReplayResult& result)
      : plan_{plan},
        comm_{comm},
        processor_{processor},
        loader_{loader},
        result_{result},
        units_{plan, comm, processor, loader, shared_loader},
        agreement_{plan, comm},
        row_(4 * plan.units.size() + kThrottleReasons.size()) {
    result.units.resize(plan.units.size());
  }

  void run() {
    if (plan_.errors) compare_with_mean();
    const auto start = std::chrono::steady_clock::now();
    const std::size_t steps = plan_.steps();
    const StopRule& stop = plan_.stop;
    double limit = 0.0;
    std::vector<double> watched;
    DiscardedSamples discarded;
    const std::size_t warmup = plan_.errors ? 0 : plan_.options.warmup_steps;  // the pass for the errors warms up too
    for (std::size_t i = 0;; ++i) {
      if (i % steps == 0) units_.reset();
      const PhaseTimes sample = timed_step(i % steps);
      bool done = interrupted();
      if (leads()) {
        const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i == 0) limit = stop.limit(elapsed);
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
          done = done || hopeless || stop.done(watched, elapsed, limit);
        }
      }
      std::array<double, 1> verdict{done ? 1.0 : 0.0};
      comm_.agree_max(verdict);
      if (verdict[0] != 0.0) break;
    }
    std::array<double, 2> times{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), limit};
    comm_.agree_max(times);
    result_.seconds = times[0];
    result_.limit = times[1];
    if (!leads()) return;
    unit_times_.finish(result_.units);
    result_.clock_note = discarded.samples() > 0 ? discarded.note() : processor_.clock_note();
  }

 private:
  /// After so many samples whose clock was held down, and fewer that are good, nothing better is to be expected.
  static constexpr std::size_t kMostDiscarded = 200;

  [[nodiscard]] std::span<double> unit_row() { return std::span{row_}.first(4 * units_.size()); }
  [[nodiscard]] std::span<double> clock_seen() { return std::span{row_}.subspan(4 * units_.size()); }
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  /// The pass for the errors. Every step once, untimed: errors, bytes, residuals, the same bits on every rank.
  void compare_with_mean() {
    std::unique_ptr<ErrorTotals> totals = leads() ? std::make_unique<ErrorTotals>(plan_, result_) : nullptr;
    if (plan_.write_payloads) log_ = std::make_unique<PayloadLog>(plan_, comm_.rank());
    const std::size_t steps = plan_.steps();
    UnitCounts counts{units_.size(), comm_.rank(), comm_.size()};
    std::vector<double> sent(units_.size() + 1);  // in a step, for each unit and for all of them
    for (std::size_t step = 0; step < steps; ++step) {
      comm_.reset_traffic();
      for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        const auto buffer = units_.prepare(step, unit, true);
        const std::uint64_t sent_before = comm_.traffic().bytes_sent;
        reduce_recorded(step, unit, buffer);
        const auto values = processor_.download(buffer);
        agreement_.keep(unit, values);
        counts.add(unit, units_[unit].payload_bytes(), units_[unit].values_sent(processor_.queue()));
        sent[unit] = static_cast<double>(comm_.traffic().bytes_sent - sent_before);
        if (!leads()) continue;
        totals->observe(unit, loader_, values);
        if (plan_.on_result) plan_.on_result(step, plan_.units[unit], values);
        units_[unit].settle(processor_.queue());
        const auto residual = units_[unit].residual();
        result_.has_residual = result_.has_residual || !residual.empty();
        if (!residual.empty()) result_.residual_energy += energy(processor_.download(residual));
        result_.gradient_energy += energy(loader_.gradient(0));
      }
      if (leads()) totals->end_step();
      agreement_.compare(step);
      sent.back() = static_cast<double>(comm_.traffic().bytes_sent);
      comm_.agree_max(sent);
      result_.bytes.wire_per_rank += sent.back() / static_cast<double>(steps);
      for (std::size_t unit = 0; unit < units_.size(); ++unit)
        result_.units[unit].bytes.wire_per_rank += sent[unit] / static_cast<double>(steps);
      if (interrupted()) throw Error{Fault::check, std::string{kInterruptedMessage}};
    }
    if (log_) log_->close();
    log_.reset();
    counts.share(comm_);
    if (!leads()) return;
    counts.finish(steps, result_);
    for (auto& unit : result_.units) {
      for (auto& use : unit.uses) {
        use.calls /= static_cast<double>(steps);
        use.bytes /= static_cast<double>(steps);
      }
    }
    collect_notes();
    totals->finish();
  }

  /// Counts the collectives, and writes payloads down when asked to.
  void reduce_recorded(std::size_t step, std::size_t unit, View<float, S> buffer) {
    RecordingCommunicator<S> recording{comm_, [&](const typename RecordingCommunicator<S>::Call& call) {
                                         const auto pattern = units_[unit].pattern();
                                         add_use(result_.units[unit].uses, call.name, call.mean_bytes, pattern.shards,
                                                 pattern.ring);
                                         if (log_) log_->put(step, unit, call.name, processor_.look(call.bytes));
                                       }};
    NoClock<S> clock;
    if (log_)
      units_.reduce_unwatched(recording, step, unit, buffer, clock);  // writing payloads down allocates
    else
      units_.reduce(recording, step, unit, buffer, clock);
  }

  /// What rank 0's reducers say: every note once, tallies added over units.
  void collect_notes() {
    std::vector<Tally> tallies;
    std::vector<std::string> notes;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      std::string note = units_[unit].note();
      if (!note.empty() && std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
      for (const auto& tally : units_[unit].tallies()) {
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
    result_.reached = false;
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      result_.reached = result_.reached || units_[unit].reached();
  }

  /// One sample: all units of a step, each as slow as its slowest rank.
  PhaseTimes timed_step(std::size_t step) {
    ThrottleWatch& throttle = processor_.throttle();
    throttle.look();
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const auto buffer = units_.prepare(step, unit, false);
      if (!plan_.options.hot) processor_.evict(buffer);
      processor_.clock().start();
      units_.reduce(comm_, step, unit, buffer, processor_.clock());
      const PhaseTimes times = processor_.clock().stop();
      throttle.look();
      for (std::size_t i = 0; i < 3; ++i) row_[4 * unit + i] = times.phase[i];
      row_[4 * unit + 3] = times.total;
      if (!plan_.options.check) continue;
      comm_.barrier(processor_.queue());  // after every rank's clock has stopped
      agreement_.keep(unit, processor_.download(buffer));
    }
    const auto seen = throttle.take();
    std::copy(seen.begin(), seen.end(), clock_seen().begin());
    comm_.agree_max(row_);
    agreement_.compare(step);
    PhaseTimes sample;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      for (std::size_t i = 0; i < 3; ++i) sample.phase[i] += row_[4 * unit + i];
      sample.total += row_[4 * unit + 3];
    }
    return sample;
  }

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Processor& processor_;
  StepLoader& loader_;
  ReplayResult& result_;
  RankUnits<S, Processor> units_;
  RankAgreement<S> agreement_;
  std::vector<double> row_;  ///< of a step: for each unit the seconds of its phases and its total; then the reasons for
                             ///< which the clock was held down
  UnitTimes unit_times_;
  std::unique_ptr<PayloadLog> log_;  ///< while payloads are written down
};

}  // namespace gradtool
