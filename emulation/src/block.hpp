#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulation/launch.hpp"
#include "emulation/warp.hpp"

namespace emulation {

/// What one grid is.
struct GridCall {
  const char* name;
  dim3 grid, block;
  void (*kernel)(const void*);
  const void* arguments;
};

/// Lanes of one warp that meet: those of one mask, time and again. A lane can be one meeting ahead of another, never
/// two, so that two sets of values are enough.
struct Meeting {
  unsigned mask = 0;
  Lanes values[2]{};
  std::uint32_t arrived[2]{};
  std::array<std::uint8_t, 32> parity{};
};

/// Plays the threads of one block after the other, each a fiber on the caller's thread. A thread runs until it waits
/// for others or ends, and threads are taken in an order that changes from block to block, so that a result which
/// hangs on the order, for lack of a barrier, shows.
class BlockPlayer {
 public:
  /// `blocks_race`: with ThreadSanitizer, blocks of a grid are in no order, so that races between them show; else
  /// those within a block alone.
  explicit BlockPlayer(bool blocks_race);
  void play(const GridCall& call, const uint3& index, std::uint32_t order_seed);
  /// What the grid did comes before whatever follows.
  void end_grid();

  // What the running thread's intrinsics call.
  /// `in_order`: what lanes did before the meeting comes before what the others do after it.
  const Lanes& meet(unsigned mask, std::uint64_t value, bool in_order);
  int meet_block(bool vote);
  void fence();

 private:
  struct Thread {
    boost::context::fiber fiber;             ///< where the thread is suspended
    boost::context::fiber scheduler;         ///< where it was resumed from
    void* checked = nullptr;                 ///< ThreadSanitizer's name for it
    const std::uint32_t* awaited = nullptr;  ///< null: nothing
    std::uint32_t value = 0;
    bool until_equal = false;
    bool done = true;
    [[nodiscard]] bool can_run() const { return awaited == nullptr || (*awaited == value) == until_equal; }
  };
  static constexpr std::size_t kStack = 128 * 1024;

  /// Changes from block to block, or ThreadSanitizer would take threads of one number in two blocks for one.
  [[nodiscard]] Thread& thread_of(unsigned number) const { return *threads_[(number + shift_) % count_]; }
  void make_threads(unsigned count);
  void resume(unsigned which);
  void wait(const std::uint32_t* word, std::uint32_t value, bool until_equal);
  void leave_barrier();
  [[noreturn]] void stuck() const;

  const GridCall* call_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::vector<std::unique_ptr<Meeting>>> warps_;
  unsigned current_ = 0, count_ = 0, live_ = 0, shift_ = 0;
  std::uint32_t generation_ = 0;  ///< of the block's barrier
  unsigned waiting_ = 0;
  int votes_ = 0, result_ = 0;  ///< of the barrier that fills, and of the one before
  // For ThreadSanitizer (races.hpp): who plays, whether blocks are in no order, and tokens.
  void* scheduler_ = nullptr;
  bool blocks_race_;
  char begins_ = 0, ends_ = 0, fences_ = 0;
  /// Of a block's barriers and of its warps', two in turn each. Where blocks are in no order, those of many blocks, so
  /// that barriers of one do not order what another does.
  struct Tokens {
    char block[2], warp[32][2];
  };
  static constexpr std::size_t kTokens = 512;
  std::array<Tokens, kTokens> tokens_{};
  std::size_t played_ = 0;
  [[nodiscard]] Tokens& tokens() { return tokens_[blocks_race_ ? played_ % kTokens : 0]; }
};

}  // namespace emulation
