#pragma once

#include <cstddef>

#include "kernels/cuda/payloads.hpp"
#include "kernels/law/block_format.hpp"
#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// Block formats on the GPU, the bytes of lib/codecs/block_codec.hpp. Enqueued. Defined for the formats that int8.cu,
/// fp8.cu, mx.cu and qgz.cu name.
namespace gradtool::cuda {

/// Scratch that encoding needs: 4 bytes for each block that is taken in several pieces.
[[nodiscard]] std::size_t blocks_scratch_bytes(const law::BlockLayout& layout);

/// Writes the layout.bytes() bytes of `payload` (4-byte aligned). Reads the gradient once from memory, or twice where a
/// block is longer than 4096 elements.
template <class Format>
void encode_blocks(Queue<Space::cuda> queue, const law::BlockLayout& layout, const float* gradient, bool stochastic,
                   const law::DrawKey& key, std::byte* payload, std::byte* scratch);

/// out[i] += weight * decoded for every payload in turn, in one pass over `out`. Reads exactly layout.bytes() bytes of
/// each, whatever they are.
template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const law::BlockLayout& layout, const Payloads& payloads, float weight,
                       float* out);

}  // namespace gradtool::cuda
