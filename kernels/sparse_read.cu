#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/bit_stream.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/sparse.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool::cuda {
namespace {

// Reading: how kernels find positions in the index section of a sparse payload.
//
// Nothing in a stream of Elias codes says where a code begins. So the stream is cut into units. A code that begins
// before a unit reaches less far into it than the longest code is long, so there are few bits at which decoding may
// enter the unit; for each of them a block decodes the unit and notes where it would leave it. Then one block finds out
// where each unit is really entered, and in the end all units are decoded at once, each from there. Bitmaps take the
// same three steps, with the number of marks of a unit in place of the decoding. Most decodings fall into step within
// some codes, so nearly all units are left at one bit, wherever they are entered.

constexpr std::uint32_t kEntries = format::kEliasLongest;  // bits at which a unit or a chunk may be entered
constexpr std::uint32_t kChunkBits = 256;
constexpr std::uint32_t kChunks = 16;  // chunks of a unit; a thread decodes a chunk
constexpr std::uint32_t kUnitBits = kChunks * kChunkBits;
constexpr std::uint32_t kUnitWords = kUnitBits / 32;
constexpr std::uint32_t kBitmapWords = 4 * kThreads;  // words of a unit of a bitmap

/// The decoding of a chunk or a unit from one of the bits at which it may be entered.
struct Walk {
  std::uint32_t leaves = 0;  ///< bits that the last code reaches behind the end; 0 where the stream ends before
  std::uint32_t count = 0;   ///< codes
  std::uint32_t sum = 0;     ///< sum of their gaps
};

/// The start of a unit.
struct Start {
  std::uint32_t enters = 0;   ///< the bit at which it is entered
  std::uint32_t ordinal = 0;  ///< values before it
  std::uint32_t next = 0;     ///< the position that a gap of 1 stands for
};

constexpr std::uint8_t kOpen = 255;  // of a unit whose walks do not all leave it at one bit

/// Tables over all units of a payload.
struct Units {
  Start* starts;
  Walk* walks;           ///< for each unit, kEntries of them
  std::uint8_t* leaves;  ///< Walk::leaves of all walks of a unit, or kOpen where they differ
  std::size_t size;      ///< units that the largest payload of a shape has
};

/// The sections of a payload.
struct Sections {
  bool good = false;  ///< false where header, length and shape contradict each other
  bool not_finite = false;
  IndexCode code{};  ///< u32 for words of position and sign too
  bool as_words = false;
  std::uint32_t count = 0;
  const std::uint32_t* values = nullptr;
  const std::uint32_t* index = nullptr;
  std::size_t words = 0;  ///< of the index section
};

/// Units of an index section; a list of positions has none.
__device__ std::size_t units_in(IndexCode code, std::size_t words) {
  if (code == IndexCode::u32) return 0;
  const std::size_t each = code == IndexCode::elias ? kUnitWords : kBitmapWords;
  return (words + each - 1) / each;
}

/// `most_units`: what the shape's largest payload has; one with more is not good.
__device__ Sections sections_of(const SparseShape& shape, const std::byte* payload, std::size_t size,
                                std::size_t most_units) {
  const auto* head = reinterpret_cast<const std::uint32_t*>(payload);
  const SparseHeader header{std::uint64_t{head[1]} << 32 | head[0], head[2], head[3]};
  const std::size_t k = header.count;
  const bool has_signs = shape.value_bits == 1;
  const std::uint32_t form = has_signs ? header.code & ~format::kNotFinite : header.code;
  const bool as_words = has_signs && form == format::kSignedWords;
  const std::size_t at = sizeof header + (as_words ? 0 : shape.value_bytes(k));
  if (k > shape.n || k > shape.most || (form > 2 && !as_words) || header.bytes > size || header.bytes < at ||
      (k == 0 && form != header.code))
    return {};
  const auto code = as_words ? IndexCode::u32 : static_cast<IndexCode>(form);
  const std::size_t bytes = header.bytes - at;
  if (bytes % 4 != 0 || (code != IndexCode::elias && bytes != format::index_bytes(code, k, shape.n, 0))) return {};
  // Scratch was planned for the fixed code, if there is one, so a payload in another code is not good either.
  if ((!shape.automatic && !as_words && code != shape.fixed) || units_in(code, bytes / 4) > most_units) return {};
  return {true,
          form != header.code,
          code,
          as_words,
          header.count,
          reinterpret_cast<const std::uint32_t*>(payload + sizeof header),
          reinterpret_cast<const std::uint32_t*>(payload + at),
          bytes / 4};
}

__device__ std::size_t units_of(const Sections& at) {
  return at.good ? units_in(at.code, at.words) : 0;
}

/// Loads the words of a unit of Elias codes and those behind it that its last code may reach; zeros behind the end.
__device__ void load_unit(const Sections& at, std::size_t unit, std::uint32_t* words) {
  for (std::uint32_t i = threadIdx.x; i < kUnitWords + 3; i += kThreads) {
    const std::size_t word = unit * kUnitWords + i;
    words[i] = word < at.words ? at.index[word] : 0u;
  }
  __syncthreads();
}

__device__ format::EliasFront code_at(const std::uint32_t* words, std::uint32_t bit) {
  const std::uint32_t* at = words + bit / 32;
  const std::uint64_t low = std::uint64_t{at[1]} << 32 | at[0];
  const std::uint32_t shift = bit % 32;
  return format::elias_delta_front(shift == 0 ? low : low >> shift | std::uint64_t{at[2]} << (64 - shift));
}

/// Bits of a unit that belong to the stream. Decoding stops there: zeros are no code and would be passed bit by bit.
__device__ std::uint32_t bits_in(const Sections& at, std::size_t unit) {
  const std::size_t left = at.words - unit * kUnitWords;
  return left < kUnitWords ? 32 * static_cast<std::uint32_t>(left) : kUnitBits;
}

constexpr std::uint32_t kCodeValue = (1u << 26) - 1;  // the bits of an entry of codes that are the value

/// codes[bit] := the code that begins at each of the first `bits` bits of a unit, its length above its value; 0 where
/// the value takes more bits. Many walks pass through each of them, and a look-up is a fifth of a decoding.
__device__ void find_codes(const std::uint32_t* words, std::uint32_t bits, std::uint32_t* codes) {
  for (std::uint32_t bit = threadIdx.x; bit < bits; bit += kThreads) {
    const format::EliasFront code = code_at(words, bit);
    codes[bit] = code.value > kCodeValue ? 0u : code.count << 26 | code.value;
  }
  __syncthreads();
}

/// Calls take(value) for the codes of a chunk from bit `enters` of it on. Returns Walk::leaves.
template <class Take>
__device__ std::uint32_t walk_chunk(const std::uint32_t* words, std::uint32_t bits, const std::uint32_t* codes,
                                    std::uint32_t chunk, std::uint32_t enters, const Take& take) {
  const std::uint32_t end = (chunk + 1) * kChunkBits;
  const std::uint32_t stop = end < bits ? end : bits;
  std::uint32_t bit = end - kChunkBits + enters;
  while (bit < stop) {
    const std::uint32_t packed = codes[bit];
    const format::EliasFront code =
        packed == 0 ? code_at(words, bit) : format::EliasFront{packed & kCodeValue, packed >> 26};
    bit += code.count;
    take(code.value);
  }
  return bit < end ? 0 : bit - end;
}

/// walks[chunk * kEntries + entry] := the decoding of each chunk of a unit from each bit at which it may be entered.
__device__ void walk_chunks(const std::uint32_t* words, std::uint32_t bits, const std::uint32_t* codes, Walk* walks) {
  for (std::uint32_t i = threadIdx.x; i < kChunks * kEntries; i += kThreads) {
    Walk walk;
    walk.leaves = walk_chunk(words, bits, codes, i / kEntries, i % kEntries, [&](std::uint32_t gap) {
      walk.sum += gap;
      ++walk.count;
    });
    walks[i] = walk;
  }
  __syncthreads();
}

/// Each unit by itself: the walks of a unit of Elias codes, or the number of marks of a unit of a bitmap.
__device__ void find_each_unit(const SparseShape& shape, const std::byte* payload, std::size_t size, const Units& units,
                               const Place& place) {
  __shared__ std::uint32_t words[kUnitWords + 3];
  __shared__ std::uint32_t codes[kUnitBits];
  __shared__ Walk walks[kChunks * kEntries];
  __shared__ std::uint32_t leaves;
  const Sections at = sections_of(shape, payload, size, units.size);
  const std::size_t used = units_of(at);
  for (std::size_t unit = place.block; unit < used; unit += place.blocks) {
    if (at.code == IndexCode::bitmap) {
      std::uint32_t own = 0;
      for (std::size_t word = unit * kBitmapWords + threadIdx.x; word < (unit + 1) * kBitmapWords && word < at.words;
           word += kThreads)
        own += static_cast<std::uint32_t>(__popc(at.index[word]));
      std::uint32_t total = 0;
      block_sum_through(own, total);
      if (threadIdx.x == 0) units.starts[unit].ordinal = total;
      continue;
    }
    const std::uint32_t bits = bits_in(at, unit);
    load_unit(at, unit, words);
    find_codes(words, bits, codes);
    walk_chunks(words, bits, codes, walks);
    Walk all;
    if (threadIdx.x < kEntries) {
      all.leaves = threadIdx.x;
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const Walk& next = walks[chunk * kEntries + all.leaves];
        all = {next.leaves, all.count + next.count, all.sum + next.sum};
      }
      units.walks[unit * kEntries + threadIdx.x] = all;
      if (threadIdx.x == 0) leaves = all.leaves;
    }
    __syncthreads();
    const int other = __syncthreads_count(threadIdx.x < kEntries && all.leaves != leaves ? 1 : 0);
    if (threadIdx.x == 0) units.leaves[unit] = other == 0 ? static_cast<std::uint8_t>(leaves) : kOpen;
  }
}

