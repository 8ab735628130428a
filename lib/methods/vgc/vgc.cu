#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/vgc/codec.hpp"

/// vgc on the GPU. It writes the bytes that vgc.cpp writes.
namespace gradtool {
namespace cuda {
namespace {

using format::Vgc;

/// The elements that a warp works on at a time: at most kTile of one group.
struct Tile {
  std::size_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t group = 0;
  std::uint32_t first_index = 0;  ///< where the tile starts in its group
};
constexpr std::size_t kTile = 2048;

/// The second pass needs of a chosen element the bits of r that decide its word, which are the sign, the exponent
/// and the first bit of the mantissa, and its place in the tile in the bits below.
constexpr std::uint32_t kChosenValue = 0xffc00000u;
static_assert((kChosenValue & (kTile - 1)) == 0);

struct TileGroup {
  std::size_t first = 0, elements = 0;
  std::size_t first_tile = 0;
};

/// How the bucket is cut, in device memory, and where a payload has what.
struct Cut {
  const Tile* tiles = nullptr;
  const TileGroup* groups = nullptr;  ///< group_count, and one behind the last for its first_tile
  std::size_t tile_count = 0, group_count = 0;
  std::size_t elements = 0;
  std::size_t exponents_offset = 0, words_offset = 0;
};

struct Workspace {
  Workspace(std::size_t tiles, std::size_t groups, std::size_t elements, Scratch<Space::cuda> scratch)
      : largest{scratch.take<std::uint32_t>(groups).data()},
        words{scratch.take<std::uint32_t>(kTile * tiles).data()},
        before{scratch.take<std::uint64_t>(tiles + 1).data()},
        starts{scratch.take<std::uint64_t>(groups + 2).data()},
        scan{scratch.take_bytes(scan_bytes<std::uint64_t>(tiles + 1))},
        r{scratch.take<float>(elements)},
        v{scratch.take<float>(elements)} {}
  std::uint32_t* largest;  ///< bit pattern of the largest |r| of each group
  std::uint32_t* words;    ///< the chosen elements of a tile and later their words, kTile places
  std::uint64_t* before;   ///< how many a tile has, later words in the tiles before this one
  std::uint64_t* starts;   ///< decoding: words in the groups before this one, their total, and 1 for a valid payload
  View<std::byte, Space::cuda> scan;
  View<float, Space::cuda> r, v;  ///< for a step whose state is not kept
};

struct Step {
  Vgc rule;
  bool keeps_dropped = false;
  bool largest_of_all = false;
  const float* gradient = nullptr;
  const float* moment = nullptr;  ///< null: the squares of the gradient
  float *r = nullptr, *v = nullptr;
};

/// The first pass: updates r and v, lists the chosen elements of each tile, and finds the largest |r| of each group. A
/// chosen element gets the state that it has after it was sent, or where dropped elements keep theirs, that of a
/// dropped one: every element of r and v is written once, in whole sectors of memory.
template <bool Hybrid>
__global__ void accumulate_kernel(Cut cut, Step step, Workspace work) {
  const unsigned lane = lane_in_warp();
  const std::uint32_t below = lanes_below(lane);
  for (std::size_t t = warp_in_grid(); t < cut.tile_count; t += warps_in_grid()) {
    const Tile tile = cut.tiles[t];
    std::uint32_t most = 0;
    std::uint32_t chosen = 0;
    for (std::uint32_t first = 0; first < tile.count; first += kWarpSize) {
      const std::uint32_t j = first + lane;
      float r = 0.0F, v = 0.0F;
      bool decided = false;
      if (j < tile.count) {
        const std::size_t i = tile.first + j;
        const float gradient = step.gradient[i];
        const float square = step.moment != nullptr ? step.moment[i] : gradient * gradient;
        r = step.r[i] + gradient;
        v = step.v[i] + square;
        const std::uint32_t magnitude = format::bits_of(r) & Vgc::kMagnitude;
        decided = step.rule.template decide<Hybrid>(r, v);
        const Vgc::State after =
            decided ? step.rule.template after_sending<Hybrid>({r, v}, Hybrid, step.keeps_dropped) : Vgc::State{r, v};
        step.r[i] = after.r;
        step.v[i] = after.v;
        if (decided || step.largest_of_all) most = magnitude > most ? magnitude : most;
      }
      const std::uint32_t sent = __ballot_sync(kAllLanes, decided);
      if (decided)
        work.words[t * kTile + chosen + bits_set(sent & below)] =
            (__float_as_uint(format::one_nan(r)) & kChosenValue) | j;
      chosen += bits_set(sent);
    }
    most = __reduce_max_sync(kAllLanes, most);
    if (lane != 0) continue;
    if (most != 0) atomicMax(&work.largest[tile.group], most);
    work.before[t] = chosen;
  }
}

/// The second pass: makes the words of the chosen elements, in their place, and ends the state of those that got one
/// where dropped elements keep theirs.
template <bool Hybrid>
__global__ void quantise_kernel(Cut cut, Step step, Workspace work) {
  constexpr std::uint32_t kAtOnce = 4;  // loads of a lane before the first store
  const unsigned lane = lane_in_warp();
  const std::uint32_t below = lanes_below(lane);
  for (std::size_t t = warp_in_grid(); t < cut.tile_count; t += warps_in_grid()) {
    const Tile tile = cut.tiles[t];
    const std::uint32_t exponent = Vgc::exponent(work.largest[tile.group]);
    const bool finite = exponent != Vgc::kNotFinite;
    const auto count = static_cast<std::uint32_t>(work.before[t]);
    std::uint32_t* words = work.words + t * kTile;
    std::uint32_t written = 0;
    for (std::uint32_t first = 0; first < count; first += kAtOnce * kWarpSize) {
      std::uint32_t chosen[kAtOnce];
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        const std::uint32_t at = first + k * kWarpSize + lane;
        chosen[k] = at < count ? words[at] : 0u;
      }
      __syncwarp();  // words are written where other lanes have read
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        const float value = __uint_as_float(chosen[k] & kChosenValue);
        const std::uint32_t j = chosen[k] & (kTile - 1);
        const std::uint32_t steps = !Hybrid && finite ? Vgc::steps_down(value, exponent) : 0u;
        const bool fits = first + k * kWarpSize + lane < count && steps < Vgc::kSteps;
        const std::uint32_t kept = __ballot_sync(kAllLanes, fits);
        if (fits) {
          words[written + bits_set(kept & below)] = Vgc::word(value, steps, tile.first_index + j);
          if (!Hybrid && step.keeps_dropped) step.r[tile.first + j] = step.v[tile.first + j] = 0.0F;
        }
        written += bits_set(kept);
      }
    }
    __syncwarp();                             // every lane has read the count
    if (lane == 0) work.before[t] = written;  // a scan makes sums of these counts
  }
  if (thread_in_grid() == 0) work.before[cut.tile_count] = 0;
}

/// Moves the words of all tiles together, and writes what stands before them in the payload.
template <bool Hybrid>
__global__ void write_kernel(Cut cut, Workspace work, std::byte* payload) {
  auto* counts = reinterpret_cast<std::uint32_t*>(payload + VgcGroups::kCountsOffset);
  auto* exponents = reinterpret_cast<std::uint8_t*>(payload + cut.exponents_offset);
  auto* words = reinterpret_cast<std::uint32_t*>(payload + cut.words_offset);
  for (std::size_t k = thread_in_grid(); k < cut.words_offset - cut.exponents_offset; k += threads_in_grid()) {
    std::uint32_t exponent = k < cut.group_count ? Vgc::exponent(work.largest[k]) : 0u;
    if (Hybrid && exponent != Vgc::kNotFinite) exponent = 0;  // a word needs none; the byte only tells what is NaN
    exponents[k] = static_cast<std::uint8_t>(exponent);
    if (k < cut.group_count) {
      const std::uint64_t end = work.before[cut.groups[k + 1].first_tile];
      counts[k] = static_cast<std::uint32_t>(end - work.before[cut.groups[k].first_tile]);
    }
  }
  if (thread_in_grid() == 0)
    *reinterpret_cast<std::uint64_t*>(payload) = cut.words_offset + 4 * work.before[cut.tile_count];
  for (std::size_t t = warp_in_grid(); t < cut.tile_count; t += warps_in_grid()) {
    const std::uint64_t first = work.before[t];
    const auto count = static_cast<std::uint32_t>(work.before[t + 1] - first);
    for (std::uint32_t i = lane_in_warp(); i < count; i += kWarpSize) words[first + i] = work.words[t * kTile + i];
  }
}

template <bool Hybrid>
void enqueue_step(Queue<Space::cuda> queue, const Cut& cut, const Step& step, std::byte* payload,
                  const Workspace& work) {
  const unsigned blocks = blocks_for(cut.tile_count, kBlockWarpCount);
  fill(queue, {reinterpret_cast<std::byte*>(work.largest), 4 * cut.group_count}, 0);
  launch(queue, "vgc accumulate", accumulate_kernel<Hybrid>, blocks, cut, step, work);
  launch(queue, "vgc quantise", quantise_kernel<Hybrid>, blocks, cut, step, work);
  scan_tiles(queue, work.before, cut.tile_count + 1, work.scan);
  launch(queue, "vgc write", write_kernel<Hybrid>, blocks, cut, work, payload);
}

/// One block: starts[k] := words in the groups before group k; then their total, and whether the counts agree with each
/// other and with the length of the view.
__global__ void starts_kernel(Cut cut, const std::byte* payload, std::size_t size, std::uint64_t* starts) {
  __shared__ std::uint32_t wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  const auto* counts = reinterpret_cast<const std::uint32_t*>(payload + VgcGroups::kCountsOffset);
  std::uint64_t before = 0;
  for (std::size_t first = 0; first < cut.group_count; first += kThreads) {
    const std::size_t k = first + threadIdx.x;
    std::uint64_t own = k < cut.group_count ? counts[k] : 0u;
    if (k < cut.group_count && own > cut.groups[k].elements) {
      own = 0;
      wrong = 1;
    }
    std::uint64_t total = 0;
    const std::uint64_t through = block_sum_through(own, total);
    if (k < cut.group_count) starts[k] = before + through - own;
    before += total;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const std::uint64_t bytes = *reinterpret_cast<const std::uint64_t*>(payload);
  starts[cut.group_count] = before;
  starts[cut.group_count + 1] = wrong == 0 && bytes <= size && bytes == cut.words_offset + 4 * before ? 1 : 0;
}

/// Adds every word at its element. A payload whose header contradicts itself makes all of `out` NaN; words that point
/// past the end of their group are skipped.
__global__ void add_kernel(Cut cut, Vgc rule, const std::byte* payload, const std::uint64_t* starts, float weight,
                           float* out) {
  const float nan = __uint_as_float(0x7fc00000u);
  if (starts[cut.group_count + 1] == 0) {
    for (std::size_t i = thread_in_grid(); i < cut.elements; i += threads_in_grid()) out[i] = nan;
    return;
  }
  const std::uint32_t mask = rule.index_mask();
  const std::uint32_t tau = __float_as_uint(weight * rule.tau);
  const auto* exponents = reinterpret_cast<const std::uint8_t*>(payload + cut.exponents_offset);
  const auto* words = reinterpret_cast<const std::uint32_t*>(payload + cut.words_offset);
  const std::uint64_t total = starts[cut.group_count];
  for (std::uint64_t i = thread_in_grid(); i < total; i += threads_in_grid()) {
    std::size_t group = 0;  // bisection: the last group that starts at word i or before it
    for (std::size_t left = cut.group_count; left > 1;) {
      const std::size_t half = left / 2;
      if (starts[group + half] <= i) group += half;
      left -= half;
    }
    const std::uint32_t word = words[i];
    const std::uint32_t exponent = exponents[group];
    if ((word & mask) >= cut.groups[group].elements) continue;
    float& sum = out[cut.groups[group].first + (word & mask)];
    if (exponent == Vgc::kNotFinite)
      sum += nan;
    else if (rule.hybrid())
      sum += __uint_as_float(tau ^ (word & Vgc::kSign));
    else if (Vgc::steps_of(word) < exponent)
      sum += weight * Vgc::value_of(word, exponent);
  }
}

std::vector<Tile> tiles_of(const VgcGroups& groups) {
  std::vector<Tile> tiles;
  for (std::size_t k = 0; k < groups.groups.size(); ++k) {
    const auto& group = groups.groups[k];
    for (std::size_t first = 0; first < group.elements; first += kTile)
      tiles.push_back({group.first + first, static_cast<std::uint32_t>(std::min(kTile, group.elements - first)),
                       static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(first)});
  }
  return tiles;
}

std::vector<TileGroup> tile_groups_of(const VgcGroups& groups) {
  std::vector<TileGroup> rows;
  std::size_t tiles = 0;
  for (const auto& group : groups.groups) {
    rows.push_back({group.first, group.elements, tiles});
    tiles += (group.elements + kTile - 1) / kTile;
  }
  rows.push_back({0, 0, tiles});
  return rows;
}

}  // namespace
}  // namespace cuda

