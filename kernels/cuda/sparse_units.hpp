#pragma once

#include <cstddef>

#include "kernels/cuda/sparse.hpp"
#include "kernels/law/hd.hpp"

/// What the sources of kernels/cuda/sparse.hpp share.
namespace gradtool::cuda {

/// Bytes that k values take.
GT_HD constexpr std::size_t sparse_value_bytes(const SparseShape& shape, std::size_t k) {
  return 4 * law::words_of_bits(k * shape.value_bits);
}

[[nodiscard]] std::size_t sparse_write_scratch_bytes(const SparseShape& shape);

}  // namespace gradtool::cuda
