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
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/bench/collective_reference.hpp"
#include "lib/bench/error_totals.hpp"
#include "lib/bench/fingerprint.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/codecs/pipelined.hpp"
#include "lib/codecs/prototype.hpp"
#include "lib/codecs/uncompressed_reducer.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/recording.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"

namespace gradtool {

/// Sum of squares.
inline double energy(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

/// What every rank counts of every unit, added over steps, and of every step, added over units.
class UnitCounts {
 public:
  UnitCounts(std::size_t units, std::size_t steps, int rank, int ranks)
      : units_{units},
        rank_{static_cast<std::size_t>(rank)},
        ranks_{static_cast<std::size_t>(ranks)},
        counts_((units + steps) * ranks_ * kKinds, 0.0) {}

  void add(std::size_t step, std::size_t unit, std::uint64_t payload_bytes, std::uint64_t values_sent) {
    for (const std::size_t place : {unit, units_ + step}) {
      double* const mine = &counts_[(place * ranks_ + rank_) * kKinds];
      mine[0] += static_cast<double>(payload_bytes);
      mine[1] += static_cast<double>(values_sent);
    }
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
    for (std::size_t step = 0; step < steps; ++step)
      over_ranks(std::span{counts_}.subspan((units_ + step) * row, row), 1.0, result.step_errors[step].bytes);
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
    const std::size_t number_of_ranks = counts.size() / kKinds;
    const auto ranks = static_cast<double>(number_of_ranks);
    bytes.payload /= ranks * steps;
    bytes.values_sent /= ranks * steps;
  }

  std::size_t units_, rank_, ranks_;
  std::vector<double> counts_;  ///< of each unit, then of each step, and rank: bytes of the payload, values sent
};

/// Keeps what a unit's encode and decode took in every sample.
class UnitTimes {
 public:
  /// What a row has of each unit: encode, communicate, decode, total, and what of decoding is between machines.
  static constexpr std::size_t kKinds = 5;

  /// `row`: of each unit from `first` on.
  void keep(std::size_t first, std::span<const double> row) {
    const std::size_t units = row.size() / kKinds;
    times_.resize(std::max(times_.size(), kKept * (first + units)));
    for (std::size_t unit = 0; unit < units; ++unit) {
      auto* const kept = &times_[kKept * (first + unit)];
      kept[0].push_back(row[kKinds * unit]);
      kept[1].push_back(row[kKinds * unit + 2]);
      kept[2].push_back(row[kKinds * unit + 4]);
    }
  }
  /// Medians over the samples.
  void finish(std::vector<UnitProfile>& units) const {
    if (times_.empty()) return;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      units[unit].encode = summarise(times_[kKept * unit]).median;
      units[unit].decode = summarise(times_[kKept * unit + 1]).median;
      units[unit].decode_across = summarise(times_[kKept * unit + 2]).median;
    }
  }

 private:
  static constexpr std::size_t kKept = 3;
  std::vector<std::vector<double>> times_;  ///< what is kept of the first unit, then of the second, and so on
};

/// Whether all ranks end a step with the same bits. Does nothing where --check is off, and for a collective that brings
/// each rank something else.
template <Space S>
class RankAgreement {
 public:
  RankAgreement(const ReplayPlan& plan, UnitRange range, Communicator<S>& comm)
      : plan_{plan},
        range_{range},
        comm_{comm},
        compares_{plan.options.check && same_everywhere(plan.op())},
        prints_(4 * range.size()) {}

  /// Remembers what a unit of the range came to on this rank.
  void keep(std::size_t unit, std::span<const float> values) {
    if (!compares_) return;
    const auto print = fingerprint(values);
    const std::array<double, 4> both{print[0], -print[0], print[1], -print[1]};
    std::copy(both.begin(), both.end(), prints_.begin() + static_cast<std::ptrdiff_t>(4 * (unit - range_.first)));
  }

  /// Compares all units of a step at once. The ranks agree where the largest fingerprint over ranks is also the
  /// smallest, which is the largest negative one. Throws Fault::check where they do not.
  void compare(std::size_t step) {
    if (!compares_) return;
    comm_.agree_max(prints_);
    for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
      const double* both = &prints_[4 * (unit - range_.first)];
      if (both[0] == -both[1] && both[2] == -both[3]) continue;
      const auto& tensor = plan_.reader.tensors()[plan_.units[unit].pieces.front().tensor];
      throw Error{Fault::check, fmt::format("codec {}: ranks ended with different results at step {}, unit of {}",
                                            plan_.codec.name(), plan_.reader.steps()[step].iteration, tensor.name)};
    }
  }

 private:
  const ReplayPlan& plan_;
  UnitRange range_;
  Communicator<S>& comm_;
  bool compares_;
  std::vector<double> prints_;  ///< of a step: for each unit both halves of the fingerprint, each with its negative
};

