#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gradtool::test {

/// Counts what a program loads from watched memory into a cache of some pages, and what of it is written back, as a
/// processor's counters would: pages that the cache does not hold cannot be accessed, the signal of the access loads
/// them, and the page that was loaded first makes room. It needs no clock and no counter of the hardware. One at a
/// time.
class PageCache {
 public:
  explicit PageCache(std::size_t pages) : capacity_{pages} {
    current_ = this;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGSEGV, &action, &before_) != 0) throw std::runtime_error{"SIGSEGV cannot be handled"};
  }
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;
  ~PageCache() {
    stop();
    sigaction(SIGSEGV, &before_, nullptr);
    current_ = nullptr;
  }

  /// Watches the whole pages of a piece of memory from the next start() on. Returns the number of the region.
  std::size_t watch(const void* data, std::size_t bytes) {
    const auto first = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) / kPage * kPage;
    const auto last = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kPage * kPage;
    Region region{.first = first};
    if (last > first) region.pages.resize((last - first) / kPage);
    resident_.resize(capacity_);
    regions_.push_back(std::move(region));
    return regions_.size() - 1;
  }
  /// Empties the cache and goes on counting.
  void start() {
    for (Region& region : regions_) {
      std::fill(region.pages.begin(), region.pages.end(), Page::away);
      if (!region.pages.empty()) protect(region.first, region.pages.size(), PROT_NONE);
    }
    held_ = oldest_ = 0;
  }
  /// Counts what is left in the cache and was written to, and gives all memory free.
  void stop() {
    for (Region& region : regions_) {
      for (Page& page : region.pages) {
        if (page == Page::written) ++region.written_back;
        page = Page::away;
      }
      if (!region.pages.empty()) protect(region.first, region.pages.size(), PROT_READ | PROT_WRITE);
    }
  }

  [[nodiscard]] std::size_t pages(std::size_t region) const { return regions_[region].pages.size(); }
  /// Pages, as often as they came into the cache to be read. On x86-64 a page that was written to first is not among
  /// them, as long as it stays in the cache; other processors do not say what an access was, and count it.
  [[nodiscard]] std::size_t loaded(std::size_t region) const { return regions_[region].loaded; }
  [[nodiscard]] std::size_t written_back(std::size_t region) const { return regions_[region].written_back; }
  [[nodiscard]] std::size_t regions() const { return regions_.size(); }

  static constexpr std::size_t kPage = 4096;  ///< bytes; a system with larger ones is refused by usable()
  [[nodiscard]] static bool usable() { return sysconf(_SC_PAGESIZE) == static_cast<long>(kPage); }

 private:
  enum class Page : std::uint8_t { away, read, written };
  struct Region {
    std::uintptr_t first = 0;
    std::vector<Page> pages = {};
    std::size_t loaded = 0, written_back = 0;
  };
  struct Place {
    std::size_t region = 0, page = 0;
  };

  static void protect(std::uintptr_t first, std::size_t pages, int access) {
    if (mprotect(reinterpret_cast<void*>(first), pages * kPage, access) != 0) _exit(70);
  }
  /// In the signal handler: nothing here allocates.
  static void on_fault(int /*signal*/, siginfo_t* info, void* context) {
#if defined(__x86_64__)
    const bool writes = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    static_cast<void>(context);
    const bool writes = false;
#endif
    while (current_->busy_.test_and_set(std::memory_order_acquire)) {
    }
    const bool ours = current_->load(reinterpret_cast<std::uintptr_t>(info->si_addr), writes);
    current_->busy_.clear(std::memory_order_release);
    if (!ours) sigaction(SIGSEGV, &current_->before_, nullptr);  // the access is repeated, and fails as it would have
  }
  bool load(std::uintptr_t address, bool writes) {
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      Region& region = regions_[r];
      if (address < region.first || address >= region.first + region.pages.size() * kPage) continue;
      const std::size_t p = (address - region.first) / kPage;
      Page& page = region.pages[p];
      const bool here = page != Page::away;
      if (!here) {
        make_room();
        resident_[(oldest_ + held_++) % capacity_] = {r, p};
        if (!writes) ++region.loaded;
      }
      // The second access that faults is a write, because a page that is here can be read.
      page = writes || here ? Page::written : Page::read;
      protect(region.first + p * kPage, 1, page == Page::written ? PROT_READ | PROT_WRITE : PROT_READ);
      return true;
    }
    return false;
  }
  void make_room() {
    if (held_ < capacity_) return;
    const Place place = resident_[oldest_];
    Region& region = regions_[place.region];
    if (region.pages[place.page] == Page::written) ++region.written_back;
    region.pages[place.page] = Page::away;
    protect(region.first + place.page * kPage, 1, PROT_NONE);
    oldest_ = (oldest_ + 1) % capacity_;
    --held_;
  }

  static inline PageCache* current_ = nullptr;
  std::size_t capacity_;
  std::vector<Region> regions_;
  std::vector<Place> resident_;  // a ring
  std::size_t held_ = 0, oldest_ = 0;
  struct sigaction before_ {};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace gradtool::test
