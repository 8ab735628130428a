#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {

struct PeelingWork;

/// lib/reduce/peeling.hpp on the GPU. Tables are the host's, bit for bit: entries are sorted by cell, in which they
/// keep their order, and each cell adds its own. What is read out of a table is what the host reads, but for rounding:
/// all cells that have one unknown give it at once, round by round, as the cell less the others in ascending order; so
/// it is the same from run to run.
class PeelingTable {
 public:
  /// For vectors of n elements, of which at most `most` are in a table.
  PeelingTable(std::size_t n, std::size_t lanes, std::size_t most_rows, std::size_t most, std::uint64_t seed);

  void set_rows(std::size_t rows) { rows_each_ = rows / 3; }
  [[nodiscard]] std::size_t cells() const { return 3 * rows_each_ * lanes_; }

  /// Scratch of write and read. Asks the current GPU.
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// table := the sum of values[i] at positions[i], ascending. Enqueued.
  void write(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* values,
             float* table, View<std::byte, Space::cuda> scratch) const;

  /// What `read` has found out; on the device.
  struct Progress {
    std::uint64_t peeled = 0;    ///< elements, in all
    std::uint64_t last = 0;      ///< in the last round
    std::uint64_t elements = 0;  ///< that were to be
  };
  /// Reading in three steps, each of them enqueued: the lists of cells, for the *count positions given (at most as many
  /// as the table was made for); some rounds, as often as the last one has found something; and the result, out[i] :=
  /// factor times element i, by the median of its three cells for what did not peel.
  void begin(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count,
             View<std::byte, Space::cuda> scratch);
  void peel(Queue<Space::cuda> queue, const float* table, std::uint32_t rounds, View<std::byte, Space::cuda> scratch);
  void finish(Queue<Space::cuda> queue, const float* table, const std::uint32_t* positions, float factor, float* out,
              View<std::byte, Space::cuda> scratch) const;
  [[nodiscard]] View<const Progress, Space::cuda> progress(View<std::byte, Space::cuda> scratch) const;

 private:
  [[nodiscard]] PeelingWork work(View<std::byte, Space::cuda> scratch) const;

  std::size_t lanes_, most_cells_, most_, rows_each_ = 0;
  std::uint64_t seed_;
  std::uint32_t next_round_ = 1;
};

}  // namespace gradtool::cuda
