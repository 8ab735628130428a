#pragma once

#include <cstddef>

#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// randomk on the GPU, the bytes of lib/codecs/randomk.cpp. Enqueued.
namespace gradtool::cuda {

/// `sent` of n elements, n < 2^32.
struct RandomKShape {
  std::size_t n = 0;
  std::size_t sent = 0;
};

/// Scratch of both calls: marks of n bits, and a table of the places drawn, 8 bytes for at most n and mostly 2 to 4 for
/// each that is drawn. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t randomk_scratch_bytes(const RandomKShape& shape);

/// values := factor times the elements that the key draws, in ascending order, and behind them what says the key.
void randomk_encode(Queue<Space::cuda> queue, const RandomKShape& shape, const float* gradient, float factor,
                    const law::DrawKey& key, float* values, View<std::byte, Space::cuda> scratch);

/// out[i] += weight * value for the elements that were sent. What stands behind the values is read as a key whatever it
/// is; where it is none, NaN is added to the elements that seed 0 draws.
void randomk_decode_add(Queue<Space::cuda> queue, const RandomKShape& shape, const float* values, float weight,
                        float* out, View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