// The template parameter `Processor` of what follows is what a replay needs of a processor beyond codecs and reducers.
// HostProcessor is in replay.cpp, CudaProcessor in replay_cuda.cpp:
//   Queue<S> queue(); Queue<S> queue(std::size_t elements) for a unit of so many; Clock& clock();
//   void upload(std::span<const float>, View<float, S>)  enqueued, from memory of the loader, which may be the buffer
//     itself; void finish_uploads();
//   std::span<const float> download(View<const float, S>), HostView<const std::byte> look(View<const std::byte, S>):
//     each result is valid until the next call;
//   void evict(View<float, S>)  drives the buffer out of the caches, void warm(View<float, S>) brings it there;
//   ThrottleWatch& throttle(); std::string clock_note()  says why nothing watches the clock;
//   static bool allocates_alone()  is true where no library allocates in its own calls.

/// A range of units of one rank: their reducers, and the buffer in which one after the other is reduced. Units are
/// counted as the plan counts them.
template <Space S, class Processor>
class RankUnits {
 public:
  RankUnits(const ReplayPlan& plan, UnitRange range, Communicator<S>& comm, Processor& processor, StepLoader& loader,
            bool shared_loader)
      : plan_{plan},
        range_{range},
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
    const std::vector<double> depths = depths_of(plan.reader.tensors());
    for (const auto& unit : range.of(plan.units)) {
      const Layout layout = plan.op() == Collective::all_reduce ? layout_of(unit, plan.reader.tensors(), depths)
                                                                : Layout::flat(plan.padded(unit.elements));
      if (codec == nullptr || made_for_layout(descriptor)) codec = make_codec<S>(plan.codec, layout);
      queues_.push_back(processor.queue(unit.elements));
      summed_.push_back(summed_tensors(layout));
      uncompressed_.push_back(nullptr);
      reducers_.push_back(make_unit_reducer(codec, layout, unit.dtype));
      reducers_.back()->prepare(comm_);
      workspace = std::max(workspace, reducers_.back()->workspace_bytes());
      largest = std::max(largest, layout.elements);
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
    if constexpr (S == Space::host) loader_.lend(comm_.rank(), buffer_.span());
  }

  [[nodiscard]] Reducer<S>& operator[](std::size_t unit) const { return *reducers_[unit - range_.first]; }
  /// Resets every reducer.
  void forget() {
    for (auto& reducer : reducers_) reducer->reset(queue_);
  }

  /// Brings the rank's gradient of a unit into the buffer that is reduced, and zeros behind it up to whole shards. Not
  /// timed. `with_mean`: the loader of rank 0 has the mean over ranks then.
  View<float, S> prepare(std::size_t step, std::size_t unit, bool with_mean) {
    processor_.finish_uploads();
    const bool leads = comm_.rank() == 0;
    if (shared_loader_) {
      comm_.barrier(queue_);  // nobody still reads the unit before, and everybody's buffer is lent
      if (leads) loader_.load(plan_.units[unit], step, StepLoader::kAllRanks, with_mean);
      comm_.barrier(queue_);
    } else {
      loader_.load(plan_.units[unit], step, comm_.rank(), with_mean && leads);
    }
    const auto gradient = loader_.gradient(comm_.rank());
    processor_.upload(gradient, buffer_.first(gradient.size()));
    const auto weight = loader_.weight();
    const auto moment = loader_.second_moment(comm_.rank());
    if (!weight.empty()) processor_.upload(weight, weight_.first(weight.size()));
    if (!moment.empty()) processor_.upload(moment, second_moment_.first(moment.size()));
    side_ = {.weight = weight_.first(weight.size()), .second_moment = second_moment_.first(moment.size())};
    comm_.describe(summed_[unit - range_.first]);
    const std::size_t padded = plan_.padded(gradient.size());
    const auto buffer = buffer_.first(padded);
    fill_zero(queue_, buffer.part(gradient.size(), padded - gradient.size()));
    if (auto* const uncompressed = uncompressed_[unit - range_.first]) uncompressed->load(queue_, buffer, workspace_);
    return buffer;
  }

  /// What a reduction of `buffer` reads first.
  [[nodiscard]] View<float, S> input(std::size_t unit, View<float, S> buffer) const {
    const auto* const uncompressed = uncompressed_[unit - range_.first];
    return uncompressed == nullptr ? buffer : uncompressed->input(workspace_);
  }
  /// Where the last reduction of `buffer` left its result. Not timed.
  View<float, S> result(std::size_t unit, View<float, S> buffer) {
    if (auto* const uncompressed = uncompressed_[unit - range_.first]) uncompressed->store(queue_, buffer, workspace_);
    return (*this)[unit].result(buffer);
  }

