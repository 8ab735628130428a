#pragma once

#include <utility>

#include "kernels/cuda/sparse.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {

[[nodiscard]] inline cuda::SparseShape sparse_shape(const IndexCoding& coding, std::size_t most, std::size_t n,
                                                    std::uint32_t value_bits = 32) {
  return {n, most, coding.automatic(), coding.fixed(), value_bits};
}

/// Hands out 256-byte aligned places in a scratch view, one behind the other; `bytes` is what they took.
struct ScratchPlaces {
  std::size_t bytes = 0;
  std::size_t take(std::size_t size) { return std::exchange(bytes, bytes + Arena<Space::cuda>::padded_size(size)); }
};

}  // namespace gradtool
