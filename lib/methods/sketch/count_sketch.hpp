#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/arena.hpp"
#include "lib/core/view.hpp"
#include "lib/methods/sketch/format.hpp"

namespace gradtool {

/// A count sketch (Charikar, Chen, Farach-Colton, Finding Frequent Items in Data Streams, 2002) of n numbers: `rows`
/// tables of `columns` cells. Every number is added, with a random sign, to a random cell of each table. Its estimate
/// is the median over the tables of sign times cell. The sketch of a sum is the sum of the sketches.
///
/// Blocks of 16 neighbours are hashed together: they go to 16 neighbouring cells from a random one on, around the end
/// of the table, so that a block is one vector operation. Two elements of different blocks share a cell with
/// probability 1 / columns, and two of one block never, so on average an element has as many others in its cell as with
/// a hash for each element. Signs are drawn for every element.
class CountSketch {
 public:
  static constexpr std::size_t kLanes = format::kSketchLanes;
  static constexpr std::size_t kMaxRows = 7;

  /// `rows` is 1, 3, 5 or 7, and `columns` is at least 16. Hashes depend on the seed alone, so that the sketches of all
  /// ranks can be added. Throws Fault::usage for more columns than 32 bits can number.
  CountSketch(Queue<Space::host> queue, std::size_t n, std::size_t rows, std::size_t columns, std::uint64_t seed);

  [[nodiscard]] std::size_t cells() const { return rows_ * columns_; }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  /// Floats that add_up and estimate need as scratch.
  [[nodiscard]] std::size_t scratch() const { return rows_ * stride(); }

  /// cells := the sketch of x.
  void add_up(Queue<Space::host> queue, HostView<const float> x, HostView<float> cells, HostView<float> scratch) const;
  /// out := the estimates of all n numbers.
  void estimate(Queue<Space::host> queue, HostView<const float> cells, HostView<float> out,
                HostView<float> scratch) const;

 private:
  /// Cells of a row in scratch, with space for the lanes of blocks that go past the row's end.
  [[nodiscard]] std::size_t stride() const { return columns_ + kLanes - 1; }

  std::size_t n_, blocks_, rows_, columns_;
  Arena<Space::host> state_;
  HostView<std::uint32_t> buckets_;  ///< [row][block]: the cell of the block's first lane
  HostView<std::uint16_t> signs_;    ///< [row][block]: bit l is set where lane l has a minus sign
};

}  // namespace gradtool
