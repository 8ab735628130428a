#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bit_stream.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/select_steps.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/sparse.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool::cuda {
namespace {

// Writing. Positions are coded in runs by blocks. A block writes the words that begin with one of its bits, and so
// codes some positions of the next run too, whose bits the last of its words may have: at most 32, as a code has a bit
// or more.

constexpr std::uint32_t kEach = 4;   // positions that a thread codes
constexpr std::uint32_t kHalo = 32;  // positions of the next run that a block codes too
constexpr std::uint32_t kRun = kEach * kThreads - kHalo;
constexpr std::uint32_t kRunWords = (kEach * kThreads * format::kEliasLongest + 31) / 32 + 3;

// A payload that is the end of a larger one is aligned to 4 bytes only.
__device__ void write_size(std::byte* to, std::uint64_t bytes) {
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  words[0] = static_cast<std::uint32_t>(bytes);
  words[1] = static_cast<std::uint32_t>(bytes >> 32);
}
__device__ void write_header(std::byte* to, const SparseHeader& header) {
  write_size(to, header.bytes);
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  words[2] = header.count;
  words[3] = header.code;
}

__device__ std::uint32_t gap_at(const std::uint32_t* positions, std::size_t i) {
  return i == 0 ? positions[0] + 1 : positions[i] - positions[i - 1];
}

/// bits[run] := the bits that the codes of a run take; bits[runs] := 0. A scan makes starts of them.
__device__ void count_elias_bits(const std::uint32_t* positions, std::size_t k, std::size_t runs, std::uint64_t* bits,
                                 const Place& place) {
  for (std::size_t run = place.block; run < runs; run += place.blocks) {
    std::uint32_t own = 0;
    for (std::size_t i = run * kRun + threadIdx.x; i < run * kRun + kRun && i < k; i += kThreads)
      own += format::elias_delta_bits(gap_at(positions, i));
    std::uint32_t total = 0;
    block_sum_through(own, total);
    if (threadIdx.x == 0) bits[run] = total;
  }
  if (place.thread() == 0) bits[runs] = 0;
}

/// Each warp writes 32 words of a bitmap at a time. It searches for the first position that lies in them, with 32
/// probes in each step of the search. `shared` is shared memory of 32 words for the warp.
__device__ void write_bitmap(const std::uint32_t* positions, std::size_t k, std::size_t n, std::uint32_t* shared,
                             std::uint32_t* words, const Place& place) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const std::size_t count = format::words_of_bits(n);
  for (std::size_t word = kWarpSize * place.warp(); word < count; word += kWarpSize * place.warps()) {
    std::size_t first = 0;  // positions before this one lie in earlier words
    std::size_t left = k;   // from there on, how many may still do so
    while (left > 0) {
      const std::size_t step = (left + kWarpSize - 1) / kWarpSize;
      const std::size_t probe = first + step * lane;
      const bool is_below = step * lane < left && positions[probe] < 32 * word;
      const auto below = static_cast<std::uint32_t>(__popc(__ballot_sync(kAllLanes, is_below)));
      if (below == 0) break;
      const std::size_t known = step * (below - 1) + 1;  // so many positions from `first` on lie in earlier words
      const std::size_t end = step * below < left ? step * below : left;
      first += known;
      left = end - known;
    }
    shared[lane] = 0;
    __syncwarp();
    for (std::size_t i = first + lane; i < k; i += kWarpSize) {
      const std::size_t bit = positions[i] - 32 * word;
      if (bit >= 32 * kWarpSize) break;
      atomicOr(&shared[bit / 32], 1u << bit % 32);
    }
    __syncwarp();
    if (word + lane < count) words[word + lane] = shared[lane];
    __syncwarp();
  }
}

