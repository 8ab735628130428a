#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/sparse_units.hpp"
#include "kernels/law/elias.hpp"

// Elias codes have no marks that a thread could start from, so blocks take a unit of bits each, and find out where they
// would leave it for every bit at which they may enter it: a code that begins before a unit reaches less than the
// longest code into it. One block then walks from unit to unit, and every unit is decoded from where it is entered.
// Bitmaps take the same three steps, with the marks of a unit instead of the walk.
namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kEntries = law::kEliasLongest;  // bits at which a unit or a chunk may be entered
constexpr std::uint32_t kChunkBits = 256;
constexpr std::uint32_t kChunks = 32;  // of a unit
constexpr std::uint32_t kUnitBits = kChunks * kChunkBits;
constexpr std::uint32_t kUnitWords = kUnitBits / 32;
constexpr std::uint32_t kBitmapWords = 4 * kThreads;  // of a unit of a bitmap

/// Where codes that enter a stretch of bits at some bit leave it, how many they are, and the sum of their gaps.
struct Walk {
  std::uint32_t leaves = 0;  ///< bits behind the stretch's end
  std::uint32_t count = 0;
  std::uint32_t sum = 0;
};

/// What a unit starts from.
struct Start {
  std::uint32_t enters = 0;
  std::uint32_t ordinal = 0;  ///< values in front of it
  std::uint32_t next = 0;     ///< the position that a gap of 1 stands for
};

struct Units {
  Start* starts;
  Walk* walks;  ///< kEntries for each unit
  std::size_t size;
};

/// A payload's sections, or that they contradict each other.
struct Sections {
  bool good = false;
  bool not_finite = false;
  IndexCode code{};  ///< u32 for signed words too
  bool as_words = false;
  std::uint32_t count = 0;
  const std::uint32_t* values = nullptr;
  const std::uint32_t* index = nullptr;
  std::size_t words = 0;  ///< of the index
};

__device__ Sections sections_of(const SparseShape& shape, const std::byte* payload, std::size_t size) {
  const auto* head = reinterpret_cast<const std::uint32_t*>(payload);
  const SparseHeader header{std::uint64_t{head[1]} << 32 | head[0], head[2], head[3]};
  const std::size_t k = header.count;
  const bool has_signs = shape.value_bits == 1;
  const std::uint32_t form = has_signs ? header.code & ~law::kNotFinite : header.code;
  const bool as_words = has_signs && form == law::kSignedWords;
  const std::size_t at = sizeof header + (as_words ? 0 : sparse_value_bytes(shape, k));
  if (k > shape.n || k > shape.most || (form > 2 && !as_words) || header.bytes > size || header.bytes < at ||
      (k == 0 && form != header.code))
    return {};
  const auto code = as_words ? IndexCode::u32 : static_cast<IndexCode>(form);
  const std::size_t bytes = header.bytes - at;
  if (bytes % 4 != 0 || (code != IndexCode::elias && bytes != law::index_bytes(code, k, shape.n, 0))) return {};
  return {true,
          form != header.code,
          code,
          as_words,
          header.count,
          reinterpret_cast<const std::uint32_t*>(payload + sizeof header),
          reinterpret_cast<const std::uint32_t*>(payload + at),
          bytes / 4};
}

/// Units of this payload, at most as many as there is room for.
__device__ std::size_t units_of(const Sections& at, std::size_t room) {
  if (!at.good || at.code == IndexCode::u32) return 0;
  const std::size_t words = at.code == IndexCode::elias ? kUnitWords : kBitmapWords;
  const std::size_t units = (at.words + words - 1) / words;
  return units < room ? units : room;
}

/// The words of an Elias unit and what its last code may reach behind it, zeros behind the end.
__device__ void load_unit(const Sections& at, std::size_t unit, std::uint32_t* words) {
  for (std::uint32_t i = threadIdx.x; i < kUnitWords + 3; i += kThreads) {
    const std::size_t word = unit * kUnitWords + i;
    words[i] = word < at.words ? at.index[word] : 0u;
  }
  __syncthreads();
}

__device__ law::EliasFront code_at(const std::uint32_t* words, std::uint32_t bit) {
  const std::uint32_t* at = words + bit / 32;
  const std::uint64_t low = std::uint64_t{at[1]} << 32 | at[0];
  const std::uint32_t shift = bit % 32;
  return law::elias_delta_front(shift == 0 ? low : low >> shift | std::uint64_t{at[2]} << (64 - shift));
}

/// walks[chunk * kEntries + entry] for all chunks of a unit.
__device__ void walk_chunks(const std::uint32_t* words, Walk* walks) {
  for (std::uint32_t i = threadIdx.x; i < kChunks * kEntries; i += kThreads) {
    const std::uint32_t end = (i / kEntries + 1) * kChunkBits;
    std::uint32_t bit = end - kChunkBits + i % kEntries;
    Walk walk;
    while (bit < end) {
      const law::EliasFront code = code_at(words, bit);
      bit += code.count;
      walk.sum += code.value;
      ++walk.count;
    }
    walk.leaves = bit - end;
    walks[i] = walk;
  }
  __syncthreads();
}

