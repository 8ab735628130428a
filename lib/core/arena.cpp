#include "lib/core/arena.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "lib/core/ended_arenas.hpp"
#include "lib/core/huge_pages.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kLeastKept = std::size_t{1} << 20;   // bytes of a block
constexpr std::size_t kMostKept = std::size_t{512} << 20;  // bytes of all
std::atomic<bool> keeps{false};

std::byte* fresh_block(std::size_t bytes) {
  const std::align_val_t alignment{Arena<Space::host>::kAlignment};
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, alignment));
  prefer_huge_pages(memory, bytes);
  return memory;
}

void release(std::byte* memory) {
  ::operator delete (memory, std::align_val_t{Arena<Space::host>::kAlignment});
}

/// Blocks that arenas gave back: no more than kMostKept, because not all that an arena was made for is also touched,
/// and with those in use never more bytes than were in use at once.
class KeptBlocks {
 public:
  /// The smallest kept block that is large enough, and at most a quarter larger; else a fresh one.
  std::byte* take(std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    std::byte* memory = nullptr;
    const auto found = kept_.lower_bound(bytes);
    if (found != kept_.end() && found->first - bytes <= bytes / 4) {
      bytes = found->first;
      memory = found->second;
      kept_bytes_ -= bytes;
      kept_.erase(found);
    }
    const std::size_t most = std::max(most_used_, used_bytes_ + bytes);
    drop_beyond(most - used_bytes_ - bytes);
    if (memory == nullptr) memory = fresh_block(bytes);  // if it throws, nothing has changed
    used_bytes_ += bytes;
    most_used_ = most;
    used_.emplace(memory, bytes);
    return memory;
  }
  /// False for a block that it did not give.
  bool give(std::byte* memory) {
    const std::lock_guard lock{mutex_};
    const auto found = used_.find(memory);
    if (found == used_.end()) return false;
    kept_.emplace(found->second, memory);
    kept_bytes_ += found->second;
    used_bytes_ -= found->second;
    used_.erase(found);
    drop_beyond(most_used_ - used_bytes_);
    return true;
  }

 private:
  /// Keeps so many bytes at most, and never more than kMostKept.
  void drop_beyond(std::size_t bytes) {
    while (kept_bytes_ > std::min(bytes, kMostKept)) {
      const auto largest = std::prev(kept_.end());
      kept_bytes_ -= largest->first;
      release(largest->second);
      kept_.erase(largest);
    }
  }

  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> kept_;  ///< by bytes
  std::unordered_map<std::byte*, std::size_t> used_;
  std::size_t kept_bytes_ = 0, used_bytes_ = 0, most_used_ = 0;
};

/// Never destroyed, because a static arena may end last of all.
KeptBlocks& kept_blocks() {
  static KeptBlocks& blocks = *new KeptBlocks;
  return blocks;
}

}  // namespace

void keep_ended_arenas() {
#ifndef GRADTOOL_SANITIZED  // which is to find who uses an arena that ended
  keeps = true;
#endif
}

template <>
Arena<Space::host>::Arena(std::size_t capacity) : capacity_{padded_size(capacity)} {
  const std::size_t bytes = capacity_ + kAlignment;
  base_.reset(keeps && bytes >= kLeastKept ? kept_blocks().take(bytes) : fresh_block(bytes));
}

template <>
void Arena<Space::host>::Free::operator()(std::byte* bytes) const noexcept {
  if (!keeps || !kept_blocks().give(bytes)) release(bytes);
}

template class Arena<Space::host>;

}  // namespace gradtool
