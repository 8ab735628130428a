#pragma once

#include <memory>

#include "lib/codecs/codec.hpp"

namespace gradtool {

/// The quantiser of qgZ: `bits` (4 or 8) an element, blocks with a float32 scale. Its payloads need an alignment of 4
/// bytes only, and are multiples of 4 bytes.
[[nodiscard]] std::unique_ptr<Codec<Space::host>> make_qgz_codec(std::int64_t bits, std::size_t block);
/// The same on a GPU; only in builds with CUDA.
[[nodiscard]] std::unique_ptr<Codec<Space::cuda>> make_cuda_qgz_codec(std::int64_t bits, std::size_t block);

}  // namespace gradtool
