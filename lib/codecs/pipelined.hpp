#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/codecs/chunk_schedule.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

/// A unit cut into chunks, each with a reducer of its own, whose phases overlap: while one chunk is on the network
/// another one encodes or decodes (ChunkSchedule says which). It serves every method, several collectives or one,
/// because it needs no more than what a reducer tells its clock. GradiVeQ's pipelined ring (Yu et al. 2018, Alg. 1)
/// compresses a segment while the one before travels; with chunks of layers this is the same overlap (docs/adr/0010).
///
/// The result is that of the chunks' reducers one after another, bit for bit. It is not that of one reducer for the
/// whole: a top-k is chosen, a scale found, in every chunk apart, and chunks after the first draw other numbers.
class PipelinedReducer final : public Reducer<Space::host> {
 public:
  struct Part {
    std::size_t first = 0;  ///< elements [first, first + count) of the unit
    std::size_t count = 0;
    std::unique_ptr<Reducer<Space::host>> reducer{};
  };

  /// `threads` runs the chunks, one on each: at least as many threads as parts. It may be shared by the reducers of one
  /// rank, one call at a time, and is not the pool of the queue, with which chunks compute. `wanted`: how many chunks
  /// were asked for, for the note. Parts follow each other without gaps.
  PipelinedReducer(std::vector<Part> parts, TaskPool& threads, std::size_t wanted);

  [[nodiscard]] std::size_t workspace_bytes() const override { return rooms_.back(); }
  [[nodiscard]] int node() const override { return parts_.front().reducer->node(); }
  /// The clock hears of a computing and of a communicating phase at once, from threads that take turns, each kind one
  /// at a time. Sums inside communicator calls are made by the communicating thread alone. The first failure of a chunk
  /// is rethrown when all have stopped.
  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& side, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override;
  void reset(Queue<Space::host> queue) override;
  void visit_state(StateVisitor& visitor) override;
  [[nodiscard]] std::uint64_t payload_bytes() const override;
  [[nodiscard]] std::uint64_t values_sent(Queue<Space::host> queue) const override;
  void settle(Queue<Space::host> queue) override;
  [[nodiscard]] HostView<const float> residual() const override;
  [[nodiscard]] HostView<const float> target(Queue<Space::host> queue) override;
  /// True where it is of some part.
  [[nodiscard]] bool reached() const override;
  [[nodiscard]] std::string note() const override;
  [[nodiscard]] std::vector<Tally> tallies() const override;

  [[nodiscard]] std::size_t chunks() const { return parts_.size(); }

 private:
  std::vector<Part> parts_;
  TaskPool& threads_;
  std::size_t wanted_;
  std::vector<std::size_t> rooms_;  ///< where each part's piece of the workspace starts, and the end
  ChunkSchedule schedule_;
  mutable std::vector<float> residual_;  ///< of all parts, one behind the other; filled when asked for
  std::vector<float> target_;            ///< likewise
};

/// A consecutive part of a unit.
struct ChunkOfUnit {
  std::size_t first = 0;  ///< where it starts in the unit
  Layout layout;          ///< of the part alone
};

/// Cuts a unit into at most `most` chunks of about the same size, the same on every rank. Fewer where they would have
/// less than 1024 elements each, which is where a message's latency costs more than overlapping saves.
///
/// With `whole_tensors`, for methods that treat tensors by their shapes, borders are those of tensors that lie nearest
/// to equal parts; where two of them fall together there are fewer chunks, and a single tensor is one. Else borders lie
/// at multiples of a power of two, 65536 where a chunk has four of them or more: what a codec cuts into blocks of its
/// own is then cut at the same places as without chunks.
[[nodiscard]] std::vector<ChunkOfUnit> cut_into_chunks(const Layout& layout, std::size_t most, bool whole_tensors);

/// A reducer for units of `layout` that is pipelined in at most `chunks` chunks (cut_into_chunks). `codec` as in
/// make_reducer; codecs by layout are made for every chunk anew.
[[nodiscard]] std::unique_ptr<Reducer<Space::host>> make_pipelined_reducer(
    const CodecSpec& spec, const std::shared_ptr<const Codec<Space::host>>& codec, Scheme scheme, const Layout& layout,
    int ranks, Queue<Space::host> queue, std::size_t chunks, TaskPool& threads);

/// Whether chunks of it can overlap: `none` and `noop` compute next to nothing, and stay the one collective that others
/// are compared with.
[[nodiscard]] bool can_be_pipelined(const CodecSpec& spec);

/// The draw context of a chunk; chunk 0 draws as the whole unit would.
[[nodiscard]] EncodeContext context_of_chunk(EncodeContext context, std::size_t chunk);

}  // namespace gradtool