/// One block: where each unit starts. Each thread goes back to a unit that is left at one bit, most often the one
/// before its own, and from there from unit to unit.
__device__ void find_starts(const SparseShape& shape, const std::byte* payload, std::size_t size, const Units& units) {
  __shared__ std::uint8_t leaves[kThreads + 1];  // of the unit before the first one of a round, and of those of a round
  const Sections at = sections_of(shape, payload, size, units.size);
  const std::size_t used = units_of(at);
  if (threadIdx.x == 0) leaves[0] = 0;
  std::uint32_t ordinal = 0;
  std::uint32_t next = 0;
  for (std::size_t first = 0; first < used; first += kThreads) {
    const std::size_t unit = first + threadIdx.x;
    Start start;
    Walk own;
    if (at.code == IndexCode::bitmap) {
      if (unit < used) own.count = units.starts[unit].ordinal;
    } else {
      if (unit < used) leaves[threadIdx.x + 1] = units.leaves[unit];
      __syncthreads();
      if (unit < used) {
        std::uint32_t from = threadIdx.x;
        while (leaves[from] == kOpen) --from;
        start.enters = leaves[from];
        for (; from < threadIdx.x; ++from) start.enters = units.walks[(first + from) * kEntries + start.enters].leaves;
        own = units.walks[unit * kEntries + start.enters];
      }
      __syncthreads();
      if (threadIdx.x == kThreads - 1) leaves[0] = static_cast<std::uint8_t>(own.leaves);
    }
    std::uint32_t counts = 0;
    std::uint32_t sums = 0;
    start.ordinal = ordinal + block_sum_through(own.count, counts) - own.count;
    start.next = next + block_sum_through(own.sum, sums) - own.sum;
    if (unit < used) units.starts[unit] = start;
    ordinal += counts;
    next += sums;
  }
}