/// Each block writes the codes of a run at a time. `shared` is shared memory of kRunWords.
__device__ void write_elias(const std::uint32_t* positions, std::size_t k, const std::uint64_t* starts,
                            std::uint32_t* shared, std::uint32_t* words, const Place& place) {
  for (std::size_t run = place.block; run * kRun < k; run += place.blocks) {
    const std::uint64_t start = starts[run];
    const std::uint64_t end = starts[run + 1];
    const std::size_t first_word = static_cast<std::size_t>(start / 32);
    for (std::uint32_t i = threadIdx.x; i < kRunWords; i += kThreads) shared[i] = 0;
    format::EliasCode codes[kEach];
    std::uint32_t own = 0;
    for (std::uint32_t j = 0; j < kEach; ++j) {
      const std::size_t i = run * kRun + threadIdx.x * kEach + j;
      codes[j] = i < k ? format::elias_delta(gap_at(positions, i)) : format::EliasCode{};
      own += codes[j].count;
    }
    std::uint32_t total = 0;
    std::uint32_t bit = block_sum_through(own, total) - own + static_cast<std::uint32_t>(start % 32);
    for (std::uint32_t j = 0; j < kEach; bit += codes[j].count, ++j) {
      if (codes[j].count != 0) put_code(shared, bit, codes[j]);
    }
    __syncthreads();
    const std::size_t owned = format::words_of_bits(start);  // the first word that begins with a bit of this run
    for (std::size_t word = owned + threadIdx.x; word < format::words_of_bits(end); word += kThreads)
      words[word] = shared[word - first_word];
    __syncthreads();
  }
}

/// A bit for each value, set where it is negative.
__device__ void write_signs(const float* values, std::size_t k, std::byte* to, const Place& place) {
  for (std::size_t word = place.warp(); 32 * word < k; word += place.warps()) {
    const std::size_t i = 32 * word + threadIdx.x % kWarpSize;
    const std::uint32_t signs = __ballot_sync(kAllLanes, i < k && __float_as_uint(values[i]) >> 31 != 0);
    if (threadIdx.x % kWarpSize == 0) reinterpret_cast<std::uint32_t*>(to)[word] = signs;
  }
}

/// All of a payload but float32 values.
__device__ void write_payload(const SparseShape& shape, const std::uint32_t* positions, std::size_t k,
                              const std::uint64_t* starts, std::size_t runs, std::byte* payload, std::size_t front,
                              const SparseSigns& signs, const Place& place) {
  __shared__ std::uint32_t shared[kRunWords];
  static_assert(kRunWords >= kBlockWarpCount * kWarpSize);
  const std::size_t bits = starts == nullptr ? 0 : static_cast<std::size_t>(starts[runs]);
  const format::IndexChoice choice =
      shape.automatic ? format::smallest_index(k, shape.n, bits)
                      : format::IndexChoice{shape.fixed, format::index_bytes(shape.fixed, k, shape.n, bits)};
  const std::size_t signed_bytes = choice.bytes + shape.value_bytes(k);
  const bool as_words = shape.words == SparseShape::Words::always ||
                        (shape.words == SparseShape::Words::smallest && 4 * k <= signed_bytes);
  const std::size_t values = as_words ? 0 : shape.value_bytes(k);
  if (place.thread() == 0) {
    const std::size_t bytes = sizeof(SparseHeader) + (as_words ? 4 * k : values + choice.bytes);
    std::uint32_t code = as_words ? format::kSignedWords : static_cast<std::uint32_t>(choice.code);
    if (signs.values != nullptr && *signs.not_finite != 0) code += format::kNotFinite;
    write_header(payload, {bytes, static_cast<std::uint32_t>(k), code});
    if (front > 0) write_size(payload - front, front + bytes);
  }
  auto* words = reinterpret_cast<std::uint32_t*>(payload + sizeof(SparseHeader) + values);
  if (as_words) {
    for (std::size_t i = place.thread(); i < k; i += place.threads())
      words[i] = positions[i] | (__float_as_uint(signs.values[i]) & ~format::kWordIndex);
    return;
  }
  if (signs.values != nullptr) write_signs(signs.values, k, payload + sizeof(SparseHeader), place);
  if (choice.code == IndexCode::u32) {
    for (std::size_t i = place.thread(); i < k; i += place.threads()) words[i] = positions[i];
  } else if (choice.code == IndexCode::bitmap) {
    write_bitmap(positions, k, shape.n, shared + threadIdx.x / kWarpSize * kWarpSize, words, place);
  } else {
    write_elias(positions, k, starts, shared, words, place);
  }
}

