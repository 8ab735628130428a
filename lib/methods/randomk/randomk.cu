#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/float_bits.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/randomk/format.hpp"

namespace gradtool::cuda {
namespace {

/// The elements that are sent. Floyd's method (format.hpp) marks place t in turn i, or place j = n - drawn + i where t
/// is marked already. Here threads take all turns at once: a hash table with open addressing keeps, for each place that
/// was drawn, the first turn that drew it.
struct Subset {
  using Entry = unsigned long long;
  static constexpr std::size_t kTileWords = 256;  ///< of marks that a warp counts and collects at a time

  std::uint32_t n, drawn;
  bool complement;  ///< more than half are sent: what is drawn and marked is not sent
  std::uint32_t words;
  Entry* table;       ///< place << 32 | the first turn that drew it
  std::size_t slots;  ///< a power of two, or n, when each place has a slot of its own
  unsigned shift;     ///< leaves the bits of a hash that number a slot
  std::uint32_t* marks;
  std::uint32_t* before;  ///< for each tile of marks: elements sent in the tiles in front of it
  std::size_t tiles;

  __device__ std::size_t slot_of(std::uint32_t place) const {
    return slots == n ? place : (place * 0x9E3779B1u) >> shift;
  }
  __device__ std::size_t next(std::size_t slot) const { return slot + 1 == slots ? 0 : slot + 1; }
  __device__ std::uint32_t place(const format::DrawKey& key, std::uint32_t turn) const {
    return static_cast<std::uint32_t>(format::subset_place(key, turn, std::uint64_t{n} - drawn + turn));
  }
  /// The first turn that drew `place`, which some turn did.
  __device__ std::uint32_t first_turn(std::uint32_t place) const {
    std::size_t slot = slot_of(place);
    while (table[slot] >> 32 != place) slot = next(slot);
    return static_cast<std::uint32_t>(table[slot]);
  }
  /// Whether the place that a turn draws is marked before that turn. Either an earlier turn drew it too, or an earlier
  /// turn marked it as its j because the place that it drew was marked; then the same question is asked of that turn.
  __device__ bool marked_before(const format::DrawKey& key, std::uint32_t turn) const {
    while (true) {
      const std::uint32_t drawn_place = place(key, turn);
      if (first_turn(drawn_place) != turn) return true;
      if (drawn_place < n - drawn || drawn_place - (n - drawn) >= turn) return false;
      turn = drawn_place - (n - drawn);
    }
  }
  /// Word w of the bitmap of elements that are sent.
  __device__ std::uint32_t sent(std::size_t w) const {
    if (w >= words) return 0;
    const std::uint32_t existing = w + 1 < words || n % 32 == 0 ? 0xffffffffu : (1u << n % 32) - 1u;
    return (complement ? ~marks[w] : marks[w]) & existing;
  }
};

using Entry = Subset::Entry;

constexpr Entry kFree = ~Entry{0};
constexpr std::size_t kTileWords = Subset::kTileWords;

__global__ void write_key(format::DrawKey key, float* trailer, format::RandomKKey* out) {
  if (threadIdx.x == 0) *out = format::RandomKKey::written(key, trailer);
}

__global__ void read_key(const float* trailer, format::RandomKKey* out) {
  if (threadIdx.x == 0) *out = format::RandomKKey::read(trailer);
}

/// Enters what each turn draws into the table.
__global__ void draw_kernel(Subset subset, const format::RandomKKey* key) {
  const format::DrawKey draws = key->draws();
  for (std::size_t i = thread_in_grid(); i < subset.drawn; i += threads_in_grid()) {
    const auto turn = static_cast<std::uint32_t>(i);
    const std::uint32_t place = subset.place(draws, turn);
    const Entry entry = static_cast<Entry>(place) << 32 | turn;
    for (std::size_t slot = subset.slot_of(place);; slot = subset.next(slot)) {
      const Entry previous = atomicCAS(subset.table + slot, kFree, entry);
      if (previous != kFree && previous >> 32 != place) continue;
      if (previous != kFree) atomicMin(subset.table + slot, entry);
      break;
    }
  }
}

/// Marks the place that each turn draws, or its j.
__global__ void mark_kernel(Subset subset, const format::RandomKKey* key) {
  const format::DrawKey draws = key->draws();
  for (std::size_t i = thread_in_grid(); i < subset.drawn; i += threads_in_grid()) {
    const auto turn = static_cast<std::uint32_t>(i);
    const std::uint32_t mark =
        subset.marked_before(draws, turn) ? subset.n - subset.drawn + turn : subset.place(draws, turn);
    atomicOr(subset.marks + mark / 32, 1u << mark % 32);
  }
}

/// before[tile] := the elements sent in the tile; a scan makes places of these counts.
__global__ void count_kernel(Subset subset) {
  const unsigned lane = lane_in_warp();
  for (std::size_t t = warp_in_grid(); t < subset.tiles; t += warps_in_grid()) {
    unsigned count = 0;
    for (std::size_t w = lane; w < kTileWords; w += kWarpSize)
      count += static_cast<unsigned>(__popc(subset.sent(kTileWords * t + w)));
    count = __reduce_add_sync(kAllLanes, count);
    if (lane == 0) subset.before[t] = count;
  }
}

/// body(place among the values, element) for all elements that are sent. The lanes of a warp each load a word of marks,
/// and then take one word after the other together, a bit by each lane.
template <class Body>
__device__ void each_sent(const Subset& subset, const Body& body) {
  const unsigned lane = lane_in_warp();
  for (std::size_t t = warp_in_grid(); t < subset.tiles; t += warps_in_grid()) {
    std::uint32_t before = subset.before[t];
    for (std::size_t first = Subset::kTileWords * t; first < Subset::kTileWords * (t + 1); first += kWarpSize) {
      const std::uint32_t word = subset.sent(first + lane);
      const auto count = static_cast<std::uint32_t>(__popc(word));
      const std::uint32_t through = warp_sum_through(count);
      const std::uint32_t own = before + through - count;
      for (unsigned rest = __ballot_sync(kAllLanes, word != 0 ? 1 : 0); rest != 0; rest &= rest - 1) {
        const int w = __ffs(static_cast<int>(rest)) - 1;
        const std::uint32_t bits = __shfl_sync(kAllLanes, word, w);
        const std::uint32_t place = __shfl_sync(kAllLanes, own, w);
        if ((bits >> lane & 1u) != 0)
          body(place + static_cast<std::uint32_t>(__popc(bits & lanes_below(lane))),
               32 * (first + static_cast<std::size_t>(w)) + lane);
      }
      before += __shfl_sync(kAllLanes, through, kWarpSize - 1);
    }
  }
}

__global__ void gather_kernel(Subset subset, const float* gradient, float factor, float* values) {
  each_sent(subset, [&](std::uint32_t place, std::size_t i) { values[place] = format::times(gradient[i], factor); });
}

/// The kernel reads the bytes behind the values as a key whatever they are. Where it is none, NaN is added to the
/// elements that seed 0 draws.
__global__ void scatter_kernel(Subset subset, const format::RandomKKey* key, const float* values, float weight,
                               float* out) {
  const float factor = key->valid ? weight : format::float_of(0x7fc00000u);
  each_sent(subset, [&](std::uint32_t place, std::size_t i) { out[i] += factor * values[place]; });
}

class RandomK final : public GpuCodec {
 public:
  explicit RandomK(const Params& params) : GpuCodec{"randomk", params}, scaled_{params.is("scale", "on")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expect_valid(n < (std::size_t{1} << 32), "codec randomk: a unit has 2^32 elements or more");
    if (n == 0) return {};
    return {.payload_bytes = payload_bytes(n), .scratch_bytes = planned<Workspace>(n, values_sent(n))};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    const std::size_t k = values_sent(n);
    const float factor = scaled_ ? static_cast<float>(static_cast<double>(n) / static_cast<double>(k)) : 1.0F;
    const Workspace workspace{n, k, Scratch<Space::cuda>{scratch}};
    float* values = elements<float>(payload, 0, k + format::RandomKKey::kTrailer).data();
    launch(queue, "randomk key", write_key, {1, kWarpSize}, context.key, values + k, workspace.key);
    draw_subset(queue, workspace);
    launch(queue, "randomk gather", gather_kernel, tile_grid(workspace), workspace.subset, gradient.data(), factor,
           values);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_length("randomk", payload.size(), payload_bytes(n));
    if (n == 0) return;
    const std::size_t k = values_sent(n);
    const Workspace workspace{n, k, Scratch<Space::cuda>{scratch}};
    const float* values = elements<float>(payload, 0, k + format::RandomKKey::kTrailer).data();
    launch(queue, "randomk key", read_key, {1, kWarpSize}, values + k, workspace.key);
    draw_subset(queue, workspace);
    launch(queue, "randomk scatter", scatter_kernel, tile_grid(workspace), workspace.subset, workspace.key, values,
           weight, out.data());
  }

