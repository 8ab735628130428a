#include "lib/codecs/pipelined.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "lib/comm/forwarding.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

/// Waits at the schedule before a phase begins, so that the outer clock sees busy time only.
class ChunkClock final : public PhaseClock<Space::host> {
 public:
  ChunkClock(ChunkSchedule& schedule, std::size_t chunk, PhaseClock<Space::host>& outer)
      : schedule_{schedule}, chunk_{chunk}, outer_{outer} {}
  void begin(Phase phase, Queue<Space::host> queue) override {
    schedule_.enter(chunk_, phase);
    outer_.begin(phase, queue);
  }
  void end(Phase phase, Queue<Space::host> queue) override { outer_.end(phase, queue); }

 private:
  ChunkSchedule& schedule_;
  std::size_t chunk_;
  PhaseClock<Space::host>& outer_;
};

/// The communicator while it is a chunk's turn. Its calls have no pool: another chunk computes with it meanwhile.
class ChannelCommunicator final : public ForwardingCommunicator<Space::host> {
 public:
  ChannelCommunicator(Communicator<Space::host>& inner, const ChunkSchedule& schedule, std::size_t chunk)
      : ForwardingCommunicator{inner}, schedule_{schedule}, chunk_{chunk} {
    if (!inner.has_levels()) return;
    inside_ = std::make_unique<ChannelCommunicator>(inner.inside(), schedule, chunk);
    across_ = std::make_unique<ChannelCommunicator>(inner.across(), schedule, chunk);
  }

  // NOLINTNEXTLINE(bugprone-parent-virtual-call): the forwarding one would pass its inner level on
  [[nodiscard]] Communicator& inside() const override { return Communicator::inside(); }
  // NOLINTNEXTLINE(bugprone-parent-virtual-call): the forwarding one would pass its inner level on
  [[nodiscard]] Communicator& across() const override { return Communicator::across(); }

 protected:
  Queue<Space::host> entering(Queue<Space::host> /*queue*/) override {
    if (!schedule_.on_network(chunk_)) throw std::logic_error{"a reducer communicates outside its communicate phases"};
    return {};
  }

 private:
  const ChunkSchedule& schedule_;
  std::size_t chunk_;
};

template <class T>
View<T, Space::host> part_of(View<T, Space::host> whole, const PipelinedReducer::Part& part) {
  return whole.empty() ? whole : whole.part(part.first, part.count);
}

constexpr std::size_t kLeast = 1024;          ///< elements of a chunk
constexpr std::size_t kLargestGrain = 65536;  ///< no codec's blocks are larger

std::size_t distance(std::size_t a, std::size_t b) {
  return a < b ? b - a : a - b;
}

/// The start of the tensor that lies nearest to `wanted`.
std::size_t nearest_tensor(const Layout& layout, std::size_t wanted) {
  std::size_t best = 0;
  for (const auto& tensor : layout.tensors) {
    if (distance(tensor.first, wanted) < distance(best, wanted)) best = tensor.first;
  }
  return best;
}

Layout layout_of(const Layout& layout, std::size_t first, std::size_t last) {
  Layout part{.tensors = {}, .elements = last - first};
  for (TensorShape tensor : layout.tensors) {
    if (tensor.first < first || tensor.first >= last) continue;
    tensor.first -= first;
    part.tensors.push_back(std::move(tensor));
  }
  return part;
}

}  // namespace

PipelinedReducer::PipelinedReducer(std::vector<Part> parts, TaskPool& threads, std::size_t wanted)
    : parts_{std::move(parts)}, threads_{threads}, wanted_{wanted}, rooms_{0}, schedule_{parts_.size()} {
  expects(static_cast<std::size_t>(threads.threads()) >= parts_.size(), "a pipeline needs a thread for each chunk");
  for (const auto& part : parts_)
    rooms_.push_back(rooms_.back() + Arena<Space::host>::padded_size(part.reducer->workspace_bytes()));
}

void PipelinedReducer::reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
                              const SideInputs<Space::host>& side, const EncodeContext& context,
                              HostView<std::byte> workspace, PhaseClock<Space::host>& clock) {
  schedule_.restart();
  const auto run = [&](std::size_t chunk) {
    Part& part = parts_[chunk];
    ChunkClock turns{schedule_, chunk, clock};
    ChannelCommunicator channel{comm, schedule_, chunk};
    schedule_.enter(chunk, Phase::encode);
    part.reducer->reduce(channel, queue, part_of(gradient, part),
                         {.weight = part_of(side.weight, part), .second_moment = part_of(side.second_moment, part)},
                         context_of_chunk(context, chunk),
                         workspace.part(rooms_[chunk], rooms_[chunk + 1] - rooms_[chunk]), turns);
    schedule_.leave(chunk);
  };
  auto task = [&](std::size_t chunk) {
    try {
      run(chunk);
    } catch (const ChunkSchedule::Stopped&) {
      return;  // the failure that stopped it is kept
    } catch (...) {
      schedule_.fail(std::current_exception());
    }
  };
  threads_.run(
      parts_.size(), [](void* self, std::size_t chunk) { (*static_cast<decltype(task)*>(self))(chunk); }, &task);
  schedule_.rethrow();
}

