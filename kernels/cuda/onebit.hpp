#pragma once

#include <cstdint>

#include "kernels/cuda/tensor_pieces.hpp"

/// onebit on the GPU, the bytes of lib/codecs/onebit.cpp. Enqueued. Pieces are packed one bit an element.
namespace gradtool::cuda {

/// A tensor as a matrix, for the tensor of the same number.
struct OneBitMatrix {
  std::uint64_t first = 0, rows = 0;
  std::uint64_t columns = 0;       ///< 0 for a tensor without elements; below 2^31
  std::uint64_t first_column = 0;  ///< among those of all tensors
};

/// Up to 128 neighbouring columns of a matrix of several.
struct OneBitStrip {
  std::uint64_t first = 0;  ///< element in their first row
  std::uint64_t rows = 0, stride = 0;
  std::uint64_t column = 0;  ///< among those of all tensors
  std::uint64_t count = 0;
  std::uint64_t slot = 0;  ///< of their sums: `count` for each chunk of law::kSumRows rows
};
inline constexpr std::size_t kStripColumns = 128;

/// Some rows of a strip that one warp adds up.
struct OneBitTile {
  std::uint64_t strip = 0;
  std::uint64_t chunk = 0;  ///< of law::kSumRows rows
};

/// Both in device memory, as the tables they point to.
struct OneBitTable {
  TensorTable pieces;
  const OneBitMatrix* matrix = nullptr;  ///< one for each tensor
  const OneBitStrip* strip = nullptr;
  std::size_t strips = 0;
  const OneBitTile* tile = nullptr;
  std::size_t tiles = 0;
  std::size_t columns = 0;  ///< of all tensors
  std::size_t slots = 0;    ///< of all strips
};

[[nodiscard]] constexpr std::size_t onebit_scratch_bytes(std::size_t pieces, std::size_t slots) {
  return 24 * (pieces + slots);
}

/// means := two for each column, of elements not below zero, then of those below; words := a bit for each element, set
/// where it is below zero. Reads the gradient once for vectors and twice for matrices, whose sums run across their
/// words.
void onebit_encode(Queue<Space::cuda> queue, const OneBitTable& table, const float* gradient, float* means,
                   std::uint32_t* words, std::byte* scratch);

/// out[i] += weight * decoded for every payload in turn. Reads and writes `out` once. Payloads are means, then words.
void onebit_decode_add(Queue<Space::cuda> queue, const OneBitTable& table, const Payloads& payloads, float weight,
                       float* out);

}  // namespace gradtool::cuda