__global__ void units_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units) {
  find_each_unit(shape, payload, size, units, whole_grid());
}
__global__ void starts_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units) {
  find_starts(shape, payload, size, units);
}

/// The units of the largest payload of a shape.
std::size_t most_units(const SparseShape& shape) {
  const std::size_t bitmap = format::words_of_bits(shape.n);
  const std::size_t bitmap_units = (bitmap + kBitmapWords - 1) / kBitmapWords;
  // No code has more than two bits for each unit of its gap, and all gaps together are at most n. With index=auto,
  // codes are used only where they are smaller than a bitmap and than a list.
  std::size_t words = std::min(2 * bitmap + 1, (shape.most * format::kEliasLongest + 31) / 32);
  if (shape.automatic) words = std::min(bitmap, shape.most);
  const std::size_t elias_units = (words + kUnitWords - 1) / kUnitWords;
  if (shape.automatic) return std::max(bitmap_units, elias_units);
  return shape.fixed == IndexCode::bitmap ? bitmap_units : shape.fixed == IndexCode::elias ? elias_units : 0;
}

/// Arrays of add_sparse and mark_sparse in their scratch.
struct ReadWorkspace {
  ReadWorkspace(const SparseShape& shape, Scratch<Space::cuda> scratch) {
    units.size = most_units(shape);
    units.starts = scratch.take<Start>(units.size).data();
    if (shape.automatic || shape.fixed == IndexCode::elias) {
      units.walks = scratch.take<Walk>(kEntries * units.size).data();
      units.leaves = scratch.take<std::uint8_t>(units.size).data();
    }
  }
  Units units{};
};

