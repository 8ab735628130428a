#include "lib/core/huge_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace gradtool {
namespace {

/// Advises on the whole pages of a block. `advice`: of madvise, which may refuse.
void advise(void* block, std::size_t bytes, int advice) noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t before = (page - reinterpret_cast<std::uintptr_t>(block) % page) % page;
  if (bytes < before + page) return;
  static_cast<void>(madvise(static_cast<std::byte*>(block) + before, (bytes - before) / page * page, advice));
}

}  // namespace

void prefer_huge_pages([[maybe_unused]] void* block, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kLeast = std::size_t{4} << 20;
  if (bytes >= kLeast) advise(block, bytes, MADV_HUGEPAGE);
#endif
}

void return_pages(void* block, std::size_t bytes) noexcept {
  advise(block, bytes, MADV_DONTNEED);
}

}  // namespace gradtool