namespace {

class CudaVgc final : public GpuCodec {
 public:
  CudaVgc(const Params& params, const Layout& layout)
      : GpuCodec{"vgc", params, layout},
        options_{params},
        groups_{layout, options_.rule.hybrid()},
        tiles_{cuda::tiles_of(groups_)},
        tile_groups_{cuda::tile_groups_of(groups_)},
        elements_{layout.elements} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec vgc: made for another layout");
    tiles_.make();
    tile_groups_.make();
    std::size_t bytes = 0;
    static_cast<void>(workspace(Planning{&bytes}));
    return {.payload_bytes = payload_bound(), .scratch_bytes = bytes, .exact = false};
  }

  /// The first step, from empty state and without second moments.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const cuda::Workspace work = workspace(Scratch<Space::cuda>{scratch});
    fill_zero(queue, work.r);
    fill_zero(queue, work.v);
    step(queue, gradient, {}, work.r.data(), work.v.data(), payload, scratch);
  }

  /// One step of one rank. `moment` is empty where the capture has no second moments.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, View<const float, Space::cuda> moment,
            float* r, float* v, View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const {
    const cuda::Step step{.rule = options_.rule,
                          .keeps_dropped = options_.keeps_dropped,
                          .largest_of_all = options_.largest_of_all,
                          .gradient = gradient.data(),
                          .moment = moment.empty() ? nullptr : moment.data(),
                          .r = r,
                          .v = v};
    const auto enqueue = options_.rule.hybrid() ? cuda::enqueue_step<true> : cuda::enqueue_step<false>;
    enqueue(queue, cut(), step, payload.data(), workspace(Scratch<Space::cuda>{scratch}));
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expect_room("vgc", payload.size(), groups_.words_offset(), payload_bound());
    const cuda::Workspace work = workspace(Scratch<Space::cuda>{scratch});
    cuda::launch(queue, "vgc starts", cuda::starts_kernel, 1, cut(), payload.data(), payload.size(), work.starts);
    cuda::launch(queue, "vgc add", cuda::add_kernel, cuda::blocks_for(payload.size() / 4, cuda::kThreads, 2048), cut(),
                 options_.rule, payload.data(), work.starts, weight, out.data());
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::cuda> queue) const override {
    return std::make_unique<VgcEncoder<Space::cuda, CudaVgc>>(*this, n, queue);
  }

 private:
  [[nodiscard]] std::size_t payload_bound() const { return groups_.words_offset() + 4 * elements_; }
  [[nodiscard]] cuda::Workspace workspace(Scratch<Space::cuda> scratch) const {
    return {tiles_.size(), groups_.groups.size(), elements_, scratch};
  }
  [[nodiscard]] cuda::Cut cut() const {
    return {.tiles = tiles_.get(),
            .groups = tile_groups_.get(),
            .tile_count = tiles_.size(),
            .group_count = groups_.groups.size(),
            .elements = elements_,
            .exponents_offset = groups_.exponents_offset(),
            .words_offset = groups_.words_offset()};
  }

  VgcOptions options_;
  VgcGroups groups_;
  DeviceTable<cuda::Tile> tiles_;
  DeviceTable<cuda::TileGroup> tile_groups_;
  std::size_t elements_;
};

}  // namespace

extern constinit const GpuFactories vgc_gpu{.codec = make_method_codec<Space::cuda, CudaVgc>};

}  // namespace gradtool
