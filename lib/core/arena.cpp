#include "lib/core/arena.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "lib/core/ended_arenas.hpp"
#include "lib/core/huge_pages.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kLeastPooled = std::size_t{1} << 20;  // bytes of a block
constexpr std::align_val_t kBlockAlignment{Arena<Space::host>::kAlignment};

/// One stretch of memory from which blocks are taken where it has room, the first that is large enough: so few pages
/// are ever touched, and they are touched again.
class Pool {
 public:
  /// The system backs no page before somebody writes there. Where it gives no such memory at all, there is no room.
  explicit Pool(std::size_t bytes)
      : memory_{static_cast<std::byte*>(::operator new(bytes, kBlockAlignment, std::nothrow))}, bytes_{bytes} {
    if (memory_ == nullptr) return;
    prefer_huge_pages(memory_, bytes);
    free_.emplace(0, bytes);
  }

  /// Null where no stretch is large enough.
  std::byte* take(std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& gap) { return gap.second >= bytes; });
    if (found == free_.end()) return nullptr;
    const auto [at, size] = *found;
    if (size > bytes) free_.emplace(at + bytes, size - bytes);
    auto block = free_.extract(found);
    block.mapped() = bytes;
    used_.insert(std::move(block));
    return memory_ + at;
  }
  /// False for a block that it did not give.
  bool give(std::byte* block) {
    if (memory_ == nullptr || std::less<>{}(block, memory_) || !std::less<>{}(block, memory_ + bytes_)) return false;
    const std::lock_guard lock{mutex_};
    auto gap = free_.insert(used_.extract(static_cast<std::size_t>(block - memory_))).position;
    if (const auto next = std::next(gap); next != free_.end() && gap->first + gap->second == next->first) {
      gap->second += next->second;
      free_.erase(next);
    }
    if (gap == free_.begin()) return true;
    if (const auto before = std::prev(gap); before->first + before->second == gap->first) {
      before->second += gap->second;
      free_.erase(gap);
    }
    return true;
  }
  /// Gives the pages where no block lies back to the system, which clears them when they are touched again.
  void trim() {
    const std::lock_guard lock{mutex_};
    for (const auto& [at, size] : free_) return_pages(memory_ + at, size);
  }

 private:
  std::mutex mutex_;
  std::byte* memory_;
  std::size_t bytes_;
  std::map<std::size_t, std::size_t> free_, used_;  ///< bytes by place
};

/// Null until arenas are to be kept; never destroyed, because a static arena may end last of all.
std::atomic<Pool*> pool{nullptr};

std::byte* take_block(std::size_t bytes) {
  Pool* const kept = pool;
  std::byte* const pooled = kept == nullptr || bytes < kLeastPooled ? nullptr : kept->take(bytes);
  if (pooled != nullptr) return pooled;
  // Else the pages that are free in the pool and those of the block would both be in use.
  if (kept != nullptr && bytes >= kLeastPooled) kept->trim();
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, kBlockAlignment));
  prefer_huge_pages(memory, bytes);
  return memory;
}

}  // namespace

void keep_ended_arenas([[maybe_unused]] std::size_t bytes) {
#ifndef GRADTOOL_SANITIZED  // which is to find who uses an arena that ended
  static Pool& kept = *new Pool{bytes};
  pool = &kept;
#endif
}

template <>
Arena<Space::host>::Arena(std::size_t capacity) : capacity_{padded_size(capacity)} {
  base_.reset(take_block(capacity_ + kAlignment));
}

template <>
void Arena<Space::host>::Free::operator()(std::byte* bytes) const noexcept {
  Pool* const kept = pool;
  if (kept == nullptr || !kept->give(bytes)) ::operator delete(bytes, kBlockAlignment);
}

template class Arena<Space::host>;

}  // namespace gradtool