__global__ void elias_bits_kernel(const std::uint32_t* positions, const std::uint32_t* count, std::size_t runs,
                                  std::uint64_t* bits) {
  count_elias_bits(positions, *count, runs, bits, whole_grid());
}

__global__ void write_kernel(SparseShape shape, const std::uint32_t* positions, const std::uint32_t* count,
                             const std::uint64_t* starts, std::size_t runs, std::byte* payload, std::size_t front,
                             SparseSigns signs) {
  write_payload(shape, positions, *count, starts, runs, payload, front, signs, whole_grid());
}

__global__ void empty_kernel(std::uint32_t code, std::byte* payload) {
  if (thread_in_grid() == 0) write_header(payload, {sizeof(SparseHeader), 0, code});
}

GT_HD constexpr std::size_t runs_of(std::size_t k) {
  return (k + kRun - 1) / kRun;
}

bool uses_elias(const SparseShape& shape) {
  return shape.automatic || shape.fixed == IndexCode::elias;
}

/// Blocks that write an index section, `most` of them at most.
unsigned index_blocks(const SparseShape& shape, unsigned most) {
  const bool bitmap = shape.automatic || shape.fixed == IndexCode::bitmap;
  const std::size_t blocks = bitmap ? (format::words_of_bits(shape.n) + kThreads - 1) / kThreads : 0;
  return blocks_for(std::max(runs_of(shape.most), blocks), 1, most);
}

/// Arrays of write_sparse in its scratch.
struct WriteWorkspace {
  WriteWorkspace(const SparseShape& shape, Scratch<Space::cuda> scratch)
      : bits{scratch.take<std::uint64_t>(runs_of(shape.most) + 1)},
        scan{scratch.take_bytes(scan_bytes<std::uint64_t>(bits.size()))} {}
  View<std::uint64_t, Space::cuda> bits;  ///< where the codes of each run start
  View<std::byte, Space::cuda> scan;
};

// The largest of many gradients, in the launches of one. Scans are short: the last block of a unit makes them.

constexpr unsigned kMostOfUnit = 256;  ///< blocks of one unit, at most: other units fill a GPU too

/// The scratch of a unit, from `base` on.
struct LargestMemory {
  GT_HD LargestMemory(std::byte* base, std::size_t n, std::size_t k)
      : tiles{.size = (n + kTile - 1) / kTile}, runs{runs_of(k)} {
    before = reinterpret_cast<std::uint64_t*>(base);
    bits = before + tiles.size + 1;
    tiles.patterns = reinterpret_cast<std::uint32_t*>(bits + runs + 1);
    tiles.counts = tiles.patterns + kTile * tiles.size;
    positions = tiles.counts + tiles.size;
    tiles.places = reinterpret_cast<std::uint16_t*>(positions + k);
    const auto end = reinterpret_cast<std::byte*>(tiles.places + kTile * tiles.size);
    bytes = (static_cast<std::size_t>(end - base) + 255) / 256 * 256;
  }
  __device__ explicit LargestMemory(const LargestUnit& unit) : LargestMemory{unit.scratch, unit.n, unit.k} {}

  SelectTiles tiles;
  std::size_t runs;
  std::uint64_t* before;     ///< SelectChosen::before
  std::uint64_t* bits;       ///< where the codes of each run start
  std::uint32_t* positions;  ///< what is chosen
  std::size_t bytes;
};

