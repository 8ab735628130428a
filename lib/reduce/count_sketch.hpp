#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/count_sketch.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// A count sketch (Charikar, Chen, Farach-Colton 2002) of n numbers: `rows` tables, in each of which every number is
/// added, with a random sign, to a random cell. An estimate is the median over rows of sign times cell. The sketch of a
/// sum is the sum of the sketches.
///
/// Hashing goes by blocks of 16 neighbours, which go to 16 neighbouring cells from a random one on, around the end: a
/// block is one vector operation. Two elements of different blocks share a cell with probability 1 / columns wherever
/// in their blocks they are, those of one block never, so an element has as many others in its cell, on average, as
/// with a hash for each. Signs are drawn for every element.
class CountSketch {
 public:
  static constexpr std::size_t kLanes = law::kSketchLanes;
  static constexpr std::size_t kMaxRows = 7;

  /// Rows are odd, 1 to 7; columns at least 16. Hashes depend on the seed alone, so that sketches of all ranks add.
  CountSketch(Queue<Space::host> queue, std::size_t n, std::size_t rows, std::size_t columns, std::uint64_t seed);

  [[nodiscard]] std::size_t cells() const { return rows_ * columns_; }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  /// Numbers that add_up and estimate work in.
  [[nodiscard]] std::size_t scratch() const { return rows_ * stride(); }

  /// cells := the sketch of x.
  void add_up(Queue<Space::host> queue, HostView<const float> x, HostView<float> cells, HostView<float> scratch) const;
  /// out := the estimates of all n numbers.
  void estimate(Queue<Space::host> queue, HostView<const float> cells, HostView<float> out,
                HostView<float> scratch) const;

 private:
  /// A row with room for blocks that go around its end.
  [[nodiscard]] std::size_t stride() const { return columns_ + kLanes - 1; }

  std::size_t n_, blocks_, rows_, columns_;
  Arena<Space::host> state_;
  HostView<std::uint32_t> buckets_;  ///< [row][block]: where the block's first lane goes
  HostView<std::uint16_t> signs_;    ///< [row][block]: a bit for each lane, 1 is minus
};

}  // namespace gradtool
