#include "kernels/cuda/randomk.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/law/random_subset.hpp"
#include "kernels/law/randomk.hpp"
#include "lib/core/arena.hpp"

namespace gradtool::cuda {
namespace {

using Entry = unsigned long long;

constexpr unsigned kWarps = kThreads / schedule::kLanes;
constexpr std::size_t kTileWords = 256;  // of marks that a warp counts and collects at a time
constexpr Entry kFree = ~Entry{0};

/// Floyd's method marks place t in turn i, or place j = n - drawn + i where t is marked already. All turns are taken at
/// once: who was first to draw a place is kept in a table, by place, with open addressing.
struct Subset {
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

__global__ void write_key(law::DrawKey key, float* trailer, law::RandomKKey* out) {
  if (threadIdx.x == 0) *out = law::RandomKKey::written(key, trailer);
}

__global__ void read_key(const float* trailer, law::RandomKKey* out) {
  if (threadIdx.x == 0) *out = law::RandomKKey::read(trailer);
}

__global__ void draw_kernel(Subset subset, const law::RandomKKey* key) {
  const law::DrawKey draws = key->draws();
  for (std::size_t i = thread_in_grid(); i < subset.drawn; i += threads_in_grid()) {
    const auto turn = static_cast<std::uint32_t>(i);
    const std::uint32_t place = subset.place(draws, turn);
    const Entry entry = static_cast<Entry>(place) << 32 | turn;
    for (std::size_t slot = subset.slot_of(place);; slot = subset.next(slot)) {
      const Entry was = atomicCAS(subset.table + slot, kFree, entry);
      if (was != kFree && was >> 32 != place) continue;
      if (was != kFree) atomicMin(subset.table + slot, entry);
      break;
    }
  }
}

__global__ void mark_kernel(Subset subset, const law::RandomKKey* key) {
  const law::DrawKey draws = key->draws();
  for (std::size_t i = thread_in_grid(); i < subset.drawn; i += threads_in_grid()) {
    const auto turn = static_cast<std::uint32_t>(i);
    const std::uint32_t mark = subset.taken(draws, turn) ? subset.n - subset.drawn + turn : subset.place(draws, turn);
    atomicOr(subset.marks + mark / 32, 1u << mark % 32);
  }
}

__global__ void count_kernel(Subset subset) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  for (std::size_t t = warp_in_grid(); t < subset.tiles; t += warps_in_grid()) {
    unsigned count = 0;
    for (std::size_t w = lane; w < kTileWords; w += schedule::kLanes)
      count += static_cast<unsigned>(__popc(subset.sent(kTileWords * t + w)));
    count = __reduce_add_sync(DeviceWarp::kAll, count);
    if (lane == 0) subset.before[t] = count;
  }
}

/// body(place among the values, element) for all elements that are sent; a word's by its own lane each.
template <class Body>
__device__ void each_sent(const Subset& subset, const Body& body) {
  const DeviceWarp warp;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  for (std::size_t t = warp_in_grid(); t < subset.tiles; t += warps_in_grid()) {
    std::uint32_t before = subset.before[t];
    for (std::size_t first = kTileWords * t; first < kTileWords * (t + 1); first += schedule::kLanes) {
      const std::uint32_t word = subset.sent(first + lane);
      DeviceWarp::Own<std::uint32_t> count;
      count[lane] = static_cast<std::uint32_t>(__popc(word));
      const std::uint32_t own = before + warp.sum_before(count)[lane];
      for (unsigned rest = __ballot_sync(DeviceWarp::kAll, word != 0 ? 1 : 0); rest != 0; rest &= rest - 1) {
        const int w = __ffs(static_cast<int>(rest)) - 1;
        const std::uint32_t bits = __shfl_sync(DeviceWarp::kAll, word, w);
        const std::uint32_t at = __shfl_sync(DeviceWarp::kAll, own, w);
        if ((bits >> lane & 1u) != 0)
          body(at + static_cast<std::uint32_t>(__popc(bits & schedule::lanes_below(lane))),
               32 * (first + static_cast<std::size_t>(w)) + lane);
      }
      before += warp.sum(count);
    }
  }
}

__global__ void gather_kernel(Subset subset, const float* gradient, float factor, float* values) {
  each_sent(subset, [&](std::uint32_t at, std::size_t i) { values[at] = law::times(gradient[i], factor); });
}

__global__ void scatter_kernel(Subset subset, const law::RandomKKey* key, const float* values, float weight,
                               float* out) {
  const float factor = key->valid ? weight : law::float_of(0x7fc00000u);
  each_sent(subset, [&](std::uint32_t at, std::size_t i) { out[i] += factor * values[at]; });
}

/// Pieces of the scratch view.
class Scratch {
 public:
  Scratch(const RandomKShape& shape, std::byte* base) {
    const bool complement = shape.sent > shape.n / 2;
    const std::size_t drawn = complement ? shape.n - shape.sent : shape.sent;
    const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(2 * drawn, 32));
    const std::size_t slots = std::min(wanted, shape.n);
    const std::size_t words = (shape.n + 31) / 32;
    const std::size_t tiles = (words + kTileWords - 1) / kTileWords;
    key = take<law::RandomKKey>(base, 1);
    subset = {.n = static_cast<std::uint32_t>(shape.n),
              .drawn = static_cast<std::uint32_t>(drawn),
              .complement = complement,
              .words = static_cast<std::uint32_t>(words),
              .table = take<Entry>(base, slots),
              .slots = slots,
              .shift = static_cast<unsigned>(32 - std::bit_width(wanted - 1)),
              .marks = take<std::uint32_t>(base, words),
              .before = take<std::uint32_t>(base, tiles),
              .tiles = tiles};
  }