/// Finds out where the units of a payload start; there are none for a list of positions. Enqueued.
Units find_units(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 View<std::byte, Space::cuda> scratch) {
  expects(payload.size() >= sizeof(SparseHeader) && aligned_to(payload.data(), 4),
          "sparse payload: needs a header, 4-byte aligned");
  const Units units = ReadWorkspace{shape, Scratch<Space::cuda>{scratch}}.units;
  if (units.size == 0) return units;
  launch(queue, "sparse units", units_kernel, blocks_for(units.size, 1, 2048), shape, payload.data(), payload.size(),
         units);
  launch(queue, "sparse starts", starts_kernel, 1, shape, payload.data(), payload.size(), units);
  return units;
}

/// visit(ordinal, position) for the marks of a unit of a bitmap, by a block.
template <class Visit>
__device__ void visit_bitmap_unit(const Sections& at, const Visit& visit, const Start& start, std::size_t unit) {
  constexpr std::uint32_t kOwn = kBitmapWords / kThreads;  // words of a thread
  const std::size_t first = unit * kBitmapWords + threadIdx.x * kOwn;
  std::uint32_t words[kOwn];
  std::uint32_t own = 0;
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    words[i] = first + i < at.words ? at.index[first + i] : 0u;
    own += static_cast<std::uint32_t>(__popc(words[i]));
  }
  std::uint32_t total = 0;
  std::uint32_t ordinal = start.ordinal + block_sum_through(own, total) - own;
  for (std::uint32_t i = 0; i < kOwn; ++i) {
    for (std::uint32_t rest = words[i]; rest != 0; rest &= rest - 1)
      visit(ordinal++, 32 * (first + i) + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1));
  }
}

/// Calls `visit` for a unit of Elias codes. `words`, `codes`, `walks` and `positions` are shared memory; the last two
/// share it.
template <class Visit>
__device__ void visit_elias_unit(const Sections& at, const Visit& visit, const Start& start, std::size_t unit,
                                 std::uint32_t* words, std::uint32_t* codes, Walk* walks, std::uint32_t* positions) {
  __shared__ Start chunks[kChunks];
  __shared__ std::uint32_t total;
  const std::uint32_t bits = bits_in(at, unit);
  load_unit(at, unit, words);
  find_codes(words, bits, codes);
  walk_chunks(words, bits, codes, walks);
  if (threadIdx.x == 0) {
    Start here{start.enters, 0, start.next};
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      chunks[chunk] = here;
      const Walk& walk = walks[chunk * kEntries + here.enters];
      here = {walk.leaves, here.ordinal + walk.count, here.next + walk.sum};
    }
    total = here.ordinal;
  }
  __syncthreads();  // from here on the positions take the place of the walks
  if (threadIdx.x < kChunks) {
    Start here = chunks[threadIdx.x];
    walk_chunk(words, bits, codes, threadIdx.x, here.enters, [&](std::uint32_t gap) {
      here.next += gap;
      positions[here.ordinal++] = here.next - 1;
    });
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < total; i += kThreads) visit(start.ordinal + i, positions[i]);
  __syncthreads();
}

