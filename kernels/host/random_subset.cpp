#include "kernels/host/random_subset.hpp"

#include <algorithm>
#include <array>

#include "kernels/host/draws.hpp"
#include "kernels/law/random_subset.hpp"

namespace gradtool::host {

void mark_random_subset(const law::DrawKey& key, std::size_t n, std::size_t count, std::uint32_t* marks) {
  const std::size_t words = (n + 31) / 32;
  const bool complement = count > n / 2;
  const std::size_t drawn = complement ? n - count : count;
  std::fill_n(marks, words, 0U);
  std::array<std::uint32_t, 8 * kDrawGroup> draws{};
  for (std::size_t i = 0; i < drawn; ++i) {
    const std::size_t at = 2 * i % draws.size();
    if (at == 0) draw_tile(key, 2 * i, std::min(draws.size(), 2 * (drawn - i)), draws.data());
    const std::uint64_t j = n - drawn + i;
    const std::uint64_t t = law::subset_place(draws[at], draws[at + 1], j);
    const std::uint64_t mark = (marks[t / 32] >> t % 32 & 1U) == 0 ? t : j;
    marks[mark / 32] |= 1U << mark % 32;
  }
  if (!complement || words == 0) return;
  for (std::size_t w = 0; w < words; ++w) marks[w] = ~marks[w];
  if (n % 32 != 0) marks[words - 1] &= (1U << n % 32) - 1U;
}

}  // namespace gradtool::host
