#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/law/peeling.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// A table into which sparse vectors are added so that sums of tables decode to the sum of the vectors, given which
/// elements are not zero (an invertible Bloom lookup table over numbers: Goodrich and Mitzenmacher 2011).
///
/// Elements i = block * lanes + lane keep their lane; a block goes, with a sign, to one row in each of three
/// sub-tables. A cell that only one unknown element shares gives that element, which is then taken out of its other two
/// cells, and so on. Everything comes out, with overwhelming probability, while a lane has at least 1.23 cells for each
/// element.
class PeelingTable {
 public:
  static constexpr std::size_t kHashes = law::kPeelingHashes;

  /// For vectors of n elements and tables of at most `most_rows` rows. Lanes are a power of two.
  PeelingTable(Queue<Space::host> queue, std::size_t n, std::size_t lanes, std::size_t most_rows, std::uint64_t seed);

  /// From now on tables have this many rows, a multiple of three.
  void set_rows(std::size_t rows) { rows_each_ = rows / kHashes; }
  [[nodiscard]] std::size_t cells() const { return kHashes * rows_each_ * lanes_; }
  [[nodiscard]] std::size_t lanes() const { return lanes_; }
  /// The elements of a lane are at most so many.
  [[nodiscard]] std::size_t blocks() const { return blocks_; }

  /// table := the sum of values[i] at positions[i].
  void write(HostView<const std::uint32_t> positions, HostView<const float> values, HostView<float> table) const;

  /// out[i] := factor times element i for the marked ones; other elements of `out` stay as they are. Uses up the table
  /// and the marks, in which what could not be peeled stays marked: for it `out` has the median of its three cells.
  /// Returns how many there are.
  std::size_t read(Queue<Space::host> queue, HostView<std::uint32_t> marks, HostView<float> table, float factor,
                   HostView<float> out);

 private:
  using Cell = law::PeelingCell;
  [[nodiscard]] Cell cell(std::size_t hash, std::size_t block, std::size_t lane) const {
    return law::peeling_cell(hashes_.data() + 4 * block, hash, rows_each_, lanes_, lane);
  }
  template <class Visit>
  void each_marked(HostView<const std::uint32_t> marks, std::size_t group, const Visit& visit) const;
  std::size_t read_group(std::size_t group, HostView<std::uint32_t> marks, HostView<float> table, float factor,
                         HostView<float> out);

  std::size_t n_, lanes_, blocks_, rows_each_ = 0;
  Arena<Space::host> state_;
  HostView<std::uint32_t> hashes_;  ///< four draws for each block: three rows, signs
  HostView<std::uint32_t> count_;   ///< of unknown elements in a cell
  HostView<std::uint32_t> block_;   ///< exclusive or of their blocks
  HostView<std::uint32_t> queue_;   ///< cells with one unknown element
};

}  // namespace gradtool
