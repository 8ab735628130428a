#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/philox.hpp"

namespace gradtool::host {

/// Marks `count` of n elements, every subset of that size equally likely: bit i mod 32 of word i div 32 of `marks`,
/// ceil(n/32) words. count <= n < 2^32.
///
/// Floyd's method (Bentley and Floyd, CACM 1987): for j = n - count .. n - 1 draw t from 0 .. j; mark t, or j where t
/// is marked already. Draw i of the loop is floor(u (j + 1) / 2^64) with u = draw 2i + 2^32 draw 2i+1 of the key, so
/// that no t is likelier than another by more than 2^-32. Where more than half are wanted, those that are not are
/// drawn.
void mark_random_subset(const law::DrawKey& key, std::size_t n, std::size_t count, std::uint32_t* marks);

}  // namespace gradtool::host
