#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "kernels/law/tap_range.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// What one block moves: `down` taps of `across` filters. `tap` counts from the range's first.
struct TapTile {
  std::size_t filter;
  std::uint32_t range, across;
  std::uint32_t tap, down;
};

/// Taps of many layers between a gradient and a row that holds them tap by tap, all in one launch: layers of real
/// networks are moved within microseconds, as long as a launch takes. Tiles transpose in shared memory, so that both
/// sides are read and written in whole lines; each element is read once and written once.
class TapMoves {
 public:
  /// Takes memory for `ranges` and any choice of them.
  explicit TapMoves(std::span<const law::TapRange> ranges);
  /// What moves from now on. Waits for the queue, so that tables are on the device. Where it is called in the timed
  /// region that is as rare as a new choice: gradiveq's is one a cycle. Allocates nothing.
  void choose(Queue<Space::cuda> queue, std::span<const law::TapRange> ranges);

  /// Blocks of a launch; at most.
  [[nodiscard]] std::size_t tiles() const { return tiles_.size(); }
  [[nodiscard]] std::size_t most_tiles() const { return tile_table_.size() / sizeof(TapTile); }

  /// row := taps of the gradient.
  void gather(Queue<Space::cuda> queue, const float* gradient, float* row) const;
  /// row := taps of the gradient minus their means, which lie as the row does. norms := the sums of squares
  /// before and after, two doubles for every tile.
  void gather_centred(Queue<Space::cuda> queue, const float* gradient, const float* means, float* row,
                      double* norms) const;
  /// Taps of the gradient := factor row.
  void scatter(Queue<Space::cuda> queue, const float* row, float factor, float* gradient) const;
  /// Taps of the gradient := row + means.
  void scatter_centred(Queue<Space::cuda> queue, const float* row, const float* means, float* gradient) const;

 private:
  void cut(std::span<const law::TapRange> ranges);

  std::vector<law::TapRange> ranges_;
  std::vector<TapTile> tiles_;
  DeviceBuffer range_table_, tile_table_;
};

}  // namespace gradtool::cuda