  /// Throws Fault::check when it allocates.
  void reduce(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer, PhaseClock<S>& clock) {
    const AllocationWatch watch;
    reduce_unwatched(comm, step, unit, buffer, clock);
    // A transport of packets keeps buffers that grow with the first messages; a prototype is asked in words.
    if (Processor::allocates_alone() && comm.transport() == nullptr && AllocationWatch::active() &&
        plan_.codec.descriptor->name != kPrototype && watch.on_this_thread() != 0) {
      throw Error{Fault::check, fmt::format("codec {}: {} allocations in the timed region", plan_.codec.name(),
                                            watch.on_this_thread())};
    }
  }
  void reduce_unwatched(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer,
                        PhaseClock<S>& clock) {
    reducers_[unit - range_.first]->reduce(comm, queues_[unit - range_.first], buffer, side_, context(step, unit),
                                           workspace_, clock);
  }

 private:
  std::unique_ptr<Reducer<S>> make_unit_reducer(const std::shared_ptr<const Codec<S>>& codec, const Layout& layout,
                                                Dtype dtype) {
    if (dtype != Dtype::f32 && plan_.codec.name() == "none") {
      auto reducer = std::make_unique<UncompressedReducer<S>>(dtype, layout.elements, plan_.ranks, plan_.op());
      uncompressed_.back() = reducer.get();
      return reducer;
    }
    if constexpr (S == Space::host) {
      if (plan_.pipeline() > 1) {
        return make_pipelined_reducer(plan_.codec, codec, plan_.scheme(), layout, plan_.ranks, queue_,
                                      static_cast<std::size_t>(plan_.pipeline()), processor_.chunk_threads());
      }
    }
    if (plan_.node() > 1) {
      return make_levelled_reducer<S>(plan_.codec, plan_.options.inside(), plan_.scheme(), layout.elements, dtype,
                                      plan_.ranks, plan_.node(), queue_);
    }
    return make_reducer<S>(plan_.codec, codec, plan_.scheme(), layout, plan_.ranks, queue_, plan_.op());
  }

  [[nodiscard]] EncodeContext context(std::size_t step, std::size_t unit) const {
    const auto& steps = plan_.reader.steps();
    const double now = steps[step].learning_rate.value_or(1.0);
    double highest = now;  // of the steps so far: a warm-up is not what schedules follow
    for (std::size_t i = 0; i < step; ++i) highest = std::max(highest, steps[i].learning_rate.value_or(1.0));
    return {.key = {.seed = plan_.options.seed,
                    .step = static_cast<std::uint32_t>(step),
                    .rank = static_cast<std::uint32_t>(comm_.rank()),
                    .tensor = static_cast<std::uint32_t>(unit)},
            .iteration = steps[step].iteration,
            .learning_rate_ratio = highest > 0.0 ? now / highest : 1.0};
  }

