#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <vector>

#include "lib/codecs/reducer.hpp"

namespace gradtool {

/// Who may compute and who may communicate, among chunks of a gradient that are reduced on a thread each: a rank has
/// one compute engine and one network. A chunk that does not communicate holds the first, one that does holds the
/// second, so that one chunk communicates while another one computes.
///
/// The network goes round the chunks in cyclic order. A chunk keeps it until it computes again, or ends; the next one
/// that has not ended is then waited for, even where others are ready. So the order of all communicator calls is a
/// function of the chunks' phases alone, which are the same on every rank, and never of who was faster: ranks call in
/// the same order without talking about it. The compute engine goes to the chunk that waits for it and whose turn on
/// the network comes next; that order depends on time, and nothing else depends on it.
///
/// Nothing is allocated after construction, but by exceptions.
class ChunkSchedule {
 public:
  explicit ChunkSchedule(std::size_t chunks) : chunks_(chunks) {}

  /// Before every use, when no chunk is inside.
  void restart();
  /// Waits until `chunk` holds what `phase` needs, and gives up what it held for the phase before. Throws Stopped when
  /// a chunk has failed.
  void enter(std::size_t chunk, Phase phase);
  /// `chunk` is done.
  void leave(std::size_t chunk);
  /// Keeps the first failure and sends the other chunks home at their next phase.
  void fail(std::exception_ptr failure) noexcept;
  /// Rethrows the first failure, if there is one. When no chunk is inside.
  void rethrow() const;
  /// Whether the network is `chunk`'s. For the chunk itself to ask.
  [[nodiscard]] bool on_network(std::size_t chunk) const { return chunks_[chunk].holds == Engine::network; }

  /// Thrown by `enter` when another chunk has failed: not an error of its own.
  struct Stopped {};

 private:
  enum class Engine : unsigned char { none, compute, network };
  struct Chunk {
    std::condition_variable woken{};
    Engine holds = Engine::none;
    bool wants_compute = false;
    bool ended = false;
  };

  /// How many turns of the network come before `chunk`'s.
  [[nodiscard]] std::size_t turns_before(std::size_t chunk) const {
    return (chunk + chunks_.size() - turn_) % chunks_.size();
  }
  void release(Chunk& chunk);
  void next_turn();
  void give_compute();

  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  std::size_t turn_ = 0;  ///< whose the network is, or whom it waits for
  bool computing_ = false;
  std::exception_ptr failure_;
};

}  // namespace gradtool
