#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/arena.hpp"
#include "lib/core/view.hpp"
#include "lib/methods/lhc/format.hpp"

namespace gradtool {

/// A table of cells to which sparse vectors are added. The sum of the tables of several vectors decodes to the sum of
/// the vectors, given which elements are not zero: an invertible Bloom lookup table over numbers (Goodrich and
/// Mitzenmacher, Invertible Bloom Lookup Tables, 2011).
///
/// Element i = block * lanes + lane is added, times 1 or -1, to one cell of its lane in each of three sub-tables. The
/// row of that cell, and the sign, come from a hash of the block. Decoding is "peeling": a cell that holds only one
/// unknown element gives its value, which is subtracted from the element's other two cells, which may leave them with
/// one unknown, and so on. Every element peels, with overwhelming probability, as long as each lane has at least 1.23
/// cells for each of its elements.
///
/// Costs: write 3 cells for each value; read a pass over marks and table and 3 cells for each marked element.
class PeelingTable {
 public:
  static constexpr std::size_t kHashes = format::kPeelingHashes;

  /// For vectors of n elements and tables of at most `most_rows` rows. `lanes` is a power of two.
  PeelingTable(Queue<Space::host> queue, std::size_t n, std::size_t lanes, std::size_t most_rows, std::uint64_t seed);

  /// Sets the number of rows of the tables that are written and read from now on: a multiple of three.
  void set_rows(std::size_t rows) { rows_ = rows / kHashes; }
  /// Numbers of a table: rows times lanes.
  [[nodiscard]] std::size_t cells() const { return kHashes * rows_ * lanes_; }

  /// table := the sum of values[k] at positions[k] over all k.
  void write(HostView<const std::uint32_t> positions, HostView<const float> values, HostView<float> table) const;

  /// out[i] := factor times element i, for the elements that `marks` (a bit for each element) names; other elements of
  /// `out` stay as they are. Elements that do not peel get the median of their three cells instead, and keep their
  /// mark. Overwrites the table and the other marks. Returns how many elements did not peel. Throws Fault::data for
  /// marks behind the n-th element, which the bitmap of another rank may have.
  std::size_t read(Queue<Space::host> queue, HostView<std::uint32_t> marks, HostView<float> table, float factor,
                   HostView<float> out);

 private:
  using Cell = format::PeelingCell;
  [[nodiscard]] Cell cell(std::size_t hash, std::size_t block, std::size_t lane) const {
    return format::peeling_cell(draws_.data() + 4 * block, hash, rows_, lanes_, lane);
  }
  template <class Visit>
  void each_marked(HostView<const std::uint32_t> marks, std::size_t group, const Visit& visit) const;
  std::size_t read_group(std::size_t group, HostView<std::uint32_t> marks, HostView<float> table, float factor,
                         HostView<float> out);

  std::size_t n_, lanes_, blocks_;
  std::size_t rows_ = 0;  ///< of a sub-table
  Arena<Space::host> state_;
  HostView<std::uint32_t> draws_;    ///< four random words for each block: a row in each sub-table, and the signs
  HostView<std::uint32_t> unknown_;  ///< of each cell: how many of its elements have not peeled
  HostView<std::uint32_t>
      unknown_block_;                ///< of each cell: the exclusive or of their blocks, so the block of a single one
  HostView<std::uint32_t> singles_;  ///< a queue of cells with one unknown
};

}  // namespace gradtool
