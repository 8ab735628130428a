#include "src/block.hpp"

#include <boost/context/fixedsize_stack.hpp>
#include <cstdio>
#include <numeric>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation {

BlockPlayer::BlockPlayer() = default;

void BlockPlayer::make_threads(unsigned count) {
  while (threads_.size() < count) {
    Thread* thread = threads_.emplace_back(std::make_unique<Thread>()).get();
    // Made once and played again and again: a turn of the loop is one CUDA thread.
    thread->fiber = boost::context::fiber{std::allocator_arg, boost::context::fixedsize_stack{kStack},
                                          [this, thread](boost::context::fiber&& scheduler) {
                                            thread->scheduler = std::move(scheduler);
                                            for (;;) {
                                              call_->kernel(call_->arguments);
                                              thread->done = true;
                                              --live_;
                                              leave_barrier();
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
  Thread& thread = *threads_[which];
  thread.awaited = nullptr;
  thread.fiber = std::move(thread.fiber).resume();
}

void BlockPlayer::wait(const std::uint32_t* word, std::uint32_t value, bool until_equal) {
  Thread& thread = *threads_[current_];
  thread.awaited = word;
  thread.value = value;
  thread.until_equal = until_equal;
  thread.scheduler = std::move(thread.scheduler).resume();
}

void BlockPlayer::play(const GridCall& call, const uint3& index, std::uint32_t order_seed) {
  call_ = &call;
  count_ = call.block.x;
  make_threads(count_);
  live_ = count_;
  waiting_ = 0;
  votes_ = {};
  for (unsigned warp = 0; warp < (count_ + 31) / 32; ++warp) {
    for (auto& meeting : warps_[warp]) meeting->mask = 0;
  }
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i]->done = false;
    threads_[i]->awaited = nullptr;
  }
  blockIdx = index;
  // first, first + stride, first + 2 stride ...: every thread once, because the stride shares no factor with the count.
  unsigned stride = order_seed % count_;
  while (std::gcd(stride, count_) != 1) ++stride;
  unsigned thread = (order_seed >> 8) % count_;
  while (live_ > 0) {
    bool moved = false;
    for (unsigned i = 0; i < count_; ++i, thread = (thread + stride) % count_) {
      if (threads_[thread]->done || !threads_[thread]->can_run()) continue;
      resume(thread);
      moved = true;
    }
    if (!moved) stuck();
  }
}

const Lanes& BlockPlayer::meet(unsigned mask, std::uint64_t value) {
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
    if (meeting == nullptr) meeting = meetings.emplace_back(std::make_unique<Meeting>()).get();
    meeting->mask = mask;
    meeting->arrived[0] = meeting->arrived[1] = 0;
    meeting->parity = {};
  }
  const std::uint8_t parity = meeting->parity[lane];
  meeting->parity[lane] = parity ^ 1u;
  meeting->values[parity][lane] = value;
  meeting->arrived[parity] |= 1u << lane;
  if (meeting->arrived[parity] == mask) {
    meeting->arrived[parity ^ 1u] = 0;  // everybody has left the meeting before this one
  } else {
    wait(&meeting->arrived[parity], mask, true);
  }
  return meeting->values[parity];
}

void BlockPlayer::leave_barrier() {
  if (waiting_ == 0 || waiting_ < live_) return;
  result_ = votes_;
  votes_ = {};
  waiting_ = 0;
  ++generation_;
}

Votes BlockPlayer::meet_block(bool vote) {
  votes_.count += vote ? 1 : 0;
  votes_.all = votes_.all && vote;
  votes_.any = votes_.any || vote;
  ++waiting_;
  const std::uint32_t before = generation_;
  leave_barrier();
  if (generation_ == before) wait(&generation_, before, false);
  return result_;
}

unsigned BlockPlayer::active_mask() const {
  unsigned mask = 0;
  const unsigned first = current_ / 32 * 32;
  for (unsigned lane = 0; lane < 32 && first + lane < count_; ++lane)
    if (!threads_[first + lane]->done) mask |= 1u << lane;
  return mask;
}

void BlockPlayer::stuck() const {
  std::fprintf(stderr,
               "emulated GPU: kernel %s, block %u: %u threads wait for others that never come (a barrier in a "
               "branch, or lanes that have left)\n",
               call_->name, blockIdx.x, live_);
  std::abort();
}

}  // namespace emulation