 private:
  /// Marks of n bits, and a table of the places drawn: 8 bytes for at most n, and mostly 2 to 4 slots for each of them.
  struct Workspace {
    Workspace(std::size_t n, std::size_t sent, Scratch<Space::cuda> scratch) {
      const bool complement = sent > n / 2;
      const std::size_t drawn = complement ? n - sent : sent;
      const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(2 * drawn, 32));
      const std::size_t words = (n + 31) / 32;
      const std::size_t slots = std::min(wanted, n);
      const std::size_t tiles = (words + kTileWords - 1) / kTileWords;
      key = scratch.take<format::RandomKKey>(1).data();
      subset = {.n = static_cast<std::uint32_t>(n),
                .drawn = static_cast<std::uint32_t>(drawn),
                .complement = complement,
                .words = static_cast<std::uint32_t>(words),
                .table = scratch.take<Entry>(slots).data(),
                .slots = slots,
                .shift = static_cast<unsigned>(32 - std::bit_width(wanted - 1)),
                .marks = scratch.take<std::uint32_t>(words).data(),
                .before = scratch.take<std::uint32_t>(tiles).data(),
                .tiles = tiles};
      scan = scratch.take_bytes(scan_bytes<std::uint32_t>(tiles));
    }
    format::RandomKKey* key;
    Subset subset;
    View<std::byte, Space::cuda> scan;
  };

  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const {
    return n == 0 ? 0 : 4 * (values_sent(n) + format::RandomKKey::kTrailer);
  }
  [[nodiscard]] static unsigned tile_grid(const Workspace& workspace) {
    return blocks_for(workspace.subset.tiles, kBlockWarpCount);
  }

  /// Marks the elements that the key in the workspace draws, and counts them tile by tile.
  static void draw_subset(Queue<Space::cuda> queue, const Workspace& workspace) {
    const Subset& subset = workspace.subset;
    fill(queue, {reinterpret_cast<std::byte*>(subset.marks), 4 * std::size_t{subset.words}}, 0);
    if (subset.drawn > 0) {
      fill(queue, {reinterpret_cast<std::byte*>(subset.table), sizeof(Entry) * subset.slots}, 0xff);
      const unsigned grid = blocks_for(subset.drawn, kThreads);
      launch(queue, "randomk draw", draw_kernel, grid, subset, workspace.key);
      launch(queue, "randomk mark", mark_kernel, grid, subset, workspace.key);
    }
    launch(queue, "randomk count", count_kernel, tile_grid(workspace), subset);
    scan_tiles(queue, subset.before, subset.tiles, workspace.scan);
  }

  bool scaled_;
};

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {

extern constinit const GpuFactories randomk_gpu{.codec = make_method_codec<Space::cuda, cuda::RandomK>};

}  // namespace gradtool