__global__ void units_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units) {
  __shared__ std::uint32_t words[kUnitWords + 3];
  __shared__ Walk walks[kChunks * kEntries];
  const Sections at = sections_of(shape, payload, size);
  const std::size_t used = units_of(at, units.size);
  for (std::size_t unit = blockIdx.x; unit < used; unit += gridDim.x) {
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
    load_unit(at, unit, words);
    walk_chunks(words, walks);
    if (threadIdx.x < kEntries) {
      Walk all;
      all.leaves = threadIdx.x;
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const Walk& next = walks[chunk * kEntries + all.leaves];
        all = {next.leaves, all.count + next.count, all.sum + next.sum};
      }
      units.walks[unit * kEntries + threadIdx.x] = all;
    }
    __syncthreads();
  }
}

/// One block: from unit to unit.
__global__ void starts_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units) {
  __shared__ std::uint8_t leaves[kThreads * kEntries];
  __shared__ std::uint8_t enters[kThreads];
  __shared__ std::uint32_t entry;
  const Sections at = sections_of(shape, payload, size);
  const std::size_t used = units_of(at, units.size);
  if (threadIdx.x == 0) entry = 0;
  std::uint32_t ordinal = 0;
  std::uint32_t next = 0;
  for (std::size_t first = 0; first < used; first += kThreads) {
    const std::size_t unit = first + threadIdx.x;
    Walk own;
    if (at.code == IndexCode::bitmap) {
      if (unit < used) own.count = units.starts[unit].ordinal;
    } else {
      const std::size_t here = (used - first < kThreads ? used - first : kThreads);
      for (std::size_t i = threadIdx.x; i < here * kEntries; i += kThreads)
        leaves[i] = static_cast<std::uint8_t>(units.walks[first * kEntries + i].leaves);
      __syncthreads();
      if (threadIdx.x == 0) {
        for (std::size_t i = 0; i < here; ++i) {
          enters[i] = static_cast<std::uint8_t>(entry);
          entry = leaves[i * kEntries + entry];
        }
      }
      __syncthreads();
      if (unit < used) own = units.walks[unit * kEntries + enters[threadIdx.x]];
    }
    std::uint32_t counts = 0;
    std::uint32_t sums = 0;
    const std::uint32_t count = block_sum_through(own.count, counts) - own.count;
    const std::uint32_t sum = block_sum_through(own.sum, sums) - own.sum;
    if (unit < used)
      units.starts[unit] = {at.code == IndexCode::elias ? enters[threadIdx.x] : 0u, ordinal + count, next + sum};
    ordinal += counts;
    next += sums;
    __syncthreads();
  }
}

/// Adds values where they belong.
struct Adder {
  const SparseShape& shape;
  const Sections& at;
  float weight;
  float* out;
  SparseForget forget;

  __device__ void operator()(std::uint32_t ordinal, std::size_t position) const {
    if (ordinal >= at.count) return;
    if (at.as_words) position &= law::kWordIndex;
    if (position >= shape.n) return;
    if (shape.value_bits == 32) {
      out[position] += weight * __uint_as_float(at.values[ordinal]);
    } else {
      const std::uint32_t word = at.as_words ? at.index[ordinal] >> 31 : at.values[ordinal / 32] >> ordinal % 32;
      out[position] += __uint_as_float(__float_as_uint(weight) ^ word << 31);
    }
    if (forget.kept != nullptr && (__float_as_uint(forget.kept[position]) & 0x7fffffffu) >= forget.low)
      forget.kept[position] = 0.0F;
  }
};

__device__ void add_bitmap_unit(const Adder& add, const Start& start, std::size_t unit) {
  constexpr std::uint32_t kEach = kBitmapWords / kThreads;
  const std::size_t first = unit * kBitmapWords + threadIdx.x * kEach;
  std::uint32_t words[kEach];
  std::uint32_t own = 0;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    words[i] = first + i < add.at.words ? add.at.index[first + i] : 0u;
    own += static_cast<std::uint32_t>(__popc(words[i]));
  }
  std::uint32_t total = 0;
  std::uint32_t ordinal = start.ordinal + block_sum_through(own, total) - own;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    for (std::uint32_t rest = words[i]; rest != 0; rest &= rest - 1)
      add(ordinal++, 32 * (first + i) + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1));
  }
}

