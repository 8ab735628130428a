#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/payloads.hpp"
#include "kernels/cuda/units.hpp"
#include "kernels/law/block_format.hpp"
#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// Block formats on the GPU, the bytes of lib/codecs/block_codec.hpp, for every unit. `like` is the layout of a unit
/// but for its n. Enqueued. Defined for the formats that int8.cu, fp8.cu, mx.cu and qgz.cu name.
namespace gradtool::cuda {

/// Scratch that encoding needs: 4 bytes for each block that is taken in several pieces.
[[nodiscard]] std::size_t blocks_scratch_bytes(const law::BlockLayout& layout);

/// Writes the payloads (4-byte aligned); unit i draws as tensor key.tensor + i. Reads the gradients once from memory,
/// or twice where a block is longer than 4096 elements: such blocks need scratch, and a single unit (Fault::usage).
template <class Format>
void encode_blocks(Queue<Space::cuda> queue, const law::BlockLayout& like, std::span<const Unit> units, bool stochastic,
                   const law::DrawKey& key, std::byte* scratch);

/// to[i] += weight * decoded. Reads exactly the payloads' bytes, whatever they are.
template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const law::BlockLayout& like, std::span<const Unit> units,
                       float weight);

/// out[i] += weight * decoded for every payload in turn, in one pass over `out`. Reads exactly layout.bytes() bytes of
/// each, whatever they are.
template <class Format>
void decode_add_blocks(Queue<Space::cuda> queue, const law::BlockLayout& layout, const Payloads& payloads, float weight,
                       float* out);

}  // namespace gradtool::cuda