/// values[i] := values[0] + ... + values[i-1] for i < count, by one block, of numbers that other blocks wrote.
__device__ void scan_in_last_block(volatile std::uint64_t* values, std::size_t count) {
  std::uint64_t before = 0;
  for (std::size_t first = 0; first < count; first += kThreads) {
    const std::size_t i = first + threadIdx.x;
    const std::uint64_t own = i < count ? values[i] : 0;
    std::uint64_t total = 0;
    const std::uint64_t through = before + block_sum_through(own, total);
    if (i < count) values[i] = through - own;
    before += total;
  }
}

/// A step of LargestBatch: Step::run(unit, memory, state, form, place) by a block for every Step::kElements elements.
template <class Step>
struct LargestWork {
  using Item = LargestUnit;
  SelectState* states;
  SparseShape form;

  [[nodiscard]] static std::size_t blocks(const LargestUnit& unit) {
    return blocks_for(unit.n, Step::kElements, kMostOfUnit);
  }
  __device__ void run(const LargestUnit& unit, std::uint32_t index, const Place& place) const {
    Step::run(unit, LargestMemory{unit}, states[index], form, place);
  }
};

constexpr std::size_t kElementsOfWarps = kBlockWarpCount * kTile;  // a warp works on a tile

struct TopDigitStep {
  static constexpr std::size_t kElements = std::size_t{4} * kFours * kThreads;
  static __device__ void run(const LargestUnit& unit, const LargestMemory& /*memory*/, SelectState& state,
                             const SparseShape& /*form*/, const Place& place) {
    find_top_digit(NumberSource{unit.from, unit.n}, unit.k, &state, place);
  }
};
struct RefineStep {
  static constexpr std::size_t kElements = kElementsOfWarps;
  static __device__ void run(const LargestUnit& unit, const LargestMemory& memory, SelectState& state,
                             const SparseShape& /*form*/, const Place& place) {
    gather_and_refine(NumberSource{unit.from, unit.n}, memory.tiles, &state, place);
  }
};
struct LastDigitStep {
  static constexpr std::size_t kElements = kElementsOfWarps;
  static __device__ void run(const LargestUnit& /*unit*/, const LargestMemory& memory, SelectState& state,
                             const SparseShape& /*form*/, const Place& place) {
    find_lower_digit<2>(memory.tiles, &state, place);
  }
};
struct CountStep {
  static constexpr std::size_t kElements = kElementsOfWarps;
  static __device__ void run(const LargestUnit& /*unit*/, const LargestMemory& memory, SelectState& state,
                             const SparseShape& /*form*/, const Place& place) {
    count_candidates(memory.tiles, state.threshold, memory.before, place);
    if (last_block(&state.sample_ticket, place.blocks)) scan_in_last_block(memory.before, memory.tiles.size + 1);
  }
};
struct WriteStep {
  static constexpr std::size_t kElements = kElementsOfWarps;
  static __device__ void run(const LargestUnit& unit, const LargestMemory& memory, SelectState& state,
                             const SparseShape& /*form*/, const Place& place) {
    write_chosen({memory.tiles, memory.before, &state}, &state, memory.positions,
                 reinterpret_cast<float*>(unit.to + sizeof(SparseHeader)), place);
  }
};
struct EliasBitsStep {
  static constexpr std::size_t kElements = kElementsOfWarps;
  static __device__ void run(const LargestUnit& unit, const LargestMemory& memory, SelectState& state,
                             const SparseShape& /*form*/, const Place& place) {
    count_elias_bits(memory.positions, unit.k, memory.runs, memory.bits, place);
    if (last_block(&state.candidate_ticket, place.blocks)) scan_in_last_block(memory.bits, memory.runs + 1);
  }
};
struct IndexStep {
  static constexpr std::size_t kElements = kElementsOfWarps;
  static __device__ void run(const LargestUnit& unit, const LargestMemory& memory, SelectState& /*state*/,
                             const SparseShape& form, const Place& place) {
    SparseShape shape = form;
    shape.n = unit.n;
    shape.most = unit.k;
    const bool elias = shape.automatic || shape.fixed == IndexCode::elias;
    write_payload(shape, memory.positions, unit.k, elias ? memory.bits : nullptr, memory.runs, unit.to, 0, {}, place);
  }
};

}  // namespace

