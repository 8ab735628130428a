#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// Bitmaps over n elements on the GPU (lib/reduce/marks.hpp): bit i mod 32 of word i div 32. Everything is enqueued.
namespace gradtool::cuda {

/// A bitmap and how many marks lie in front of each of its tiles.
struct MarkScan {
  const std::uint32_t* words = nullptr;
  std::size_t n = 0;
  const std::uint64_t* before = nullptr;  ///< of each tile; behind the last one, all there are
  std::size_t tiles = 0;
  [[nodiscard]] const std::uint64_t* total() const { return before + tiles; }
};

/// Scratch of scan_marks. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t mark_scratch_bytes(std::size_t n);
/// Counts the marks; bits behind the n-th are zero.
[[nodiscard]] MarkScan scan_marks(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> words, std::size_t n,
                                  View<std::byte, Space::cuda> scratch);

/// positions := those of the marked elements, ascending; *count (32 bits) := how many, unless it is null.
void mark_positions(Queue<Space::cuda> queue, const MarkScan& marks, std::uint32_t* positions, std::uint32_t* count);
/// words := words | other, element by element.
void or_marks(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> other,
              View<std::uint32_t, Space::cuda> words);
/// Marks positions[0 .. *count), or [0 .. most) with `count` null.
void set_marks(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
               std::uint32_t* words);
/// loads[lane] := how many marked elements i have i mod lanes = lane; *most := the largest. At most 1024 lanes.
void count_lanes(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> words, std::size_t lanes,
                 std::uint32_t* loads, std::uint64_t* most);

/// values := held at the marks, in their order; held := 0 there, and momentum := 0 there, where it is not null and
/// `spared`, a bitmap too, has no mark.
void take_marked(Queue<Space::cuda> queue, const MarkScan& marks, float* held, float* momentum,
                 const std::uint32_t* spared, float* values);
/// out[i] := values times share at the marks, in their order; 0 elsewhere.
void place_marked(Queue<Space::cuda> queue, const MarkScan& marks, const float* values, float share, float* out);

}  // namespace gradtool::cuda
