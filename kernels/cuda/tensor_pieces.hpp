#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/payloads.hpp"
#include "kernels/law/chunk_sums.hpp"
#include "lib/core/view.hpp"

/// The chunks of a unit's tensors on the GPU: what codecs with a statistic for each tensor work on. Codes of every
/// tensor begin at a word, so that chunks are independent.
namespace gradtool::cuda {

/// At most law::kSumChunk elements of one tensor.
struct TensorPiece {
  std::uint64_t first = 0;  ///< where its elements start
  std::uint64_t count = 0;
  std::uint64_t word = 0;    ///< where its codes start
  std::uint64_t tensor = 0;  ///< whose it is
};
/// Pieces [first, last) and their elements.
struct TensorRange {
  std::uint64_t first = 0, last = 0;
  std::uint64_t elements = 0;
};

/// Both in device memory.
struct TensorTable {
  const TensorPiece* piece = nullptr;
  std::size_t pieces = 0;
  const TensorRange* tensor = nullptr;
  std::size_t tensors = 0;
};

}  // namespace gradtool::cuda
