#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/randomk.hpp"
#include "kernels/law/random_subset.hpp"
#include "kernels/law/randomk.hpp"
#include "lib/core/view.hpp"

/// The elements that randomk sends, for its .cu files.
namespace gradtool::cuda {

/// Floyd's method marks place t in turn i, or place j = n - drawn + i where t is marked already. All turns are taken at
/// once: who was first to draw a place is kept in a table, by place, with open addressing.
struct RandomKSubset {
  using Entry = unsigned long long;
  static constexpr std::size_t kTileWords = 256;  ///< of marks that a warp counts and collects at a time

  std::uint32_t n, drawn;
  bool complement;  ///< what is marked is not sent
  std::uint32_t words;
  Entry* table;       ///< place << 32 | the first turn that drew it
  std::size_t slots;  ///< a power of two, or n: every place has its own
  unsigned shift;
  std::uint32_t* marks;
  std::uint32_t* before;  ///< of a tile of marks: elements sent in those before
  std::size_t tiles;

  __device__ std::size_t slot_of(std::uint32_t place) const {
    return slots == n ? place : (place * 0x9E3779B1u) >> shift;
  }
  __device__ std::size_t next(std::size_t slot) const { return slot + 1 == slots ? 0 : slot + 1; }
  __device__ std::uint32_t place(const law::DrawKey& key, std::uint32_t turn) const {
    return static_cast<std::uint32_t>(law::subset_place(key, turn, std::uint64_t{n} - drawn + turn));
  }
  /// The first turn that drew `place`, which some turn did.
  __device__ std::uint32_t first_turn(std::uint32_t place) const {
    std::size_t slot = slot_of(place);
    while (table[slot] >> 32 != place) slot = next(slot);
    return static_cast<std::uint32_t>(table[slot]);
  }
  /// Whether the place that a turn draws is marked before it. A turn before may have drawn it too; or its mark came
  /// instead of a place that was taken in turn.
  __device__ bool taken(const law::DrawKey& key, std::uint32_t turn) const {
    while (true) {
      const std::uint32_t at = place(key, turn);
      if (first_turn(at) != turn) return true;
      if (at < n - drawn || at - (n - drawn) >= turn) return false;
      turn = at - (n - drawn);
    }
  }
  /// Word w of the elements that are sent.
  __device__ std::uint32_t sent(std::size_t w) const {
    if (w >= words) return 0;
    const std::uint32_t there = w + 1 < words || n % 32 == 0 ? 0xffffffffu : (1u << n % 32) - 1u;
    return (complement ? ~marks[w] : marks[w]) & there;
  }
};

/// Pieces of the scratch.
struct RandomKWork {
  RandomKWork(const RandomKShape& shape, View<std::byte, Space::cuda> scratch);
  law::RandomKKey* key;
  RandomKSubset subset;
  std::size_t bytes;
  View<std::byte, Space::cuda> scan;
};

/// Enqueued: marks the elements of *at.key, and counts them.
void draw_subset(Queue<Space::cuda> queue, const RandomKWork& at);

}  // namespace gradtool::cuda
