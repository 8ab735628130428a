#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/bench/step_loader.hpp"
#include "lib/comm/registered_memory.hpp"
#include "lib/core/allocation_watch.hpp"
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

/// The units of one rank: their reducers, and the buffer in which one after the other is reduced.
template <Space S, class Place>
class RankUnits {
 public:
  RankUnits(const ReplayPlan& plan, Communicator<S>& comm, Place& place, StepLoader& loader, bool shared_loader)
      : plan_{plan}, comm_{comm}, place_{place}, queue_{place.queue()}, loader_{loader}, shared_loader_{shared_loader} {
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

  [[nodiscard]] std::size_t size() const { return reducers_.size(); }
  [[nodiscard]] Reducer<S>& operator[](std::size_t unit) const { return *reducers_[unit]; }
  void reset() {
    for (auto& reducer : reducers_) reducer->reset(queue_);
  }

  /// Brings the rank's gradient of a unit into the buffer that is reduced. Not timed. `all_ranks`: rank 0
  /// loads those of all, for their mean.
  View<float, S> prepare(std::size_t step, std::size_t unit, bool all_ranks) {
    place_.finish_uploads();
    if (shared_loader_) {
      comm_.barrier(queue_);  // nobody still reads the unit before
      if (comm_.rank() == 0) loader_.load((*plan_.units)[unit], step);
      comm_.barrier(queue_);
    } else {
      loader_.load((*plan_.units)[unit], step, all_ranks && comm_.rank() == 0 ? -1 : comm_.rank());
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

  /// Throws Fault::check when it allocates.
  void reduce(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer, PhaseClock<S>& clock) {
    const AllocationWatch watch;
    reduce_unwatched(comm, step, unit, buffer, clock);
    if (Place::allocates_alone() && AllocationWatch::active() && watch.on_this_thread() != 0) {
      throw Error{Fault::check, fmt::format("codec {}: {} allocations in the timed region", plan_.codec.name(),
                                            watch.on_this_thread())};
    }
  }
  void reduce_unwatched(Communicator<S>& comm, std::size_t step, std::size_t unit, View<float, S> buffer,
                        PhaseClock<S>& clock) {
    reducers_[unit]->reduce(comm, queue_, buffer, side_, context(step, unit), workspace_, clock);
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

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Place& place_;
  Queue<S> queue_;
  StepLoader& loader_;
  bool shared_loader_;
  std::vector<std::unique_ptr<Reducer<S>>> reducers_;
  std::unique_ptr<Arena<S>> arena_;
  RegisteredMemory<S> registered_;  ///< ends before the arena does
  View<float, S> buffer_, weight_, second_moment_;
  SideInputs<S> side_;
  View<std::byte, S> workspace_;
};

}  // namespace gradtool