LargestBatch::LargestBatch(Queue<Space::cuda> queue, const SparseShape& form, View<std::byte, Space::cuda> scratch)
    : queue_{queue}, form_{form}, scratch_{scratch} {
  static_assert(kMost <= kMostItems<LargestWork<IndexStep>>);
}

void LargestBatch::add(View<const float, Space::cuda> from, std::size_t k, std::byte* to) {
  const std::size_t bytes = LargestMemory{scratch_.data(), from.size(), k}.bytes;
  const auto fits = [&] { return used_ + bytes + (count_ + 1) * sizeof(SelectState) <= scratch_.size() / 256 * 256; };
  if (count_ == kMost || !fits()) flush();
  expects(fits() && k >= 1 && k <= from.size() && from.size() < Select::kMany, "a unit does not fit its batch");
  units_[count_++] = {from.data(), to, scratch_.data() + used_, static_cast<std::uint32_t>(from.size()),
                      static_cast<std::uint32_t>(k)};
  used_ += bytes;
}

void LargestBatch::flush() {
  const std::size_t bytes = count_ * sizeof(SelectState);
  std::byte* const at = scratch_.data() + scratch_.size() / 256 * 256 - bytes;  // behind the scratch of the units
  auto* const states = reinterpret_cast<SelectState*>(at);
  const std::span<const LargestUnit> units{units_.data(), count_};
  count_ = used_ = 0;
  if (units.empty()) return;
  fill(queue_, {at, bytes}, 0);
  const auto step = [&]<class Step>(const char* name, Step) {
    launch_units(queue_, name, LargestWork<Step>{states, form_}, units);
  };
  step("top digits", TopDigitStep{});
  step("gathers", RefineStep{});
  step("last digits", LastDigitStep{});
  step("counts", CountStep{});
  step("values", WriteStep{});
  if (uses_elias(form_)) step("elias bits", EliasBitsStep{});
  step("sparse indices", IndexStep{});
}

std::size_t write_sparse_scratch_bytes(const SparseShape& shape) {
  return planned<WriteWorkspace>(shape);
}

void write_sparse(Queue<Space::cuda> queue, const SparseShape& shape, const std::uint32_t* positions,
                  const std::uint32_t* count, std::byte* payload, View<std::byte, Space::cuda> scratch,
                  std::size_t front, const SparseSigns& signs) {
  const WriteWorkspace workspace{shape, Scratch<Space::cuda>{scratch}};
  const std::size_t runs = runs_of(shape.most);
  std::uint64_t* bits = nullptr;
  if (uses_elias(shape)) {
    bits = workspace.bits.data();
    launch(queue, "elias bits", elias_bits_kernel, blocks_for(runs, 1, 2048), positions, count, runs, bits);
    scan_tiles(queue, bits, runs + 1, workspace.scan);
  }
  launch(queue, "sparse index", write_kernel, index_blocks(shape, 2048), shape, positions, count, bits, runs, payload,
         front, signs);
}

void write_empty_sparse(Queue<Space::cuda> queue, const SparseShape& shape, std::byte* payload) {
  const auto index = static_cast<std::uint32_t>(shape.automatic ? IndexCode::u32 : shape.fixed);
  const std::uint32_t code = shape.words == SparseShape::Words::never ? index : format::kSignedWords;
  launch(queue, "sparse header", empty_kernel, {1, kWarpSize}, code, payload);
}

}  // namespace gradtool::cuda