__device__ void add_elias_unit(const Adder& add, const Start& start, std::size_t unit, std::uint32_t* words,
                               Walk* walks, std::uint32_t* positions) {
  __shared__ Start chunks[kChunks];
  __shared__ std::uint32_t total;
  load_unit(add.at, unit, words);
  walk_chunks(words, walks);
  if (threadIdx.x == 0) {
    Start here{start.enters, 0, start.next};
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      chunks[chunk] = here;
      const Walk& walk = walks[chunk * kEntries + here.enters];
      here = {walk.leaves, here.ordinal + walk.count, here.next + walk.sum};
    }
    total = here.ordinal;
  }
  __syncthreads();  // the walks are done with: the positions take their place
  if (threadIdx.x < kChunks) {
    Start at = chunks[threadIdx.x];
    const std::uint32_t end = (threadIdx.x + 1) * kChunkBits;
    for (std::uint32_t bit = end - kChunkBits + at.enters; bit < end;) {
      const law::EliasFront code = code_at(words, bit);
      bit += code.count;
      at.next += code.value;
      positions[at.ordinal++] = at.next - 1;
    }
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < total; i += kThreads) add(start.ordinal + i, positions[i]);
  __syncthreads();
}

__global__ void add_kernel(SparseShape shape, const std::byte* payload, std::size_t size, Units units, float weight,
                           float* out, SparseForget forget) {
  __shared__ std::uint32_t words[kUnitWords + 3];
  __shared__ std::uint32_t room[kUnitBits];
  static_assert(sizeof(Walk) * kChunks * kEntries <= sizeof room && alignof(Walk) == alignof(std::uint32_t));
  const Sections at = sections_of(shape, payload, size);
  if (!at.good) {
    for (std::size_t i = thread_in_grid(); i < shape.n; i += threads_in_grid()) out[i] = __uint_as_float(0x7fc00000u);
    return;
  }
  const Adder add{shape, at, at.not_finite ? __uint_as_float(0x7fc00000u) : weight, out, forget};
  if (at.code == IndexCode::u32) {
    for (std::size_t i = thread_in_grid(); i < at.count; i += threads_in_grid())
      add(static_cast<std::uint32_t>(i), at.index[i]);
    return;
  }
  const std::size_t used = units_of(at, units.size);
  for (std::size_t unit = blockIdx.x; unit < used; unit += gridDim.x) {
    const Start start = units.starts[unit];
    if (at.code == IndexCode::bitmap)
      add_bitmap_unit(add, start, unit);
    else
      add_elias_unit(add, start, unit, words, reinterpret_cast<Walk*>(room), room);
  }
}

/// The units that a payload of the largest size may have.
std::size_t most_units(const SparseShape& shape) {
  const std::size_t bitmap = law::words_of_bits(shape.n);
  const std::size_t bitmap_units = (bitmap + kBitmapWords - 1) / kBitmapWords;
  // With index=auto codes are smaller than a bitmap and a list; else no gap takes more than two bits for each of it.
  std::size_t words = std::min(2 * bitmap + 1, (shape.most * law::kEliasLongest + 31) / 32);
  if (shape.automatic) words = std::min(bitmap, shape.most);
  const std::size_t elias_units = (words + kUnitWords - 1) / kUnitWords;
  if (shape.automatic) return std::max(bitmap_units, elias_units);
  return shape.fixed == IndexCode::bitmap ? bitmap_units : shape.fixed == IndexCode::elias ? elias_units : 0;
}
std::size_t start_bytes(std::size_t units) {
  return Arena<Space::cuda>::padded_size(sizeof(Start) * units);
}
std::size_t add_scratch_bytes(const SparseShape& shape) {
  const std::size_t units = most_units(shape);
  const bool walks = shape.automatic || shape.fixed == IndexCode::elias;
  return start_bytes(units) + (walks ? Arena<Space::cuda>::padded_size(sizeof(Walk) * kEntries * units) : 0);
}

}  // namespace

std::size_t sparse_scratch_bytes(const SparseShape& shape) {
  return std::max(sparse_write_scratch_bytes(shape), add_scratch_bytes(shape));
}

void add_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                float weight, float* out, View<std::byte, Space::cuda> scratch, const SparseForget& forget) {
  expects(payload.size() >= sizeof(SparseHeader) && aligned_to(payload.data(), 4) &&
              scratch.size() >= add_scratch_bytes(shape),
          "sparse payload: needs a header, 4-byte aligned, and scratch as planned");
  const std::size_t most = most_units(shape);
  const Units units{reinterpret_cast<Start*>(scratch.data()),
                    reinterpret_cast<Walk*>(scratch.data() + start_bytes(most)), most};
  if (most > 0) {
    launch(queue, "sparse units", units_kernel, blocks_for(most, 1, 2048), shape, payload.data(), payload.size(),
           units);
    launch(queue, "sparse starts", starts_kernel, 1, shape, payload.data(), payload.size(), units);
  }
  const std::size_t values = (shape.most + kThreads - 1) / kThreads;
  launch(queue, "sparse add", add_kernel, blocks_for(std::max(most, values), 1, 2048), shape, payload.data(),
         payload.size(), units, weight, out, forget);
}

}  // namespace gradtool::cuda
