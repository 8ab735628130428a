#pragma once

#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/sparse.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {

[[nodiscard]] inline cuda::SparseShape sparse_shape(const IndexCoding& coding, std::size_t most, std::size_t n,
                                                    std::uint32_t value_bits = 32) {
  return {n, most, coding.automatic(), coding.fixed(), value_bits};
}

}  // namespace gradtool
