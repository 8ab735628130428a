#include "lib/codecs/chunk_schedule.hpp"

namespace gradtool {

void ChunkSchedule::restart() {
  const std::lock_guard lock{mutex_};
  for (auto& chunk : chunks_) {
    chunk.holds = Engine::none;
    chunk.wants_compute = chunk.ended = false;
  }
  turn_ = 0;
  computing_ = false;
  failure_ = nullptr;
}

void ChunkSchedule::enter(std::size_t index, Phase phase) {
  std::unique_lock lock{mutex_};
  Chunk& chunk = chunks_[index];
  const Engine wanted = phase == Phase::communicate ? Engine::network : Engine::compute;
  if (failure_) throw Stopped{};
  if (chunk.holds == wanted) return;
  release(chunk);
  if (wanted == Engine::network) {
    chunk.woken.wait(lock, [&] { return turn_ == index || failure_; });
    if (failure_) throw Stopped{};
    chunk.holds = Engine::network;
    return;
  }
  chunk.wants_compute = true;
  give_compute();
  chunk.woken.wait(lock, [&] { return chunk.holds == Engine::compute || failure_; });
  if (failure_) throw Stopped{};
}

void ChunkSchedule::leave(std::size_t index) {
  const std::lock_guard lock{mutex_};
  Chunk& chunk = chunks_[index];
  chunk.ended = true;
  const bool was_on_network = chunk.holds == Engine::network;
  release(chunk);
  if (!was_on_network && turn_ == index) next_turn();  // the network has waited for a chunk that has nothing to send
}

void ChunkSchedule::release(Chunk& chunk) {
  const Engine held = chunk.holds;
  chunk.holds = Engine::none;
  if (held == Engine::network) next_turn();
  if (held != Engine::compute) return;
  computing_ = false;
  give_compute();
}

/// On to the next chunk that has not ended; it may be the same one. Which one has ended by now depends on time, but a
/// chunk that sends no more only passes its turn on, so the order of those that send does not.
void ChunkSchedule::next_turn() {
  for (std::size_t step = 1; step <= chunks_.size(); ++step) {
    const std::size_t next = (turn_ + step) % chunks_.size();
    if (chunks_[next].ended) continue;
    turn_ = next;
    chunks_[next].woken.notify_one();
    return;
  }
}

void ChunkSchedule::give_compute() {
  if (computing_) return;
  std::size_t best = chunks_.size();
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (!chunks_[i].wants_compute) continue;
    if (best == chunks_.size() || turns_before(i) < turns_before(best)) best = i;
  }
  if (best == chunks_.size()) return;
  computing_ = true;
  chunks_[best].wants_compute = false;
  chunks_[best].holds = Engine::compute;
  chunks_[best].woken.notify_one();
}

void ChunkSchedule::fail(std::exception_ptr failure) noexcept {
  const std::lock_guard lock{mutex_};
  if (!failure_) failure_ = std::move(failure);
  for (auto& chunk : chunks_) chunk.woken.notify_one();
}

void ChunkSchedule::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace gradtool
