#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/sparse.hpp"
#include "lib/core/view.hpp"

/// Sparse payloads on the GPU: the bytes and sums of lib/codecs/index_code.hpp, with counts that only the device knows.
/// Enqueued; nothing allocates.
namespace gradtool::cuda {

/// Elements and values that a payload is about.
struct SparseShape {
  std::size_t n = 0;
  std::size_t most = 0;           ///< values that there may be
  bool automatic = true;          ///< the index code is the smallest,
  IndexCode fixed{};              ///< else this one
  std::uint32_t value_bits = 32;  ///< float32 values, or 1: a bit each (32 to a word), set for a negative one
  /// With a bit each, words of position and sign may take the place of both sections.
  enum class Words : std::uint32_t { never, smallest, always } words = Words::never;
};

/// What a payload of signs is written from.
struct SparseSigns {
  const float* values = nullptr;              ///< as chosen; null where values are float32
  const std::uint32_t* not_finite = nullptr;  ///< not 0: some value is not, and all decode to NaN
};

/// Scratch of write_sparse, add_sparse and mark_sparse. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t sparse_scratch_bytes(const SparseShape& shape);

/// Writes header and index section of `payload` (4-byte aligned, room for the largest) for *count ascending positions.
/// Values are written by whoever chose them: float32 ones from byte 16 on. Where the payload is the end of a larger
/// one, `front` bytes lie before it, and the first 8 of them become the size of the whole.
void write_sparse(Queue<Space::cuda> queue, const SparseShape& shape, const std::uint32_t* positions,
                  const std::uint32_t* count, std::byte* payload, View<std::byte, Space::cuda> scratch,
                  std::size_t front = 0, const SparseSigns& signs = {});

/// The payload of no values at all: its header.
void write_empty_sparse(Queue<Space::cuda> queue, const SparseShape& shape, std::byte* payload);

/// kept[position] := 0 where a payload has a value and the pattern of kept[position] is at least `low`.
struct SparseForget {
  float* kept = nullptr;  ///< as many as `out`, or null
  std::uint32_t low = 1;
};

/// out[position] += weight * value for all values of a payload, which may be shorter than its view (at least 16 bytes,
/// 4-byte aligned). A header that contradicts itself or `shape`, by its code too, makes all of `out` NaN; positions
/// behind the end are skipped, and nothing is read behind the view. With value_bits = 1 a value is +-1, or NaN.
void add_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                float weight, float* out, View<std::byte, Space::cuda> scratch, const SparseForget& forget = {});

/// Sets the bits of a bitmap over shape.n elements where a payload, read as add_sparse does, has values: all of them
/// where a header contradicts itself.
void mark_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 std::uint32_t* words, View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
