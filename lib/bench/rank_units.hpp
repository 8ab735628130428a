#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/bench/replay.hpp"
#include "lib/codecs/generic_reducers.hpp"
#include "lib/codecs/pipelined.hpp"
#include "lib/codecs/prototype.hpp"
#include "lib/codecs/uncompressed_reducer.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

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
    // Touched now, so that no page fault falls into a timed region. What stands there nobody reads.
    if constexpr (S == Space::host) {
      constexpr std::size_t kPage = 4096;  // or more
      std::byte* const memory = as_writable_bytes(buffer_).data();
      for (std::size_t at = 0; at < arena_->used(); at += kPage) memory[at] = std::byte{0};
      loader_.lend(comm_.rank(), buffer_.span());
    } else {
      fill_zero(queue_, {reinterpret_cast<float*>(workspace_.data()), workspace_.size() / sizeof(float)});
      fill_zero(queue_, buffer_);
    }
  }

  [[nodiscard]] Reducer<S>& operator[](std::size_t unit) const { return *reducers_[unit - range_.first]; }
  /// Resets every reducer.
  void forget() {
    for (auto& reducer : reducers_) reducer->reset(queue_);
  }

  /// Whether the ranks but the first may leave their results undecoded (Reducer::need_result). A prototype may keep
  /// something of what it decodes, so its ranks decode always.
  void spare_results(bool spare) {
    spared_ = spare && plan_.codec.descriptor->name != kPrototype;
    for (auto& reducer : reducers_) reducer->need_result(!spared_ || comm_.rank() == 0);
  }
  /// Whether the last reduction of a unit left ranks without a result; its payloads are then to be compared.
  [[nodiscard]] bool spared(std::size_t unit) const { return spared_ && !(*this)[unit].common_payloads().empty(); }

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

  /// The values that a reduction of `buffer` reads first.
  [[nodiscard]] View<float, S> input(std::size_t unit, View<float, S> buffer) const {
    const auto* const uncompressed = uncompressed_[unit - range_.first];
    return uncompressed == nullptr ? buffer : uncompressed->input(workspace_);
  }
  /// The place in which the last reduction of `buffer` left its result. Not timed.
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
    const auto in_job_type = [&]<class R>(std::unique_ptr<R> reducer) -> std::unique_ptr<Reducer<S>> {
      uncompressed_.back() = reducer.get();
      return reducer;
    };
    const bool gated = plan_.node() == 1 && plan_.codec.gates(layout.elements * size_of(dtype));
    if (dtype != Dtype::f32 && plan_.codec.name() == "none")
      return in_job_type(std::make_unique<UncompressedReducer<S>>(dtype, layout.elements, plan_.ranks, plan_.op()));
    if (dtype != Dtype::f32 && gated) {
      using Gated = BelowGate<UncompressedReducer<S>>;
      return in_job_type(std::make_unique<Gated>(dtype, layout.elements, plan_.ranks, plan_.op()));
    }
    if (gated) return make_reducer<S>(plan_.codec, codec, plan_.scheme(), layout, plan_.ranks, queue_, plan_.op());
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
  bool spared_ = false;
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

}  // namespace gradtool
