#include <cuda_runtime.h>

#include "kernels/block_format.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/exponent/format.hpp"

/// The payloads of exponent.cpp on a GPU: a block of threads counts the exponents of a chunk, and a warp, with a state
/// for each lane, encodes or decodes them.
namespace gradtool {
namespace cuda {
namespace {

using format::CodedChunk;
using format::ExponentCode;
using format::Exponents;
using format::Rans;
using format::RansSymbol;

static_assert(Exponents::kLanes == kWarpSize && Exponents::kSymbols == kThreads);

/// The index of this warp. It comes from one lane, so that the compiler sees that branches on it keep the warp
/// together.
__device__ unsigned warp_in_block() {
  return __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);
}

/// Counts the exponents of x[0 .. count) in `counts`, which a block has cleared. Returns the bits that are set in some
/// pattern of this thread's.
template <bool AsBf16>
__device__ std::uint32_t count_exponents(const float* __restrict__ x, std::uint32_t count, std::uint32_t* counts) {
  std::uint32_t own = 0;
  const auto add = [&](float value) {
    const std::uint32_t bits = Exponents::pattern(value, AsBf16);
    own |= bits;
    atomicAdd(&counts[Exponents::exponent(bits)], 1u);
  };
  const auto* fours = reinterpret_cast<const Four<float>*>(x);
  const std::uint32_t whole = aligned_to(x, 16) ? count / 4 : 0;
  Four<float> ahead{};
  if (threadIdx.x < whole) ahead = fours[threadIdx.x];
  for (std::uint32_t i = threadIdx.x; i < whole; i += kThreads) {
    const Four<float> four = ahead;
    if (i + kThreads < whole) ahead = fours[i + kThreads];
    for (const float value : four.value) add(value);
  }
  for (std::uint32_t i = 4 * whole + threadIdx.x; i < count; i += kThreads) add(x[i]);
  return own;
}

/// The first of the largest values of a block's threads.
struct FirstLargest {
  std::uint32_t value, thread;
};
__device__ FirstLargest first_largest(std::uint32_t own) {
  __shared__ std::uint32_t warps[kBlockWarpCount];
  const std::uint32_t largest = __reduce_max_sync(kAllLanes, own * kThreads + (kThreads - 1 - threadIdx.x));
  if (lane_in_warp() == 0) warps[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  std::uint32_t all = 0;
  for (const std::uint32_t warp : warps) all = warp > all ? warp : all;
  __syncthreads();
  return {all / kThreads, kThreads - 1 - all % kThreads};
}

/// The table of a chunk of `count` elements, as Exponents::scale_counts has it: `symbols`, and in `code` frequencies,
/// bitmap and number of exponents. A thread for each exponent.
__device__ void make_table(std::uint32_t occurs, std::uint32_t count, RansSymbol* symbols, ExponentCode& code) {
  std::uint32_t frequency = Exponents::share(occurs, count);
  std::uint32_t sum = 0;
  block_sum_through(frequency, sum);
  while (sum != Rans::kTotal) {
    const FirstLargest largest = first_largest(frequency);
    const std::uint32_t added = Exponents::correction(sum, largest.value);
    if (threadIdx.x == largest.thread) frequency += added;
    sum += added;
  }
  const std::uint32_t start = block_sum_through(frequency, sum) - frequency;
  if (frequency != 0) symbols[threadIdx.x] = RansSymbol::of(start, frequency);
  code.frequencies[threadIdx.x] = static_cast<std::uint16_t>(frequency);
  const std::uint32_t used = __ballot_sync(kAllLanes, frequency != 0 ? 1 : 0);
  if (lane_in_warp() == 0) code.bitmap[threadIdx.x / kWarpSize] = used;
  const auto all = static_cast<std::uint32_t>(__syncthreads_count(frequency != 0 ? 1 : 0));
  if (threadIdx.x == 0) code.used = all;
}

/// Rows of 32 exponents that a warp loads while it encodes as many: about as long as memory takes.
constexpr unsigned kRowsAhead = 16;

/// Encodes the exponents of x[0 .. count) from the last row of 32 to the first, as push_exponents in exponent.cpp:
/// within a row the highest lane's word lies highest. Words lie at the end of words[0 .. count). Called by a warp;
/// returns the number of words. Each state follows from that of the row before, and a chunk takes as long as this chain
/// of 2048 does. So all else of several rows is done before or behind it, and without branches between them.
template <bool AsBf16>
__device__ std::uint32_t push_exponents(const float* __restrict__ x, std::uint32_t count, const RansSymbol* symbols,
                                        std::uint16_t* words, std::uint32_t& state) {
  constexpr std::uint32_t kAtOnce = kRowsAhead * kWarpSize;
  const std::uint32_t lane = lane_in_warp();
  const std::uint32_t from_lane = ~lanes_below(lane);
  __shared__ std::uint16_t room[kAtOnce + kWarpSize];  // words from the end on; the last are for what is none
  std::uint32_t before = Rans::kLowest;
  std::uint32_t end = count, held = 0;
  // The state before a symbol enters is left in `given`, whose lower half is a word where the lane's bit is set.
  const auto push = [&](const RansSymbol& symbol, std::uint32_t& given) {
    const bool full = before > symbol.limit;
    given = before;
    before = symbol.push(full ? before >> 16 : before);
    return __ballot_sync(kAllLanes, full ? 1 : 0);
  };
  const auto hold = [&](std::uint32_t given, std::uint32_t full) {
    const std::uint32_t own = kAtOnce - held - bits_set(full & from_lane);
    room[(full >> lane & 1u) != 0 ? own : kAtOnce + lane] = static_cast<std::uint16_t>(given);
    held += bits_set(full);
  };
  const auto write = [&] {
    __syncwarp();
    for (std::uint32_t i = lane; i < held; i += kWarpSize) words[end - held + i] = room[kAtOnce - held + i];
    __syncwarp();
    end -= held;
    held = 0;
  };
  const auto symbol = [&](float value) { return symbols[Exponents::exponent(Exponents::pattern(value, AsBf16))]; };
  const std::uint32_t whole = count / kAtOnce * kAtOnce;
  for (std::uint32_t row = (count + kWarpSize - 1) / kWarpSize * kWarpSize; row > whole;) {
    row -= kWarpSize;
    std::uint32_t given = 0;
    const std::uint32_t full = push(row + lane < count ? symbol(x[row + lane]) : RansSymbol::none(), given);
    hold(given, full);
  }
  write();
  const float* from = x + whole + lane;
  float ahead[kRowsAhead] = {};
  const auto load = [&] {
    from -= kAtOnce;
#pragma unroll
    for (unsigned r = 0; r < kRowsAhead; ++r) ahead[r] = from[r * kWarpSize];
  };
  if (whole > 0) load();
  for (std::uint32_t left = whole; left > 0; left -= kAtOnce) {
    RansSymbol entering[kRowsAhead];
#pragma unroll
    for (unsigned r = 0; r < kRowsAhead; ++r) entering[r] = symbol(ahead[r]);
    if (left > kAtOnce) load();
    std::uint32_t given[kRowsAhead], full[kRowsAhead];
#pragma unroll
    for (unsigned r = kRowsAhead; r-- > 0;) full[r] = push(entering[r], given[r]);
#pragma unroll
    for (unsigned r = kRowsAhead; r-- > 0;) hold(given[r], full[r]);
    write();
  }
  state = before;
  return count - end;
}

/// The first pass: the words of each chunk, what else its payload needs, and its bytes. A chunk takes the same time
/// alone, so that registers are kept few enough for four at once on a multiprocessor.
template <bool AsBf16>
__global__ void __launch_bounds__(kThreads, 4)
    encode_kernel(Exponents layout, const float* gradient, bool may_narrow, ExponentCode* codes, std::uint16_t* words,
                  std::uint64_t* bytes) {
  __shared__ std::uint32_t counts[Exponents::kSymbols];
  __shared__ RansSymbol symbols[Exponents::kSymbols];
  __shared__ std::uint32_t any;
  if (thread_in_grid() == 0) bytes[layout.chunks()] = 0;
  for (std::size_t chunk = blockIdx.x; chunk < layout.chunks(); chunk += gridDim.x) {
    const std::size_t first = chunk * Exponents::kChunk;
    const auto count = static_cast<std::uint32_t>(layout.elements(chunk));
    ExponentCode& code = codes[chunk];
    counts[threadIdx.x] = 0;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    const std::uint32_t own = count_exponents<AsBf16>(gradient + first, count, counts);
    atomicOr(&any, own);
    __syncthreads();
    make_table(counts[threadIdx.x], count, symbols, code);
    if (warp_in_block() == 0) {
      std::uint32_t state = 0;
      const std::uint32_t written = push_exponents<AsBf16>(gradient + first, count, symbols, words + first, state);
      code.states[threadIdx.x] = state;
      if (threadIdx.x == 0) {
        code.words = written;
        code.settle(count, !may_narrow || (any & 0xffffu) != 0);
        bytes[chunk] = code.bytes();
      }
    }
    __syncthreads();
  }
}

/// Blocks that write a chunk, each an equal part of its elements and of its words.
constexpr std::uint32_t kWriteParts = 16;

/// Four patterns of a chunk as they are sent, from element `at` on; zeros behind its end.
__device__ Four<std::uint32_t> four_patterns_at(const float* x, std::uint32_t at, std::uint32_t count, bool aligned,
                                                bool as_bf16) {
  const Four<float> four = four_at(x, at, count, aligned);
  Four<std::uint32_t> patterns;
  for (std::uint32_t i = 0; i < 4; ++i) patterns.value[i] = Exponents::pattern(four.value[i], as_bf16);
  return patterns;
}

/// The second pass: each chunk goes to its place, and the header is written.
__global__ void write_kernel(Exponents layout, const float* gradient, bool as_bf16, const ExponentCode* codes,
                             const std::uint16_t* words, const std::uint64_t* offsets, std::byte* payload) {
  const std::size_t chunks = layout.chunks();
  const bool aligned = aligned_to(gradient, 16);
  for (std::size_t item = blockIdx.x; item < chunks * kWriteParts; item += gridDim.x) {
    const std::size_t chunk = item / kWriteParts;
    const auto part = static_cast<std::uint32_t>(item % kWriteParts);
    const std::size_t first = chunk * Exponents::kChunk;
    const auto count = static_cast<std::uint32_t>(layout.elements(chunk));
    const ExponentCode& code = codes[chunk];
    const bool wide = Exponents::is_wide(code.kind());
    const bool coded = Exponents::is_coded(code.kind());
    std::byte* to = payload + layout.chunks_offset() + offsets[chunk];
    const CodedChunk sections{count, code.used, wide};
    auto* upper = reinterpret_cast<std::uint32_t*>(to + sections.upper_offset());
    // Words of two elements each, or, where all is sent as it is, of one or two.
    auto* rest = reinterpret_cast<std::uint32_t*>(coded ? to + sections.lower_offset() : to);
    constexpr std::uint32_t kPart = Exponents::kChunk / kWriteParts;
    const std::uint32_t end = (part + 1) * kPart < count ? (part + 1) * kPart : count;
    for (std::uint32_t at = part * kPart + 4 * threadIdx.x; at < end; at += 4 * kThreads) {
      const Four<std::uint32_t> four = four_patterns_at(gradient + first, at, count, aligned, as_bf16);
      const std::uint32_t(&bits)[4] = four.value;
      if (coded) {
        std::uint32_t uppers = 0;
        for (std::uint32_t i = 0; i < 4; ++i) uppers |= static_cast<std::uint32_t>(Exponents::upper(bits[i])) << 8 * i;
        upper[at / 4] = uppers;
      }
      if (wide && !coded) {
        for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) rest[at + i] = bits[i];
      } else if (wide || !coded) {
        const std::uint32_t halves = wide ? 0 : 16;  // the lower ones, or the upper ones
        for (std::uint32_t i = 0; i < 4 && at + i < count; i += 2)
          rest[(at + i) / 2] = (bits[i] >> halves & 0xffffu) | (bits[i + 1] >> halves) << 16;
      }
    }
    if (coded) {
      const std::uint16_t* own = words + first + (count - code.words);
      auto* packed = reinterpret_cast<std::uint32_t*>(to + sections.words_offset());
      const std::uint32_t pairs = (code.words + 1) / 2;
      for (std::uint32_t i = part * kThreads + threadIdx.x; i < pairs; i += kWriteParts * kThreads)
        packed[i] = own[2 * i] | (2 * i + 1 < code.words ? std::uint32_t{own[2 * i + 1]} << 16 : 0u);
    }
    if (part != 0) continue;
    if (threadIdx.x == 0) reinterpret_cast<std::uint32_t*>(payload + Exponents::sizes_offset())[chunk] = code.entry;
    if (!coded) continue;
    if (threadIdx.x < Exponents::kSymbols / 32)
      reinterpret_cast<std::uint32_t*>(to + CodedChunk::kBitmapOffset)[threadIdx.x] = code.bitmap[threadIdx.x];
    if (threadIdx.x < Exponents::kLanes)
      reinterpret_cast<std::uint32_t*>(to + CodedChunk::kStatesOffset)[threadIdx.x] = code.states[threadIdx.x];
    auto* frequencies = reinterpret_cast<std::uint16_t*>(to + CodedChunk::kFrequenciesOffset);
    if (code.frequencies[threadIdx.x] != 0) {
      std::uint32_t below = bits_set(code.bitmap[threadIdx.x / 32] & lanes_below(threadIdx.x % 32));
      for (std::uint32_t word = 0; word < threadIdx.x / 32; ++word) below += bits_set(code.bitmap[word]);
      frequencies[below] = code.frequencies[threadIdx.x];
    }
    if (threadIdx.x == 0 && code.used % 2 != 0) frequencies[code.used] = 0;
  }
  if (thread_in_grid() == 0)
    *reinterpret_cast<std::uint64_t*>(payload) = layout.chunks_offset() + (chunks == 0 ? 0 : offsets[chunks]);
}

/// bytes[chunk] := the length of the chunk by the table of sizes, or more than fits into any payload where no chunk is
/// that long.
__global__ void sizes_kernel(Exponents layout, const std::byte* payload, std::uint64_t* bytes) {
  const auto* entries = reinterpret_cast<const std::uint32_t*>(payload + Exponents::sizes_offset());
  const std::size_t chunks = layout.chunks();
  for (std::size_t chunk = thread_in_grid(); chunk <= chunks; chunk += threads_in_grid()) {
    if (chunk == chunks) {
      bytes[chunk] = 0;
      continue;
    }
    const std::uint32_t kind = entries[chunk] & format::kExponentKindMask;
    const std::uint32_t stated = entries[chunk] & ~format::kExponentKindMask;
    const std::size_t raw = Exponents::raw_bytes(layout.elements(chunk), Exponents::is_wide(kind));
    const bool possible =
        Exponents::is_coded(kind) ? stated >= CodedChunk::kFrequenciesOffset && stated < raw : stated == raw;
    bytes[chunk] = possible ? stated : layout.most_bytes(false);
  }
}

/// Fills the decoder's table of a coded chunk; false where its frequencies do not add up or it is too short. Called by
/// a block, with the same result in all threads. `sections` becomes the chunk's.
__device__ bool fill_slots(const std::byte* chunk, std::size_t bytes, CodedChunk& sections, std::uint32_t* slots) {
  __shared__ std::uint32_t symbols[Exponents::kSymbols];  // Rans::symbol, 0 for those that do not occur
  const auto of_eight = static_cast<std::uint32_t>(chunk[CodedChunk::kBitmapOffset + threadIdx.x / 8]);
  const std::uint32_t occurs = of_eight >> threadIdx.x % 8 & 1u;
  std::uint32_t used = 0, total = 0;
  const std::uint32_t through = block_sum_through(occurs, used);
  sections.used = used;
  if (sections.bytes(0) > bytes) return false;
  const auto* frequencies = reinterpret_cast<const std::uint16_t*>(chunk + CodedChunk::kFrequenciesOffset);
  const std::uint32_t frequency = occurs != 0 ? frequencies[through - 1] : 0u;
  const std::uint32_t end = block_sum_through(frequency, total);
  symbols[threadIdx.x] = frequency != 0 ? Rans::symbol(end - frequency, frequency) : 0u;
  const int zeros = __syncthreads_count(occurs != 0 && frequency == 0 ? 1 : 0);
  if (zeros != 0 || total != Rans::kTotal) return false;
  for (std::uint32_t s = threadIdx.x / kWarpSize; s < Exponents::kSymbols; s += kBlockWarpCount) {
    const std::uint32_t f = symbols[s] >> Rans::kTotalBits, start = symbols[s] % Rans::kTotal;
    for (std::uint32_t offset = lane_in_warp(); offset < f; offset += kWarpSize)
      slots[start + offset] = Rans::slot(s, f, offset);
  }
  __syncthreads();
  return true;
}

/// Rows of 32 exponents that a warp decodes while the other warps of the block put those before.
constexpr std::uint32_t kTileRows = 28;
constexpr std::uint32_t kTileElements = kTileRows * kWarpSize;
constexpr std::uint32_t kWordsAhead = 2048;  ///< a tile takes a word an element at most

/// A word of the code and the slot that it leads to: a state that takes in a word has the word's lower bits.
struct alignas(8) WordSlot {
  std::uint32_t word, slot;
};

struct DecodeShared {
  WordSlot words[kWordsAhead];                          ///< word i is at i modulo their number
  alignas(4) std::uint8_t exponents[2][kTileElements];  ///< of a tile and of the one before
  std::uint32_t slots[Rans::kTotal];
  std::uint32_t taken[2];  ///< words before a tile and before the next
};

/// The state of a lane that decodes, its slot, and the words that its warp has taken.
struct Popping {
  std::uint32_t state, slot, taken;
};

/// Decodes a tile of exponents, `count` of them or as many as it has. Called by a warp. A chunk takes as long as the
/// chain of its 2048 rows, from slot to slot, so that as little as possible is in it: the slots of words are known
/// before, and that of a state without a word does not wait for the vote.
__device__ void pop_exponents(const DecodeShared& shared, std::uint32_t count, std::uint8_t* exponents, Popping& own) {
  const std::uint32_t lane = lane_in_warp();
#pragma unroll 7
  for (std::uint32_t row = 0; row < kTileRows; ++row) {
    const std::uint32_t i = row * kWarpSize + lane;
    const WordSlot next = shared.words[(own.taken + lane) % kWordsAhead];
    const std::uint32_t lowest = i < count ? Rans::kLowest : 0u;
    const std::uint32_t popped = Rans::pop(own.state, own.slot);
    exponents[i] = static_cast<std::uint8_t>(Rans::symbol_of(own.slot));
    own.slot = shared.slots[popped % Rans::kTotal];
    const bool low = popped < lowest;
    const std::uint32_t all = __ballot_sync(kAllLanes, low ? 1 : 0);
    const std::uint32_t place = bits_set(all & lanes_below(lane));
    const std::uint32_t word = __shfl_sync(kAllLanes, next.word, static_cast<int>(place));
    const std::uint32_t slot = __shfl_sync(kAllLanes, next.slot, static_cast<int>(place));
    own.state = low ? popped << 16 | word : popped;
    own.slot = low ? slot : own.slot;
    own.taken += place + bits_set(all >> lane);  // so that the place is counted first
  }
}

/// Stores four neighbours, or as many of them as lie before `count`.
__device__ void put_four(const Four<float>& value, std::size_t at, std::size_t count, float* out, bool aligned) {
  if (aligned && at + 4 <= count) {
    *reinterpret_cast<Four<float>*>(out + at) = value;
  } else {
    for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) out[at + i] = value.value[i];
  }
}

/// Puts the elements of a coded chunk whose table is filled. Called by a block, of which a warp decodes exponents, and
/// the others bring it words and put what it has decoded. Words that are missing read as zero.
template <bool Exact>
__device__ void put_coded(const std::byte* chunk, std::size_t bytes, const CodedChunk& sections, DecodeShared& shared,
                          float weight, float* out) {
  constexpr std::uint32_t kOthers = kThreads - kWarpSize;
  const auto* upper = reinterpret_cast<const std::uint32_t*>(chunk + sections.upper_offset());
  const auto* lower = reinterpret_cast<const std::uint32_t*>(chunk + sections.lower_offset());
  const auto* words = reinterpret_cast<const std::uint16_t*>(chunk + sections.words_offset());
  const auto word_count = static_cast<std::uint32_t>((bytes - sections.words_offset()) / 2);
  const auto count = static_cast<std::uint32_t>(sections.count);
  const bool aligned = aligned_to(out, 16);
  const bool pops = warp_in_block() == 0;
  const auto bring = [&](std::uint32_t i) {
    const std::uint32_t word = i < word_count ? words[i] : 0u;
    shared.words[i % kWordsAhead] = {word, shared.slots[word % Rans::kTotal]};
  };
  for (std::uint32_t i = threadIdx.x; i < kWordsAhead; i += kThreads) bring(i);
  if (threadIdx.x == 0) shared.taken[0] = 0;
  const std::uint32_t state = reinterpret_cast<const std::uint32_t*>(chunk + CodedChunk::kStatesOffset)[lane_in_warp()];
  Popping own{state, shared.slots[state % Rans::kTotal], 0};
  std::uint32_t brought = kWordsAhead;
  __syncthreads();
  // The popping warp is a tile ahead of the others.
  for (std::uint32_t tile = 0; tile * kTileElements < count + kTileElements; ++tile) {
    const std::uint32_t first = tile * kTileElements;
    if (pops) {
      if (first < count) pop_exponents(shared, count - first, shared.exponents[tile % 2], own);
      if (threadIdx.x == 0) shared.taken[(tile + 1) % 2] = own.taken;
    } else {
      // All that this thread needs of memory is asked for at once, a tile being as many quads as there are threads.
      const std::uint32_t before = first - kTileElements;
      const std::uint32_t q = threadIdx.x - kWarpSize;
      const std::uint32_t at = before + 4 * q;
      const bool mine = tile > 0 && q < kTileElements / 4 && at < count;
      const bool both = sections.wide && at + 2 < count;
      const std::uint32_t uppers = mine ? upper[at / 4] : 0u;
      const std::uint32_t low = mine && sections.wide ? lower[at / 2] : 0u;
      const std::uint32_t high = mine && both ? lower[at / 2 + 1] : 0u;
      Four<float> old{};
      if constexpr (!Exact) {
        if (mine) old = four_at(out, at, count, aligned);
      }
      // Words that the tile before took make room for as many, so that those of the next tile are there in time.
      const std::uint32_t until = shared.taken[tile % 2] + kWordsAhead;
      for (std::uint32_t i = brought + threadIdx.x - kWarpSize; i < until; i += kOthers) bring(i);
      brought = until;
      if (mine) {
        const std::uint32_t four = reinterpret_cast<const std::uint32_t*>(shared.exponents[(tile + 1) % 2])[q];
        const std::uint32_t lowers[4] = {low & 0xffffu, low >> 16, high & 0xffffu, high >> 16};
        Four<float> value;
        for (std::uint32_t i = 0; i < 4; ++i) {
          value.value[i] = format::float_of(Exponents::join(four >> 8 * i & 0xffu, uppers >> 8 * i & 0xffu, lowers[i]));
          if constexpr (!Exact) value.value[i] = old.value[i] + weight * value.value[i];
        }
        put_four(value, at, count, out, aligned);
      }
    }
    __syncthreads();
  }
}

/// Adds an element to `out`, or, `Exact`, stores its bits there.
template <bool Exact>
__device__ void put(float& out, float weight, std::uint32_t bits) {
  if constexpr (Exact)
    out = format::float_of(bits);
  else
    out += weight * format::float_of(bits);
}

template <bool Exact>
__global__ void decode_kernel(Exponents layout, const std::byte* payload, std::size_t size,
                              const std::uint64_t* offsets, float weight, float* out) {
  __shared__ DecodeShared shared;
  const std::size_t chunks = layout.chunks();
  const std::uint64_t end = layout.chunks_offset() + offsets[chunks];
  const bool damaged = end > size || end != *reinterpret_cast<const std::uint64_t*>(payload);
  const auto* entries = reinterpret_cast<const std::uint32_t*>(payload + Exponents::sizes_offset());
  for (std::size_t index = blockIdx.x; index < chunks; index += gridDim.x) {
    const std::size_t count = layout.elements(index);
    float* to = out + index * Exponents::kChunk;
    const std::uint32_t kind = entries[index] & format::kExponentKindMask;
    const bool wide = Exponents::is_wide(kind);
    const std::byte* chunk = payload + layout.chunks_offset() + offsets[index];
    const std::size_t bytes = offsets[index + 1] - offsets[index];
    CodedChunk sections{count, 0, wide};
    if (damaged || (Exponents::is_coded(kind) && !fill_slots(chunk, bytes, sections, shared.slots))) {
      for (std::size_t i = threadIdx.x; i < count; i += kThreads) to[i] = format::quiet_nan();
    } else if (Exponents::is_coded(kind)) {
      put_coded<Exact>(chunk, bytes, sections, shared, weight, to);
    } else {
      for (std::size_t i = threadIdx.x; i < count; i += kThreads) {
        const std::uint32_t bits = wide ? reinterpret_cast<const std::uint32_t*>(chunk)[i]
                                        : std::uint32_t{reinterpret_cast<const std::uint16_t*>(chunk)[i]} << 16;
        put<Exact>(to[i], weight, bits);
      }
    }
    __syncthreads();  // The next chunk's table overwrites this one's.
  }
}

}  // namespace
}  // namespace cuda

