#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/law/elias.hpp"

/// Codes written side by side by the threads of a block. For .cu files.
namespace gradtool::cuda {

/// Writes a code from bit `bit` on into words that were zero, of which other threads write other bits.
__device__ inline void put_code(std::uint32_t* words, std::uint32_t bit, const law::EliasCode& code) {
  const std::uint32_t shift = bit % 32;
  const std::uint64_t low = code.bits << shift;
  const std::uint64_t high = shift == 0 ? 0 : code.bits >> (64 - shift);
  atomicOr(&words[bit / 32], static_cast<std::uint32_t>(low));
  if (low >> 32 != 0) atomicOr(&words[bit / 32 + 1], static_cast<std::uint32_t>(low >> 32));
  if (high != 0) atomicOr(&words[bit / 32 + 2], static_cast<std::uint32_t>(high));
}

}  // namespace gradtool::cuda
