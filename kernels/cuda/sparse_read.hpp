#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/sparse_units.hpp"
#include "kernels/law/elias.hpp"

/// How kernels read the index section of a sparse payload. For .cu files.
///
/// Elias codes have no marks that a thread could start from, so blocks take a unit of bits each, and find out where
/// they would leave it for every bit at which they may enter it: a code that begins before a unit reaches less than the
/// longest code into it. One block then walks from unit to unit, and every unit is decoded from where it is entered.
/// Bitmaps take the same three steps, with the marks of a unit instead of the walk.
namespace gradtool::cuda {

inline constexpr std::uint32_t kEntries = law::kEliasLongest;  // bits at which a unit or a chunk may be entered
inline constexpr std::uint32_t kChunkBits = 256;
inline constexpr std::uint32_t kChunks = 32;  // of a unit
inline constexpr std::uint32_t kUnitBits = kChunks * kChunkBits;
inline constexpr std::uint32_t kUnitWords = kUnitBits / 32;
inline constexpr std::uint32_t kBitmapWords = 4 * kThreads;  // of a unit of a bitmap

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

/// In the scratch of a payload, as many as the longest may have.
struct Units {
  Start* starts;
  Walk* walks;           ///< kEntries for each unit
  std::uint8_t* leaves;  ///< of the walks once more, side by side: all that the way from unit to unit needs
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

/// Units of an index section; a list of positions has none.
__device__ inline std::size_t units_in(IndexCode code, std::size_t words) {
  if (code == IndexCode::u32) return 0;
  const std::size_t each = code == IndexCode::elias ? kUnitWords : kBitmapWords;
  return (words + each - 1) / each;
}

/// `room`: units that there is scratch for; a payload that has more is not one of the shape's.
__device__ inline Sections sections_of(const SparseShape& shape, const std::byte* payload, std::size_t size,
                                       std::size_t room) {
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
  // Nor is one in another code than the fixed one, which scratch was planned for.
  if ((!shape.automatic && !as_words && code != shape.fixed) || units_in(code, bytes / 4) > room) return {};
  return {true,
          form != header.code,
          code,
          as_words,
          header.count,
          reinterpret_cast<const std::uint32_t*>(payload + sizeof header),
          reinterpret_cast<const std::uint32_t*>(payload + at),
          bytes / 4};
}

__device__ inline std::size_t units_of(const Sections& at) {
  return at.good ? units_in(at.code, at.words) : 0;
}

/// The words of an Elias unit and what its last code may reach behind it, zeros behind the end.
__device__ inline void load_unit(const Sections& at, std::size_t unit, std::uint32_t* words) {
  for (std::uint32_t i = threadIdx.x; i < kUnitWords + 3; i += kThreads) {
    const std::size_t word = unit * kUnitWords + i;
    words[i] = word < at.words ? at.index[word] : 0u;
  }
  __syncthreads();
}

__device__ inline law::EliasFront code_at(const std::uint32_t* words, std::uint32_t bit) {
  const std::uint32_t* at = words + bit / 32;
  const std::uint64_t low = std::uint64_t{at[1]} << 32 | at[0];
  const std::uint32_t shift = bit % 32;
  return law::elias_delta_front(shift == 0 ? low : low >> shift | std::uint64_t{at[2]} << (64 - shift));
}

/// walks[chunk * kEntries + entry] for all chunks of a unit.
__device__ inline void walk_chunks(const std::uint32_t* words, Walk* walks) {
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

/// Finds out where the units of a payload start, enqueued; none for a list of positions.
Units find_units(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 View<std::byte, Space::cuda> scratch);
[[nodiscard]] std::size_t sparse_find_scratch_bytes(const SparseShape& shape);

}  // namespace gradtool::cuda
