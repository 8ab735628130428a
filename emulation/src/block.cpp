// In builds with ThreadSanitizer this file is not instrumented, because it implements the GPU; its own state is not
// data of the GPU's threads.
#include "src/block.hpp"

#include <boost/context/fixedsize_stack.hpp>
#include <cstdio>
#include <numeric>

#include "src/nan.hpp"
#include "src/races.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation {

BlockPlayer::BlockPlayer(bool blocks_race) : blocks_race_{blocks_race} {}

void BlockPlayer::make_threads(unsigned count) {
  while (threads_.size() < count) {
    Thread* thread = threads_.emplace_back(std::make_unique<Thread>()).get();
    thread->checked = races::made();
    // A fiber is created once and reused: each turn of the loop runs one CUDA thread.
    thread->fiber = boost::context::fiber{std::allocator_arg, boost::context::fixedsize_stack{kStack},
                                          [this, thread](boost::context::fiber&& scheduler) {
                                            thread->scheduler = std::move(scheduler);
                                            for (;;) {
                                              races::hear(&begins_);
                                              {
                                                const GpuNan nan;
                                                call_->kernel(call_->arguments);
                                              }
                                              races::tell(&ends_);
                                              thread->done = true;
                                              --live_;
                                              leave_barrier();
                                              races::turn_to(scheduler_);
                                              thread->scheduler = std::move(thread->scheduler).resume();
                                            }
                                            return std::move(thread->scheduler);
                                          }};
  }
  while (warps_.size() < (count + 31) / 32) warps_.emplace_back();
}

void BlockPlayer::resume(unsigned which) {
  current_ = which;
  threadIdx = {which, 0, 0};
  Thread& thread = thread_of(which);
  thread.awaited = nullptr;
  races::turn_to(thread.checked);
  thread.fiber = std::move(thread.fiber).resume();
}

void BlockPlayer::wait(const std::uint32_t* word, std::uint32_t value, bool until_equal) {
  Thread& thread = thread_of(current_);
  thread.awaited = word;
  thread.value = value;
  thread.until_equal = until_equal;
  races::turn_to(scheduler_);
  thread.scheduler = std::move(thread.scheduler).resume();
}

void BlockPlayer::play(const GridCall& call, const uint3& index, std::uint32_t order_seed) {
  call_ = &call;
  ++played_;
  count_ = call.block.x;
  shift_ = (order_seed >> 16) % count_;
  make_threads(count_);
  scheduler_ = races::current();
  races::tell(&begins_);
  live_ = count_;
  waiting_ = 0;
  votes_ = 0;
  for (unsigned warp = 0; warp < (count_ + 31) / 32; ++warp) {
    for (auto& meeting : warps_[warp]) meeting->mask = 0;
  }
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i]->done = false;
    threads_[i]->awaited = nullptr;
  }
  blockIdx = index;
  // The order first, first + stride, first + 2 stride and so on has every thread once, because the stride and the
  // number of threads have no common factor.
  unsigned stride = order_seed % count_;
  while (std::gcd(stride, count_) != 1) ++stride;
  unsigned thread = (order_seed >> 8) % count_;
  while (live_ > 0) {
    bool moved = false;
    for (unsigned i = 0; i < count_; ++i, thread = (thread + stride) % count_) {
      if (thread_of(thread).done || !thread_of(thread).can_run()) continue;
      resume(thread);
      moved = true;
    }
    if (!moved) stuck();
  }
  if (!blocks_race_) end_grid();
}

void BlockPlayer::end_grid() {
  races::hear(&ends_);
}

const Lanes& BlockPlayer::meet(unsigned mask, std::uint64_t value, bool in_order) {
  const unsigned lane = current_ % 32;
  if ((mask >> lane & 1u) == 0) {
    std::fprintf(stderr, "emulated GPU: kernel %s: thread %u of block %u meets lanes %08x, and is not among them\n",
                 call_->name, current_, blockIdx.x, mask);
    std::abort();
  }
  auto& meetings = warps_[current_ / 32];
  Meeting* meeting = nullptr;
  for (auto& other : meetings) {
    if (other->mask == mask) meeting = other.get();
  }
  if (meeting == nullptr) {
    for (auto& other : meetings) {
      if (other->mask == 0) meeting = other.get();
    }
    const races::Unseen allocation;
    if (meeting == nullptr) meeting = meetings.emplace_back(std::make_unique<Meeting>()).get();
    meeting->mask = mask;
    meeting->arrived[0] = meeting->arrived[1] = 0;
    meeting->parity = {};
  }
  const std::uint8_t parity = meeting->parity[lane];
  meeting->parity[lane] = parity ^ 1u;
  meeting->values[parity][lane] = value;
  meeting->arrived[parity] |= 1u << lane;
  char* const token = &tokens().warp[current_ / 32][parity];
  if (in_order) races::tell(token);
  if (meeting->arrived[parity] == mask) {
    meeting->arrived[parity ^ 1u] = 0;  // all lanes have left the previous meeting
  } else {
    wait(&meeting->arrived[parity], mask, true);
  }
  if (in_order) races::hear(token);
  return meeting->values[parity];
}

void BlockPlayer::leave_barrier() {
  if (waiting_ == 0 || waiting_ < live_) return;
  result_ = votes_;
  votes_ = 0;
  waiting_ = 0;
  ++generation_;
}

int BlockPlayer::meet_block(bool vote) {
  votes_ += vote ? 1 : 0;
  ++waiting_;
  const std::uint32_t before = generation_;
  // Two tokens are used in turn. No thread signals the barrier after the next one before all threads have passed this
  // one.
  char* const token = &tokens().block[before % 2];
  races::tell(token);
  leave_barrier();
  if (generation_ == before) wait(&generation_, before, false);
  races::hear(token);
  return result_;
}

void BlockPlayer::fence() {
  races::tell(&fences_);
  races::hear(&fences_);
}

void BlockPlayer::stuck() const {
  std::fprintf(stderr,
               "emulated GPU: kernel %s, block %u: %u threads wait for others that never come (a barrier in a "
               "branch, or lanes that have left)\n",
               call_->name, blockIdx.x, live_);
  std::abort();
}

}  // namespace emulation