  /// With what the scan needs, which asks the GPU.
  [[nodiscard]] std::size_t bytes() const { return used_ + scan_bytes<std::uint32_t>(subset.tiles); }

  /// Marks the elements of the key, and counts them.
  void draw(Queue<Space::cuda> queue, View<std::byte, Space::cuda> scratch) const {
    fill(queue, {reinterpret_cast<std::byte*>(subset.marks), 4 * std::size_t{subset.words}}, 0);
    if (subset.drawn > 0) {
      fill(queue, {reinterpret_cast<std::byte*>(subset.table), sizeof(Entry) * subset.slots}, 0xff);
      const unsigned grid = blocks_for(subset.drawn, kThreads);
      launch(queue, "randomk draw", draw_kernel, grid, subset, key);
      launch(queue, "randomk mark", mark_kernel, grid, subset, key);
    }
    launch(queue, "randomk count", count_kernel, tile_grid(), subset);
    scan_tiles(queue, subset.before, subset.tiles, scratch.part(used_, scratch.size() - used_));
  }
  [[nodiscard]] unsigned tile_grid() const { return blocks_for(subset.tiles, kWarps); }

  law::RandomKKey* key;
  Subset subset;

 private:
  template <class T>
  T* take(std::byte* base, std::size_t count) {
    T* piece = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used_);
    used_ += Arena<Space::cuda>::padded_size(count * sizeof(T));
    return piece;
  }

  std::size_t used_ = 0;
};

}  // namespace

std::size_t randomk_scratch_bytes(const RandomKShape& shape) {
  return shape.n == 0 ? 0 : Scratch{shape, nullptr}.bytes();
}

void randomk_encode(Queue<Space::cuda> queue, const RandomKShape& shape, const float* gradient, float factor,
                    const law::DrawKey& key, float* values, View<std::byte, Space::cuda> scratch) {
  if (shape.n == 0) return;
  const Scratch at{shape, scratch.data()};
  launch(queue, "randomk key", write_key, {1, schedule::kLanes}, key, values + shape.sent, at.key);
  at.draw(queue, scratch);
  launch(queue, "randomk gather", gather_kernel, at.tile_grid(), at.subset, gradient, factor, values);
}

void randomk_decode_add(Queue<Space::cuda> queue, const RandomKShape& shape, const float* values, float weight,
                        float* out, View<std::byte, Space::cuda> scratch) {
  if (shape.n == 0) return;
  const Scratch at{shape, scratch.data()};
  launch(queue, "randomk key", read_key, {1, schedule::kLanes}, values + shape.sent, at.key);
  at.draw(queue, scratch);
  launch(queue, "randomk scatter", scatter_kernel, at.tile_grid(), at.subset, at.key, values, weight, out);
}

}  // namespace gradtool::cuda
