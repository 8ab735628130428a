#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/law/philox.hpp"

namespace gradtool::host {

/// Draws are made in groups of so many elements; buffers for them are a multiple of it.
inline constexpr std::size_t kDrawGroup = 128;

/// out[i] := the draw of element first + i (law::draw4) for i below `count` rounded up to a multiple of kDrawGroup.
/// `first` is a multiple of 4. A tile in the first-level cache costs a codec less than draws inside its own loop do:
/// the multiplications fill whole vectors of 32 counters.
void draw_tile(const law::DrawKey& key, std::uint64_t first, std::size_t count, std::uint32_t* out);

/// The ways to make them that this processor can run, the one in use first. For tests: all give the same draws.
using DrawFill = void (*)(const law::DrawKey&, std::uint64_t, std::size_t, std::uint32_t*);
[[nodiscard]] std::span<const DrawFill> draw_fills();

}  // namespace gradtool::host