  const ReplayPlan& plan_;
  UnitRange range_;
  Communicator<S>& comm_;
  Processor& processor_;
  Queue<S> queue_;
  StepLoader& loader_;
  bool shared_loader_;
  std::vector<std::unique_ptr<Reducer<S>>> reducers_;
  std::vector<UncompressedReducer<S>*> uncompressed_;  ///< of each unit, where its reducer is one
  std::vector<std::vector<SummedTensor>> summed_;      ///< of each unit, for Communicator::describe
  std::vector<Queue<S>> queues_;                       ///< of each, with the threads that it feeds
  std::unique_ptr<Arena<S>> arena_;
  RegisteredMemory<S> registered_;  ///< ends before the arena does
  View<float, S> buffer_, weight_, second_moment_;
  SideInputs<S> side_;
  View<std::byte, S> workspace_;
};

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
      if (plan_.errors) compare_with_mean();
      sample();
      units_.reset();  // before the next range takes memory
    }
    if (log_) log_->close();
    if (plan_.errors) finish_comparison();
    std::array<double, 2> times{result_.seconds, result_.limit};
    comm_.agree_max(times);
    result_.seconds = times[0];
    result_.limit = times[1];
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

  /// The pass for the errors over the range. Every step once, untimed: errors, bytes, residuals, the same bits on every
  /// rank.
  void compare_with_mean() {
    std::optional<ErrorTotals> totals;
    if (leads()) {
      totals.emplace(range_.of(plan_.units), plan_.options.update_rule, plan_.codec.own_momentum(), result_);
    }
    const std::size_t steps = plan_.steps();
    // In a step, for each unit: of all, inside machines, between them.
    const std::size_t count = range_.size();
    std::vector<double> sent(3 * count);
    std::size_t window = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      if (step == result_.windows[window].end) {
        if (leads()) {
          totals->finish(window);
          collect_notes();  // before the reducers forget
        }
        ++window;
        units_->forget();
      }
      comm_.reset_traffic();
      for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
        const auto buffer = units_->prepare(step, unit, true);
        // Now, because on the host the reduction overwrites what was loaded.
        if (leads()) {
          const double encoded = energy(comparison_.encoded_by_first(loader_.gradient(0)));
          result_.gradient_energy += encoded;
          result_.step_errors[step].gradient_energy += encoded;
        }
        comparison_.before(buffer);
        comm_.reset_traffic();
        reduce_recorded(step, unit, buffer);
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
        agreement_->keep(unit, values);
        if (!leads()) continue;
        if (plan_.on_result) plan_.on_result(step, plan_.units[unit], values);
        comparison_.compare(target.empty() ? loader_.mean() : target, values, [&](auto exact, auto got) {
          totals->observe(step, unit - range_.first, exact, got, plan_.options.adds_up(plan_.codec));
        });
        reducer.settle(processor_.queue());
        const auto residual = reducer.residual();
        result_.has_residual = result_.has_residual || !residual.empty();
        if (residual.empty()) continue;
        const double kept = energy(processor_.download(residual));
        result_.residual_energy += kept;
        result_.step_errors[step].residual_energy += kept;
      }
      agreement_->compare(step);
      comm_.agree_max(sent);
      for (std::size_t u = 0; u < count; ++u) {
        StepBytes& bytes = result_.units[range_.first + u].bytes;
        bytes.wire_per_rank += sent[u] / static_cast<double>(steps);
        bytes.wire_inside += sent[count + u] / static_cast<double>(steps);
        bytes.wire_across += sent[2 * count + u] / static_cast<double>(steps);
      }
      if (interrupted()) throw Error{Fault::check, std::string{kInterruptedMessage}};
    }
    if (!leads()) return;
    totals->finish(window);
    collect_notes();
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
    for (std::size_t step = 0; step < sent_.size(); ++step) result_.step_errors[step].bytes.wire_per_rank = sent_[step];
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

  /// Counts the collectives, and writes payloads down when asked to.
  void reduce_recorded(std::size_t step, std::size_t unit, View<float, S> buffer) {
    RecordingCommunicator<S> recording{comm_, [&](const typename RecordingCommunicator<S>::Call& call) {
                                         const auto pattern = (*units_)[unit].pattern(call.level);
                                         add_use(result_.units[unit].uses, call.name, call.mean_bytes, pattern.shards,
                                                 pattern.ring, call.level, call.node);
                                         if (!log_) return;
                                         log_->put(step, unit, call.name, call.level, processor_.look(call.bytes),
                                                   call.parts);
                                       }};
    NoClock<S> clock;
    if (log_)
      units_->reduce_unwatched(recording, step, unit, buffer, clock);  // writing payloads down allocates
    else
      units_->reduce(recording, step, unit, buffer, clock);
  }

  /// What rank 0's reducers say: every note once, tallies added over units.
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
  void sample() {
    const auto start = std::chrono::steady_clock::now();
    const std::size_t steps = plan_.steps();
    const double share = range_.share_of(plan_.units);
    StopRule stop = plan_.stop;
    stop.part *= share;
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
        const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i == 0) limit = stop.limit(elapsed / share);
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
    result_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result_.limit += limit;
    if (range_.first == 0) {
      result_.samples = std::move(samples);
      return;
    }
    result_.samples.resize(std::min(result_.samples.size(), samples.size()));
    for (std::size_t i = 0; i < result_.samples.size(); ++i) result_.samples[i] += samples[i];
  }

  /// One sample: all units of the range in a step, each as slow as its slowest rank.
  PhaseTimes timed_step(std::size_t step) {
    ThrottleWatch& throttle = processor_.throttle();
    throttle.look();
    for (std::size_t unit = range_.first; unit < range_.last; ++unit) {
      const auto buffer = units_->prepare(step, unit, false);
      if (plan_.options.hot)
        processor_.warm(units_->input(unit, buffer));
      else
        processor_.evict(units_->input(unit, buffer));
      processor_.clock().start();
      units_->reduce(comm_, step, unit, buffer, processor_.clock());
      const PhaseTimes times = processor_.clock().stop();
      throttle.look();
      double* const row = &row_[UnitTimes::kKinds * (unit - range_.first)];
      std::copy(times.phase.begin(), times.phase.end(), row);
      row[3] = times.total;
      row[4] = times.decode_across;
      if (!plan_.options.check) continue;
      comm_.barrier(processor_.queue());  // after every rank's clock has stopped
      agreement_->keep(unit, processor_.download(units_->result(unit, buffer)));
    }
    const auto seen = throttle.take();
    std::copy(seen.begin(), seen.end(), clock_seen().begin());
    comm_.agree_max(row_);
    agreement_->compare(step);
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
  std::vector<double> mean_target_;
  std::unique_ptr<PayloadLog> log_;  ///< where payloads are written down
};

}  // namespace gradtool
