#include "lib/core/huge_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace gradtool {

namespace {

/// Advises on the whole pages of a block. `advice`: of madvise, which may refuse.
void advise(void* block, std::size_t bytes, int advice) noexcept {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(block) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(block) + bytes) / page * page;
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, advice));
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
