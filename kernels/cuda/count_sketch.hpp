#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// lib/reduce/count_sketch.hpp on the GPU, with its bits: cells add in the order of the elements. For that, each tile
/// of 32 neighbouring cells has a list of the blocks that reach it, 20 bytes for each block and row with the hashes; a
/// warp goes through it, every lane with a cell of its own. The gradient is read about one and a half times for each
/// row.
class CountSketch {
 public:
  /// Rows are 1, 3, 5 or 7; columns at least 16. Builds the lists on the host and waits until they are copied.
  CountSketch(Queue<Space::cuda> queue, std::size_t n, std::size_t rows, std::size_t columns, std::uint64_t seed);

  [[nodiscard]] std::size_t cells() const { return rows_ * columns_; }

  /// cells := the sketch of x. Enqueued.
  void add_up(Queue<Space::cuda> queue, View<const float, Space::cuda> x, View<float, Space::cuda> cells) const;
  /// out := the estimates of all n numbers. Enqueued.
  void estimate(Queue<Space::cuda> queue, View<const float, Space::cuda> cells, View<float, Space::cuda> out) const;

 private:
  std::size_t n_, blocks_, rows_, columns_, tiles_;
  DeviceBuffer hashes_;    ///< law::SketchHash, [row][block]
  DeviceBuffer starts_;    ///< uint32, [row][tile] and the end
  DeviceBuffer reaching_;  ///< entries of the lists
  DeviceBuffer beyond_;    ///< float, [row][16]: what goes around the end of a row
};

/// v := mu v + g; g := v.
void momentum_step(Queue<Space::cuda> queue, float mu, View<float, Space::cuda> gradient,
                   View<float, Space::cuda> momentum);

/// values[i] := from[positions[i]].
void gather_at(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* from,
               float* values);

/// What two rounds found: element positions[kept[j]] of `out` becomes values[kept[j]] * share, and 0 in `residual` and
/// `momentum`, where they are not null.
struct SketchResult {
  View<const std::uint32_t, Space::cuda> kept;
  const std::uint32_t* positions;
  const float* values;
  float share;
  float *out, *residual, *momentum;
};
void place_result(Queue<Space::cuda> queue, const SketchResult& result);

}  // namespace gradtool::cuda