namespace {

using format::ExponentCode;
using format::Exponents;

class GpuExponent final : public GpuCodec {
 public:
  explicit GpuExponent(const Params& params)
      : GpuCodec{"exponent", params}, as_bf16_{params.is("dtype", "bf16")}, may_narrow_{!params.is("dtype", "fp32")} {}

  /// Asks the GPU library what its scan needs.
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = Exponents{n}.most_bytes(as_bf16_),
            .scratch_bytes = planned<Workspace>(Exponents{n}),
            .exact = false};
  }

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    const Exponents layout{gradient.size()};
    const Workspace work{layout, Scratch<Space::cuda>{scratch}};
    const unsigned blocks = cuda::blocks_for(layout.chunks(), 1);
    if (!gradient.empty()) {
      cuda::launch(queue, "exponent encode", as_bf16_ ? cuda::encode_kernel<true> : cuda::encode_kernel<false>, blocks,
                   layout, gradient.data(), may_narrow_, work.codes.data(), work.words.data(), work.offsets.data());
      cuda::scan_tiles(queue, work.offsets.data(), work.offsets.size(), work.scan);
    }
    cuda::launch(queue, "exponent write", cuda::write_kernel, cuda::blocks_for(layout.chunks() * cuda::kWriteParts, 1),
                 layout, gradient.data(), as_bf16_, work.codes.data(), work.words.data(), work.offsets.data(),
                 payload.data());
  }

  /// Sizes in the payload that contradict each other or the view make all of `out` NaN, and a table that does not add
  /// up makes its chunk NaN.
  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes scratch) const override {
    put<false>(queue, payload, weight, out, scratch);
  }
  void decode(Queue<Space::cuda> queue, ConstBytes payload, Floats out, Bytes scratch) const override {
    put<true>(queue, payload, 1.0F, out, scratch);
  }

 private:
  template <bool Exact>
  void put(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out, Bytes scratch) const {
    const Exponents layout{out.size()};
    expect_room("exponent", payload.size(), layout.chunks_offset(), layout.most_bytes(as_bf16_));
    if (out.empty()) return;
    const Workspace work{layout, Scratch<Space::cuda>{scratch}};
    cuda::launch(queue, "exponent sizes", cuda::sizes_kernel, cuda::blocks_for(layout.chunks() + 1, cuda::kThreads),
                 layout, payload.data(), work.offsets.data());
    cuda::scan_tiles(queue, work.offsets.data(), work.offsets.size(), work.scan);
    cuda::launch(queue, "exponent decode", cuda::decode_kernel<Exact>, cuda::blocks_for(layout.chunks(), 1), layout,
                 payload.data(), payload.size(), work.offsets.data(), weight, out.data());
  }

  /// Working memory of encode and of decode_add.
  struct Workspace {
    Workspace(const Exponents& layout, Scratch<Space::cuda> scratch)
        : offsets{scratch.take<std::uint64_t>(layout.chunks() + 1)},
          scan{scratch.take_bytes(cuda::scan_bytes<std::uint64_t>(layout.chunks() + 1))},
          codes{scratch.take<ExponentCode>(layout.chunks())},
          words{scratch.take<std::uint16_t>(layout.n)} {}

    View<std::uint64_t, Space::cuda> offsets;  ///< of each chunk behind the first, and then the length of all
    View<std::byte, Space::cuda> scan;         ///< what the sum over the lengths needs
    View<ExponentCode, Space::cuda> codes;     ///< one a chunk
    View<std::uint16_t, Space::cuda> words;    ///< of each chunk, at the end of as many as it has elements
  };

  bool as_bf16_;
  bool may_narrow_;
};

}  // namespace

extern constinit const GpuFactories exponent_gpu{.codec = make_method_codec<Space::cuda, GpuExponent>};

}  // namespace gradtool