void PipelinedReducer::reset(Queue<Space::host> queue) {
  for (auto& part : parts_) part.reducer->reset(queue);
}

void PipelinedReducer::visit_state(StateVisitor& visitor) {
  for (auto& part : parts_) part.reducer->visit_state(visitor);
}

std::uint64_t PipelinedReducer::payload_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part.reducer->payload_bytes();
  return bytes;
}

std::uint64_t PipelinedReducer::values_sent(Queue<Space::host> queue) const {
  std::uint64_t values = 0;
  for (const auto& part : parts_) values += part.reducer->values_sent(queue);
  return values;
}

void PipelinedReducer::settle(Queue<Space::host> queue) {
  for (const auto& part : parts_) part.reducer->settle(queue);
}

HostView<const float> PipelinedReducer::residual() const {
  residual_.clear();
  for (const auto& part : parts_) {
    const auto one = part.reducer->residual();
    residual_.insert(residual_.end(), one.data(), one.data() + one.size());
  }
  return {residual_.data(), residual_.size()};
}

HostView<const float> PipelinedReducer::target(Queue<Space::host> queue) {
  target_.clear();
  for (const auto& part : parts_) {
    const auto one = part.reducer->target(queue);
    target_.insert(target_.end(), one.data(), one.data() + one.size());
  }
  return {target_.data(), target_.size()};
}

bool PipelinedReducer::reached() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.reducer->reached(); });
}

std::string PipelinedReducer::note() const {
  std::vector<std::string> notes;
  if (parts_.size() < wanted_) notes.push_back(fmt::format("cut into {} of {} chunks", parts_.size(), wanted_));
  for (const auto& part : parts_) {
    std::string one = part.reducer->note();
    if (!one.empty() && std::find(notes.begin(), notes.end(), one) == notes.end()) notes.push_back(std::move(one));
  }
  return joined(notes, "; ");
}

std::vector<Tally> PipelinedReducer::tallies() const {
  std::vector<Tally> tallies;
  for (const auto& part : parts_) {
    for (auto& tally : part.reducer->tallies()) tallies.push_back(std::move(tally));
  }
  return tallies;
}

std::vector<ChunkOfUnit> cut_into_chunks(const Layout& layout, std::size_t most, bool whole_tensors) {
  const std::size_t n = layout.elements;
  const std::size_t count = std::clamp<std::size_t>(n / kLeast, 1, std::max<std::size_t>(most, 1));
  if (count == 1) return {{0, layout}};
  const std::size_t grain = std::min(kLargestGrain, std::bit_floor(n / count / 4));
  std::vector<ChunkOfUnit> chunks;
  std::size_t first = 0;
  for (std::size_t i = 1; i <= count; ++i) {
    const std::size_t equal = n * i / count;
    const std::size_t last = i == count ? n : whole_tensors ? nearest_tensor(layout, equal) : equal / grain * grain;
    if (last <= first) continue;
    chunks.push_back({first, whole_tensors ? layout_of(layout, first, last) : Layout::flat(last - first)});
    first = last;
  }
  return chunks;
}

std::unique_ptr<Reducer<Space::host>> make_pipelined_reducer(const CodecSpec& spec,
                                                             const std::shared_ptr<const Codec<Space::host>>& codec,
                                                             Scheme scheme, const Layout& layout, int ranks,
                                                             Queue<Space::host> queue, std::size_t chunks,
                                                             TaskPool& threads) {
  // The gate is for whole units: a chunk of one that is above it is compressed, however small it is.
  if (spec.gates(4 * layout.elements)) return make_reducer<Space::host>(spec, codec, scheme, layout, ranks, queue);
  CodecSpec of_chunks = spec;
  of_chunks.gate = 0;
  const bool by_layout = spec.descriptor->by_layout;
  std::vector<PipelinedReducer::Part> parts;
  for (const auto& chunk : cut_into_chunks(layout, chunks, by_layout)) {
    auto own = made_for_layout(*spec.descriptor) ? make_codec<Space::host>(spec, chunk.layout) : codec;
    parts.push_back(
        {.first = chunk.first,
         .count = chunk.layout.elements,
         .reducer = make_reducer<Space::host>(of_chunks, std::move(own), scheme, chunk.layout, ranks, queue)});
  }
  return std::make_unique<PipelinedReducer>(std::move(parts), threads, chunks);
}

bool can_be_pipelined(const CodecSpec& spec) {
  return spec.descriptor->name != "none" && spec.descriptor->aggregation != Aggregation::none;
}

EncodeContext context_of_chunk(EncodeContext context, std::size_t chunk) {
  context.key.seed ^= 0xD1B54A32D192ED03ULL * chunk;
  return context;
}

}  // namespace gradtool
