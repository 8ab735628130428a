#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/peeling.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/peeling.hpp"
#include "lib/core/view.hpp"

/// Which elements a peeling table's cells hold: listed by kernels/cuda/peeling_lists.cu, read by
/// kernels/cuda/peeling.cu.
namespace gradtool::cuda {

inline constexpr std::uint32_t kPeelingHashes = law::kPeelingHashes;

struct PeelingShape {
  std::size_t lanes, rows_each, most;
  std::uint64_t seed;
  [[nodiscard]] GT_HD std::size_t cells() const { return kPeelingHashes * rows_each * lanes; }
  [[nodiscard]] GT_HD std::size_t entries() const { return kPeelingHashes * most; }
  [[nodiscard]] GT_HD std::uint32_t hash_of(std::uint32_t cell) const {
    return static_cast<std::uint32_t>(cell / (rows_each * lanes));
  }
};

/// Of each listed element: its cells, and a bit for each hash, 1 is minus.
struct PeelingElements {
  std::uint32_t* cells;  ///< [element][hash]
  std::uint32_t* signs;
  float* values;
  std::uint32_t* round;  ///< in which it came out; 0: not yet
};

/// Entries sorted by cell; within a cell in the order of elements.
struct PeelingLists {
  std::uint32_t* element;
  std::uint32_t* first;  ///< of each cell
  std::uint32_t* last;
};

/// Pieces of the scratch.
struct PeelingWork {
  PeelingWork(const PeelingShape& shape, std::size_t most_cells, View<std::byte, Space::cuda> scratch);
  PeelingShape shape;
  PeelingElements elements;
  PeelingLists lists;
  std::uint32_t* unknown;  ///< elements of each cell that are not known yet
  PeelingTable::Progress* progress;
  std::uint32_t *keys, *entries, *sorted_keys;
  int key_bits;       ///< that sorting looks at: cells up to most_cells fit, and in all ones is none of them
  std::size_t bytes;  ///< in front of what the sort needs
  View<std::byte, Space::cuda> sort;
};

/// What sorting the entries of shape.most elements needs. Asks the current GPU.
[[nodiscard]] std::size_t peeling_sort_bytes(const PeelingWork& work);

/// Enqueued: elements and lists of the *count positions, at most shape.most, or of shape.most with `count` null. All
/// are unknown; nothing is known of their values.
void list_cells(Queue<Space::cuda> queue, const PeelingWork& work, const std::uint32_t* positions,
                const std::uint32_t* count);

}  // namespace gradtool::cuda