/// Calls visit_one(ordinal, position) for all values of a good payload, in any order, by the grid. Positions behind the
/// last element and values behind the last one are left out.
template <class Visit>
__device__ void visit_all(const SparseShape& shape, const Sections& at, const Units& units, const Place& place,
                          const Visit& visit_one) {
  __shared__ std::uint32_t words[kUnitWords + 3];
  __shared__ std::uint32_t codes[kUnitBits];
  __shared__ std::uint32_t shared[kUnitBits];
  static_assert(sizeof(Walk) * kChunks * kEntries <= sizeof shared && alignof(Walk) == alignof(std::uint32_t));
  const auto visit = [&](std::uint32_t ordinal, std::size_t position) {
    if (at.as_words) position &= format::kWordIndex;
    if (ordinal < at.count && position < shape.n) visit_one(ordinal, position);
  };
  if (at.code == IndexCode::u32) {
    for (std::size_t i = place.thread(); i < at.count; i += place.threads())
      visit(static_cast<std::uint32_t>(i), at.index[i]);
    return;
  }
  const std::size_t used = units_of(at);
  for (std::size_t unit = place.block; unit < used; unit += place.blocks) {
    const Start start = units.starts[unit];
    if (at.code == IndexCode::bitmap)
      visit_bitmap_unit(at, visit, start, unit);
    else
      visit_elias_unit(at, visit, start, unit, words, codes, reinterpret_cast<Walk*>(shared), shared);
  }
}

__device__ void add_values(const SparseShape& shape, const std::byte* payload, std::size_t size, const Units& units,
                           float weight, float* out, const SparseForget& forget, const Place& place) {
  const Sections at = sections_of(shape, payload, size, units.size);
  if (!at.good) {
    for (std::size_t i = place.thread(); i < shape.n; i += place.threads()) out[i] = __uint_as_float(0x7fc00000u);
    return;
  }
  const float factor = at.not_finite ? __uint_as_float(0x7fc00000u) : weight;
  visit_all(shape, at, units, place, [&](std::uint32_t ordinal, std::size_t position) {
    if (shape.value_bits == 32) {
      out[position] += factor * __uint_as_float(at.values[ordinal]);
    } else {
      const std::uint32_t word = at.as_words ? at.index[ordinal] >> 31 : at.values[ordinal / 32] >> ordinal % 32;
      out[position] += __uint_as_float(__float_as_uint(factor) ^ word << 31);
    }
    if (forget.kept != nullptr && (__float_as_uint(forget.kept[position]) & 0x7fffffffu) >= forget.low)
      forget.kept[position] = 0.0F;
  });
}

__global__ void add_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units, float weight,
                           float* out, SparseForget forget) {
  add_values(shape, payload, size, units, weight, out, forget, whole_grid());
}

__global__ void mark_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units,
                            std::uint32_t* words) {
  const Sections at = sections_of(shape, payload, size, units.size);
  if (!at.good) {
    for (std::size_t w = thread_in_grid(); 32 * w < shape.n; w += threads_in_grid())
      words[w] = shape.n - 32 * w < 32 ? lanes_below(static_cast<std::uint32_t>(shape.n - 32 * w)) : 0xffffffffu;
    return;
  }
  visit_all(shape, at, units, whole_grid(), [&](std::uint32_t /*ordinal*/, std::size_t position) {
    atomicOr(&words[position / 32], 1u << position % 32);
  });
}

// Many payloads, in the launches of one.

/// The tables of `count` units in scratch, in which each has room for `kUnitBytes`.
constexpr std::size_t kUnitBytes = sizeof(Start) + kEntries * sizeof(Walk) + 4;
__device__ Units tables_at(std::byte* scratch, std::size_t count) {
  auto* walks = reinterpret_cast<Walk*>(scratch);
  auto* starts = reinterpret_cast<Start*>(walks + kEntries * count);
  return {starts, walks, reinterpret_cast<std::uint8_t*>(starts + count), count};
}

