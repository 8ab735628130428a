#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulation/launch.hpp"
#include "emulation/warp.hpp"

namespace emulation {

/// The properties of one grid.
struct GridCall {
  const char* name;
  dim3 grid, block;
  void (*kernel)(const void*);
  const void* arguments;
};

/// The meetings of the lanes of one warp that share a mask. A lane can be one meeting ahead of another but never two,
/// so two sets of values are enough.
struct Meeting {
  unsigned mask = 0;
  Lanes values[2]{};
  std::uint32_t arrived[2]{};
  std::array<std::uint8_t, 32> parity{};
};

/// Runs the threads of a block one after the other, as fibers on the caller's thread. A fiber runs until it has to wait
/// for others or ends. The order of the threads changes from block to block, so that a result which depends on the
/// order, because a barrier is missing, changes as well.
class BlockPlayer {
 public:
  /// With `blocks_race`, ThreadSanitizer takes the blocks of a grid as unordered and reports races between them;
  /// otherwise it reports races within a block.
  explicit BlockPlayer(bool blocks_race);
  void play(const GridCall& call, const uint3& index, std::uint32_t order_seed);
  /// Tells ThreadSanitizer that all accesses of the grid come before what follows.
  void end_grid();

  // The following functions implement the intrinsics of the running thread.
  /// With `in_order`, accesses of lanes before the meeting are ordered before accesses of other lanes after it.
  const Lanes& meet(unsigned mask, std::uint64_t value, bool in_order);
  int meet_block(bool vote);
  void fence();

 private:
  struct Thread {
    boost::context::fiber fiber;             ///< where the thread is suspended
    boost::context::fiber scheduler;         ///< where it was resumed from
    void* checked = nullptr;                 ///< ThreadSanitizer's handle of the fiber
    const std::uint32_t* awaited = nullptr;  ///< what the thread waits for; null when it does not wait
    std::uint32_t value = 0;
    bool until_equal = false;
    bool done = true;
    [[nodiscard]] bool can_run() const { return awaited == nullptr || (*awaited == value) == until_equal; }
  };
  static constexpr std::size_t kStack = 128 * 1024;

  /// Changes from block to block, because ThreadSanitizer would otherwise take threads of the same number in two blocks
  /// for one thread.
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
  std::uint32_t generation_ = 0;  ///< counts the uses of the block's barrier
  unsigned waiting_ = 0;
  int votes_ = 0, result_ = 0;  ///< votes in the current barrier, and the result of the previous one
  // State for ThreadSanitizer (races.hpp): the scheduler's handle, whether blocks are unordered, and tokens.
  void* scheduler_ = nullptr;
  bool blocks_race_;
  char begins_ = 0, ends_ = 0, fences_ = 0;
  /// Tokens of the barriers of a block and of its warps, two of each, which are used in turn. When blocks are unordered
  /// there are tokens for many blocks, so that barriers of one block do not order accesses of another.
  struct Tokens {
    char block[2], warp[32][2];
  };
  static constexpr std::size_t kTokens = 512;
  std::array<Tokens, kTokens> tokens_{};
  std::size_t played_ = 0;
  [[nodiscard]] Tokens& tokens() { return tokens_[blocks_race_ ? played_ % kTokens : 0]; }
};

}  // namespace emulation
