#pragma once

#include <cstdint>
#include <vector>

namespace gradtool {

/// Chunk shape for [S, W, n] values of `value_bytes` each, S unlimited. Never more than 4 MiB.
/// Large tensors: one step and worker, the element axis cut into equal parts. Small ones: several workers together up
/// to 64 KiB, and, once all workers fit, several steps up to 4 KiB, so that neither the index nor the padding outweighs
/// the data: a chunk takes its whole size on disk from its first value on.
[[nodiscard]] std::vector<std::uint64_t> chunk_shape(std::uint64_t workers, std::uint64_t elements,
                                                     std::uint64_t value_bytes);

}  // namespace gradtool