/// Work on the units of a batch; `Step` is one of the functions above.
enum class Adding { units, starts, values };
template <Adding Step>
struct AddingWork {
  using Item = AddedUnit;
  SparseShape form;
  float weight;

  [[nodiscard]] static std::size_t blocks(const AddedUnit& unit) {
    constexpr unsigned kMost = 256;
    if (Step == Adding::starts) return 1;
    const std::size_t values = Step == Adding::values ? (unit.most + kThreads - 1) / kThreads : 1;
    return blocks_for(std::max<std::size_t>(unit.units, values), 1, kMost);
  }
  __device__ void run(const AddedUnit& unit, std::uint32_t /*index*/, const Place& place) const {
    SparseShape shape = form;
    shape.n = unit.n;
    shape.most = unit.most;
    const Units units = tables_at(unit.scratch, unit.units);
    if constexpr (Step == Adding::units) find_each_unit(shape, unit.payload, unit.bytes, units, place);
    if constexpr (Step == Adding::starts) find_starts(shape, unit.payload, unit.bytes, units);
    if constexpr (Step == Adding::values)
      add_values(shape, unit.payload, unit.bytes, units, weight, unit.out, {}, place);
  }
};

Grid blocks_of(const SparseShape& shape, const Units& units) {
  return blocks_for(std::max(units.size, (shape.most + kThreads - 1) / kThreads), 1, 2048);
}

}  // namespace

std::size_t read_sparse_scratch_bytes(const SparseShape& shape) {
  return planned<ReadWorkspace>(shape);
}

void add_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                float weight, float* out, View<std::byte, Space::cuda> scratch, const SparseForget& forget) {
  const Units units = find_units(queue, shape, payload, scratch);
  launch(queue, "sparse add", add_kernel, blocks_of(shape, units), shape, payload.data(), payload.size(), units, weight,
         out, forget);
}

AddedBatch::AddedBatch(Queue<Space::cuda> queue, const SparseShape& form, float weight,
                       View<std::byte, Space::cuda> scratch)
    : queue_{queue}, form_{form}, weight_{weight}, scratch_{scratch} {
  static_assert(kMost <= kMostItems<AddingWork<Adding::values>>);
}

void AddedBatch::add(View<const std::byte, Space::cuda> payload, std::size_t most, View<float, Space::cuda> out) {
  SparseShape shape = form_;
  shape.n = out.size();
  shape.most = most;
  expects(payload.size() >= sizeof(SparseHeader) && aligned_to(payload.data(), 4),
          "sparse payload: needs a header, 4-byte aligned");
  const std::size_t units = most_units(shape);
  const std::size_t bytes = (kUnitBytes * units + 255) / 256 * 256;
  if (count_ == kMost || used_ + bytes > scratch_.size()) flush();
  expects(used_ + bytes <= scratch_.size() && shape.n < std::size_t{1} << 32 && payload.size() < std::size_t{1} << 32,
          "a payload does not fit its batch");
  units_[count_++] = {payload.data(),
                      out.data(),
                      scratch_.data() + used_,
                      static_cast<std::uint32_t>(shape.n),
                      static_cast<std::uint32_t>(shape.most),
                      static_cast<std::uint32_t>(payload.size()),
                      static_cast<std::uint32_t>(units)};
  used_ += bytes;
}

void AddedBatch::flush() {
  const std::span<const AddedUnit> units{units_.data(), count_};
  count_ = used_ = 0;
  if (form_.automatic || form_.fixed != IndexCode::u32) {
    launch_units(queue_, "sparse units", AddingWork<Adding::units>{form_, weight_}, units);
    launch_units(queue_, "sparse starts", AddingWork<Adding::starts>{form_, weight_}, units);
  }
  launch_units(queue_, "sparse add", AddingWork<Adding::values>{form_, weight_}, units);
}

void mark_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 std::uint32_t* words, View<std::byte, Space::cuda> scratch) {
  const Units units = find_units(queue, shape, payload, scratch);
  launch(queue, "sparse marks", mark_kernel, blocks_of(shape, units), shape, payload.data(), payload.size(), units,
         words);
}

}  // namespace gradtool::cuda
